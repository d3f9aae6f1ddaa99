// StepClock: where the time of a worker's trainer thread goes, phase by phase
// (run::StepPhases), step after step without a gap: a step's time begins where
// the one before has ended. What nobody says anything else of is computing.
//
// The times go in; they do not go back. Fixed memory. Thread-compatible.
#pragma once

#include "absl/time/time.h"
#include "proto/run.pb.h"
#include "worker/client/client_core.h"
#include "worker/session/recent_steps.h"

namespace slackline {

class StepClock {
 public:
  // The thread stood still.
  struct Blocked {
    absl::Time from;
    absl::Time until;
    absl::Duration time() const { return until - from; }
  };

  // Time counts from now on. Without effect after the first call.
  void Start(absl::Time now);

  // Until now it was computing.
  void Computed(absl::Time now) { Spend(&Times::computing, now); }
  // Since the last call of any of these, until now.
  void Waited(absl::Time now) { Spend(&Times::waiting, now); }
  void Pushed(absl::Time now) { Spend(&Times::pushing, now); }
  void Pulled(absl::Time now) { Spend(&Times::pulling, now); }
  void Reduced(absl::Time now) { Spend(&Times::reducing, now); }
  // Of what was computing, so much was something else.
  void WasLoading(absl::Duration time) { Move(time, &times_.loading); }
  void WasReducing(absl::Duration time) { Move(time, &times_.reducing); }

  // There was nothing to do until now: for what, Granted() or EndBlocked()
  // says, of the longest such time in a step.
  void Idled(absl::Time now);
  // It was for parameters, which are there now. `parked` as of their pull;
  // `acknowledged`: when all gradients before them were.
  void Granted(const ClientCore::Parked& parked, absl::Time acknowledged);
  // It was for other workers.
  void EndIdle();
  // Waited for parameters until now, in a step.
  void PulledBehind(const ClientCore::Parked& parked, absl::Time now);

  // The step is done: its time goes to `stats`.
  void EndStep(run::WorkerStats* stats);

 private:
  struct Times {
    absl::Duration loading;
    absl::Duration computing;
    absl::Duration waiting;
    absl::Duration pushing;
    absl::Duration pulling;
    absl::Duration reducing;
  };
  void Spend(absl::Duration Times::*phase, absl::Time now) {
    if (started_) times_.*phase += now - mark_;
    mark_ = now;
  }
  void Move(absl::Duration time, absl::Duration* phase) {
    if (!started_) return;
    times_.computing -= time;
    *phase += time;
  }
  void Split(const Blocked& blocked, const ClientCore::Parked& parked,
             absl::Time acknowledged);

  bool started_ = false;
  absl::Time mark_;  // Up to then the time is in times_.
  Times times_;      // Of the present step.
  Blocked idle_;     // The longest time of the step, not in times_ yet.
  RecentSteps recent_;
};

}  // namespace slackline
