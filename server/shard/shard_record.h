// What happens to a shard: the records of its log. A record says all that the
// shard needs to know, so whoever applies the same records to the same shard
// gets the same bits, whatever view, clock or configuration of modes it has.
#pragma once

#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/optim/step_options.h"
#include "common/payload.h"

namespace slackline {

// One life of a worker.
struct WorkerLife {
  Rank rank{};
  Incarnation incarnation = 0;
};

// The worker takes part from `clock` on, or from the smallest clock of the
// others if that is larger.
struct JoinRecord {
  WorkerLife who;
  Clock clock = 0;
};

// The worker's next push: its gradient of `clock`, which is its clock here. In
// a job whose delays are given it waits for its turn.
struct GradientRecord {
  WorkerLife who;
  Clock clock = 0;
  Payload gradient;
  // Waits for the rest of its clock, which is the first that is not complete.
  // Else it is applied at once, as one of the gradients of a clock.
  bool held = false;
  // The clock of a held one can be complete without the gradients of so many
  // participants, equal in all of a clock. 0: it takes all, but for those who
  // skip it.
  int spare = 0;
  // The worker's options, with the factor of a rule for stale gradients in that
  // of the rate. In a clock of held ones, only the lowest rank's count.
  StepOptions options = {};
  // The gradient's root mean square as it was pushed, for RunningRms; 0: it was
  // not measured.
  double rms = 0;
};

// The gradients of one clock, added up: as if each had come in a record of its
// own, to be held, and the last one had made the clock complete. It counts as
// so many records.
struct SumRecord {
  Clock clock = 0;
  std::vector<WorkerLife> who;   // Sorted by rank, each once.
  Payload sum;                   // Added in this order.
  int spare = 0;                 // GradientRecord::spare.
  StepOptions options = {};      // The lowest rank's.
  std::vector<double> rms = {};  // Each one's; empty: none was measured.
};

// The worker's next push: it has nothing to give for the clocks below `clock`,
// and its clock becomes that. Also what becomes of a push that is discarded.
struct AdvanceRecord {
  WorkerLife who;
  Clock clock = 0;
};

// The worker's next push: what the shard has become by all-reduce before
// `clock`, to which all participants come; `joining` take part from there on.
struct InstallRecord {
  WorkerLife who;
  Clock clock = 0;
  Version version = 0;
  Payload values;
  std::vector<Payload> slots = {};
  std::vector<WorkerLife> joining = {};
};

// These take part no more; what they had pushed stays.
struct LeaveRecord {
  std::vector<Incarnation> incarnations;
};

// The shard is split in two: it keeps the elements of its table below `at`, the
// others become the shard `part`.
struct SplitRecord {
  int64_t at = 0;
  ShardId part{};
};

using ShardRecord =
    std::variant<JoinRecord, GradientRecord, SumRecord, AdvanceRecord,
                 InstallRecord, LeaveRecord, SplitRecord>;

}  // namespace slackline
