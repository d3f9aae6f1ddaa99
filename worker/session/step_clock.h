// StepClock: where the time of a worker's trainer thread goes, phase by phase
// (run::StepPhases), step after step without a gap: a step's time begins where
// the one before has ended. What nobody says anything else of is computing.
//
// The times go in; they do not go back. Fixed memory. Where a timeline is
// recorded, steps and phases go there, each as one event. Thread-compatible.
#pragma once

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/timeline/recorder.h"
#include "proto/run.pb.h"
#include "worker/client/client_core.h"
#include "worker/session/recent_steps.h"

namespace slackline {

class StepClock {
 public:
  // The thread's `track`; nullptr: there is none. Outlives this.
  explicit StepClock(TimelineTrack* track = nullptr) : track_(track) {}

  // The thread stood still.
  struct Blocked {
    absl::Time from;
    absl::Time until;
    absl::Duration time() const { return until - from; }
  };

  // Time counts from now on. Without effect after the first call.
  void Start(absl::Time now);

  // The clock of the step whose time begins, or goes on: for the timeline.
  void SetClock(Clock clock) { clock_ = clock; }

  // The thread was computing until now.
  void Computed(absl::Time now);
  // The thread did this since the last call of any of these, until now.
  void Waited(absl::Time now) { Spend(&Times::waiting, now); }
  void Pushed(absl::Time now) { Spend(&Times::pushing, now); }
  void Pulled(absl::Time now) { Spend(&Times::pulling, now); }
  void Reduced(absl::Time now) { Spend(&Times::reducing, now); }
  // So much of the computing was something else: at its beginning, and at its
  // end, where pushing comes before reducing.
  void WasLoading(absl::Duration time);
  void WasPushing(absl::Duration time);
  void WasReducing(absl::Duration time);

  // There was nothing to do until now. Granted() or EndIdle() says what the
  // longest such time in a step was for.
  void Idled(absl::Time now);
  // The longest idle time was for parameters, which are there now. `parked` as
  // of their pull; `acknowledged`: when all gradients before them were.
  void Granted(const ParkedTime& parked, absl::Time acknowledged);
  // The longest idle time was for other workers.
  void EndIdle();
  // The thread waited for parameters until now, in a step.
  void PulledBehind(const ParkedTime& parked, absl::Time now);

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
  // Computing, for the timeline; with what of it was something else.
  struct Computing {
    Blocked in;
    absl::Duration loading;
    absl::Duration pushing;
    absl::Duration reducing;
  };
  void Spend(absl::Duration Times::*phase, absl::Time now);
  void Split(const Blocked& blocked, const ParkedTime& parked,
             absl::Time acknowledged);
  // Adds a span of time to the timeline.
  void Record(const char* name, absl::Time from, absl::Time until);
  void RecordComputing();
  void RecordSplit(const Blocked& blocked, const ParkedTime& parked,
                   absl::Duration pushing);

  bool started_ = false;
  absl::Time mark_;  // Up to then the time is in times_.
  Times times_;      // The present step's.
  Blocked idle_;     // The longest time of the step, not in times_ yet.
  RecentSteps recent_;

  TimelineTrack* const track_;
  Clock clock_ = 0;
  absl::Time step_begun_;
  Computing computing_;  // Not recorded yet.
};

}  // namespace slackline
