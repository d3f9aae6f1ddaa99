// What the ranks of a new group make of where they are. Pure function.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace slackline {

// Where a rank is, as it tells its group.
struct Standing {
  Clock clock = -1;  // -1: it does not know the job's parameters.
  // The parameters begin as a worker has them (BeginsWithWorker()), and these
  // are its own: no group has agreed on whose count. Only at clock 0.
  bool own_values = false;
};

struct CatchUpPlan {
  // All have it in the end; -1: nobody knows the job's parameters.
  Clock clock = -1;
  int root = 0;             // Index of the rank whose state counts.
  std::vector<bool> takes;  // By rank, whether it takes that state.
};
// `ranks` has one for each rank, and at least one. The state of the first rank
// that is farthest counts; values that a group has agreed on are farther than
// one's own, so nobody takes a state under which a gradient of this clock was
// computed already.
CatchUpPlan PlanCatchUp(absl::Span<const Standing> ranks);

}  // namespace slackline
