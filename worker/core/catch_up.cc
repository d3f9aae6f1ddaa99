#include "worker/core/catch_up.h"

#include <algorithm>
#include <tuple>

namespace slackline {
namespace {

auto How(const Standing& rank) {
  return std::make_tuple(rank.clock, !rank.own_values);
}

}  // namespace

CatchUpPlan PlanCatchUp(absl::Span<const Standing> ranks) {
  const auto root = std::max_element(  // The first.
      ranks.begin(), ranks.end(),
      [](const Standing& a, const Standing& b) { return How(a) < How(b); });
  CatchUpPlan plan{.clock = root->clock,
                   .root = static_cast<int>(root - ranks.begin()),
                   .takes = std::vector<bool>(ranks.size(), false)};
  if (plan.clock < 0) return plan;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    plan.takes[rank] =
        static_cast<int>(rank) != plan.root &&
        (ranks[rank].clock != plan.clock || ranks[rank].own_values);
  }
  return plan;
}

}  // namespace slackline
