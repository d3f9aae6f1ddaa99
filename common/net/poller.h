// Waiting for messages of several channels, and for wakes from other threads.
#pragma once

#include <poll.h>

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/waitable.h"

namespace slackline {

// Ends another thread's Poller::Wait(). Wakes that nobody has drained yet are
// one. Use: the waking thread first changes shared state, then calls Wake();
// the woken one first calls Drain(), then looks at the state.
class Waker : public Waitable {
 public:
  Waker();
  ~Waker() override;
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  void Wake();   // Any thread.
  void Drain();  // The thread that waits.

  std::vector<int> Descriptors() const override { return {event_}; }
  absl::StatusOr<absl::Duration> WaitMax() override {
    return absl::InfiniteDuration();
  }

 private:
  const int event_;  // An eventfd.
  std::atomic<bool> pending_{false};
};

// Belongs to the thread that waits. A wait may first look again and again
// for a short time, if the waits before have shown that messages come soon, and
// then sleeps.
class Poller {
 public:
  struct Options {
    // Longest spin before a sleep; zero: never spin. It can pay where there are
    // more cores than busy threads, ZeroMQ's own included. On two cores it does
    // harm: bench_push_pull --bytes=4KiB --spin-max-us=0, 10, 40 took 65, 106
    // and 125 us a step there, since a spin holds up ZeroMQ's I/O threads.
    absl::Duration spin_max = absl::ZeroDuration();
  };
  Poller() : Poller(Options()) {}
  explicit Poller(const Options& options);
  ~Poller();

  // What is added must be removed before it ends, unless the Poller ends first.
  void Add(Waitable& waitable);
  void Remove(const Waitable& waitable);

  // Returns as soon as one may have a message or a waker was woken, at the
  // latest after `wait_max` (may be infinite; below zero is zero); sometimes
  // earlier. OK in all cases; the caller then drains the wakers and receives
  // from every channel until it has no more.
  absl::Status Wait(absl::Duration wait_max);

 private:
  // True if a descriptor is readable, or was within `wait_max`.
  absl::StatusOr<bool> Look(absl::Duration wait_max);

  const Options options_;
  std::vector<Waitable*> waitables_;
  std::vector<pollfd> descriptors_;  // Those of all waitables.
  absl::Duration spin_;              // At most options_.spin_max.
};

}  // namespace slackline
