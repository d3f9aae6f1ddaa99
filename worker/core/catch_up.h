// What the ranks of a new group make of the clocks that they tell each other.
// Pure function.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace slackline {

struct CatchUpPlan {
  // That all have in the end; -1: nobody knows the job's parameters.
  Clock clock = -1;
  int root = 0;  // Index of the rank whose state counts.
  // By rank, whether it takes that state: who has another clock does, and,
  // where nobody has stepped yet and the parameters begin as a worker has them,
  // everybody else.
  std::vector<bool> takes;
};
// By rank; at least one. `of_worker`: BeginsWithWorker().
CatchUpPlan PlanCatchUp(absl::Span<const Clock> clocks, bool of_worker);

}  // namespace slackline
