// How far beyond the smallest bound the leading worker of a shard may go in
// DSSP: Zhao et al., "Dynamic stale synchronous parallel distributed training
// for deep learning", 2019.
//
// When a pull of the worker that leads all others exceeds the smallest bound,
// the controller predicts from the last push and the last interval between two
// pushes, of that worker and of the slowest one, after how many more steps the
// leader would have to wait least for the slowest one's next push, and lets it
// do so many. Beyond the largest bound nothing goes: that is the gate's
// business. Who was not measured yet, after a move of the shard too, is granted
// nothing.
//
// Pure state machine, as the gate; the time is an argument. Thread-compatible.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "common/sync/staleness_gate.h"

namespace slackline {

class DsspController {
 public:
  // The worker's push of `clock` has come. Pushes in other modes are not told.
  void OnPush(Rank rank, Incarnation incarnation, Clock clock, absl::Time now);

  // Whether the pull, which exceeds the smallest bound, may go up to the
  // largest one. `steps_max` is the distance of the bounds. Decides once for
  // each clock of a worker; what it grants holds until it is used up. The cost
  // does not grow with `steps_max`, which is below 2^60.
  bool Grants(const StalenessGate::Pull& pull, const Participants& participants,
              int64_t steps_max);

 private:
  struct Pace {
    Incarnation incarnation = 0;
    Clock clock = -1;         // The last push had this clock,
    absl::Time time;          // and came then.
    absl::Duration interval;  // Zero: not known.
    Clock decided = -1;       // Last clock that a decision was made for.
    Clock granted = 0;        // Pulls of clocks below it may go.
  };
  // The pace of this incarnation; that of another one is forgotten.
  Pace& PaceOf(Rank rank, Incarnation incarnation);

  std::map<Rank, Pace> paces_;  // At most one for each rank of the job.
};

}  // namespace slackline
