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

// Where events happen that may have to wait although their moment has come.
class EventPlace {
 public:
  virtual ~EventPlace() = default;
  // `due` is the moment by the clock of this place.
  virtual void Run(absl::Time due, std::function<void()> run) = 0;
};

// Events of one moment run in the order in which they were added, so the same
// calls make the same run. Single-threaded.
class EventQueue {
 public:
  // True time: that of no machine.
  absl::Time now() const { return now_; }

  // Runs `run` at `at`; at once after the present event if that has passed.
  // With a place, which outlives the queue's events: hands it `run` and `due`.
  void At(absl::Time at, std::function<void()> run, EventPlace* place = nullptr,
          absl::Time due = absl::InfinitePast()) {
    events_.push_back(
        {std::max(at, now_), next_order_++, due, place, std::move(run)});
    std::push_heap(events_.begin(), events_.end(), Later);
  }
  void After(absl::Duration delay, std::function<void()> run) {
    At(now_ + delay, std::move(run));
  }
  // False if nothing is left to run.
  bool RunNext() {
    if (events_.empty()) return false;
    std::pop_heap(events_.begin(), events_.end(), Later);
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.at;
    ++events_run_;
    if (event.place == nullptr) {
      event.run();
    } else {
      event.place->Run(event.due, std::move(event.run));
    }
    return true;
  }
  int64_t events_run() const { return events_run_; }

 private:
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    absl::Time due;
    EventPlace* place = nullptr;
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

}  // namespace slackline::sim
