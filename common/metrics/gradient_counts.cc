#include "common/metrics/gradient_counts.h"

namespace slackline {

uint64_t NonfiniteGradients(const run::ServerStats& stats) {
  uint64_t sum = 0;
  for (const run::NonfiniteGradients& of_rank : stats.nonfinite())
    sum += of_rank.gradients();
  return sum;
}

uint64_t OversizedGradients(const run::ServerStats& stats) {
  uint64_t sum = 0;
  for (const run::OversizedGradients& of_rank : stats.oversized())
    sum += of_rank.gradients();
  return sum;
}

int64_t UnaccountedGradients(const run::ServerStats& stats) {
  const uint64_t known = stats.applied() + stats.held() + stats.dropped() +
                         NonfiniteGradients(stats) + OversizedGradients(stats);
  return static_cast<int64_t>(stats.pushes()) - static_cast<int64_t>(known);
}

}  // namespace slackline
