// Virtual time: events run one after the other, each at its moment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace slackline::sim {

// Events of one moment run in the order in which they were added, so the same
// calls make the same run. Single-threaded.
class EventQueue {
 public:
  absl::Time now() const { return now_; }

  // Runs `run` at `at`; at once after the present event if that has passed.
  void At(absl::Time at, std::function<void()> run) {
    events_.push_back({std::max(at, now_), next_order_++, std::move(run)});
    std::push_heap(events_.begin(), events_.end(), Later);
  }
  void After(absl::Duration delay, std::function<void()> run) {
    At(now_ + delay, std::move(run));
  }
  // False if nothing is left to run.
  bool RunNext() {
    if (events_.empty()) return false;
    std::pop_heap(events_.begin(), events_.end(), Later);
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.at;
    ++events_run_;
    event.run();
    return true;
  }
  int64_t events_run() const { return events_run_; }

 private:
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    std::function<void()> run;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_order_ = 0;
  int64_t events_run_ = 0;
  std::vector<Event> events_;  // A heap.
};

// What the processes of a world hold on to so that events of a process that is
// gone do nothing: each event locks the owner's token first.
class Lifetime {
 public:
  // `run`, unless the owner of this object is gone by then.
  template <typename Run>
  auto Guard(Run run) const {
    return [alive = std::weak_ptr<bool>(alive_),
            run = std::move(run)](auto... arguments) mutable {
      if (!alive.expired()) run(arguments...);
    };
  }

 private:
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Calls `ring` at the time set, or earlier: whoever is called looks at its
// core's NextWakeup() anyway, and sets the alarm again.
class Alarm {
 public:
  Alarm(EventQueue* queue, std::function<void()> ring)
      : queue_(queue), ring_(std::move(ring)) {}

  void SetAt(absl::Time at) {
    if (at >= pending_) return;  // Also when `at` is the infinite future.
    pending_ = at;
    queue_->At(at, lifetime_.Guard([this, at] {
      if (pending_ != at) return;  // An earlier one was set meanwhile.
      pending_ = absl::InfiniteFuture();
      ring_();
    }));
  }

 private:
  EventQueue* const queue_;
  const std::function<void()> ring_;
  absl::Time pending_ = absl::InfiniteFuture();
  Lifetime lifetime_;
};

}  // namespace slackline::sim
