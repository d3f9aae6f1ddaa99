#include "worker/core/catch_up.h"

#include <algorithm>

namespace slackline {

CatchUpPlan PlanCatchUp(absl::Span<const Clock> clocks, bool of_worker) {
  const auto most = std::max_element(clocks.begin(), clocks.end());  // First.
  CatchUpPlan plan{.clock = *most,
                   .root = static_cast<int>(most - clocks.begin()),
                   .takes = std::vector<bool>(clocks.size(), false)};
  if (plan.clock < 0) return plan;
  for (size_t rank = 0; rank < clocks.size(); ++rank) {
    plan.takes[rank] =
        static_cast<int>(rank) != plan.root &&
        (clocks[rank] != plan.clock || (of_worker && plan.clock == 0));
  }
  return plan;
}

}  // namespace slackline
