// A machine of a simulated cluster: the clock that its process reads, and what
// happens there while the process is stopped or the machine is suspended.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

// Its timers run by its own clock. Timers and messages whose moment comes while
// it stands still wait, and happen all at once when it goes on. A process that
// ends is not followed by its timers: they lock a Lifetime.
class SimMachine : public EventPlace {
 public:
  // `clock` is what its monotonic clock is like.
  SimMachine(EventQueue* queue, const MachineClock& clock)
      : queue_(queue), clock_(clock) {}

  // By its own clock.
  absl::Time now() const { return LocalOf(queue_->now()); }
  void At(absl::Time at, std::function<void()> run);
  void After(absl::Duration delay, std::function<void()> run) {
    At(now() + delay, std::move(run));
  }
  // Something comes from elsewhere: happens now, or once the machine goes on.
  void Arrive(std::function<void()> run);

  // Stands still for so long. A process that is stopped (SIGSTOP) finds that
  // its clock went on, a machine that was suspended that it did not.
  void StandStill(absl::Duration duration, const StandStillFault& fault);
  bool stands_still() const { return until_ > queue_->now(); }
  // Another process begins here: what was meant for the last one is gone, and
  // it runs.
  void Restart();

  // For how long it stood still, in all.
  absl::Duration stood_still() const { return stood_still_; }

  void Run(absl::Time due, std::function<void()> run) override;

 private:
  struct Waiting {
    bool timer = false;
    absl::Time due;
    std::function<void()> run;
  };
  absl::Time LocalOf(absl::Time truth) const;
  absl::Time TruthOf(absl::Time local) const;
  void GoOn();

  EventQueue* const queue_;
  const MachineClock clock_;
  absl::Duration suspended_;  // In all, before the present time.
  bool suspends_ = false;     // While it stands still: its clock does, too.
  absl::Time since_;          // It stands still.
  absl::Time until_ = absl::InfinitePast();
  WakeOrder order_{};
  absl::Duration stood_still_;
  std::vector<Waiting> waiting_;
};

class SimMachines {
 public:
  SimMachines(const Scenario& scenario, EventQueue* queue)
      : scenario_(scenario), queue_(queue) {}

  SimMachine& operator[](Node node) {
    std::unique_ptr<SimMachine>& machine = machines_[node];
    if (machine == nullptr) {
      machine = std::make_unique<SimMachine>(queue_, scenario_.ClockOf(node));
    }
    return *machine;
  }

 private:
  const Scenario& scenario_;
  EventQueue* const queue_;
  std::map<Node, std::unique_ptr<SimMachine>> machines_;
};

// Calls `ring` at the time set, or earlier: whoever is called looks at its
// core's NextWakeup() anyway, and sets the alarm again.
class Alarm {
 public:
  Alarm(SimMachine* machine, std::function<void()> ring)
      : machine_(machine), ring_(std::move(ring)) {}

  void SetAt(absl::Time at) {
    if (at >= pending_) return;  // Also when `at` is the infinite future.
    pending_ = at;
    machine_->At(at, lifetime_.Guard([this, at] {
      if (pending_ != at) return;  // An earlier one was set meanwhile.
      pending_ = absl::InfiniteFuture();
      ring_();
    }));
  }

 private:
  SimMachine* const machine_;
  const std::function<void()> ring_;
  absl::Time pending_ = absl::InfiniteFuture();
  Lifetime lifetime_;
};

}  // namespace slackline::sim
