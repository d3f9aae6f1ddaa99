#include "server/coordinator/rebalance_config.h"

#include <cmath>

#include "common/block/bounds.h"

namespace slackline {
namespace {

constexpr int kMibMax = 1 << 20;  // 1 TiB.
constexpr int kMovesMax = 1000000;
constexpr int kConcurrentMovesMax = 64;

}  // namespace

void CheckRebalance(const config::Rebalance& rebalance,
                    const ConfigProblems& problems) {
  if (rebalance.mode() == config::Rebalance::MODE_UNSPECIFIED) {
    problems.Add("mode",
                 "value is MODE_UNSPECIFIED; OFF, MANUAL or AUTO is required");
  }
  problems.Range("interval_ms", rebalance.interval_ms(), 100, kHourMs,
                 "mode: MANUAL never looks by itself");
  const double threshold = rebalance.threshold();
  const bool threshold_ok = std::isfinite(threshold) && threshold >= 1.01;
  problems.Require(threshold_ok, "threshold", threshold, "at least 1.01");
  const double target = rebalance.target();
  if (!(target >= 1)) {
    problems.Require(false, "target", target, "at least 1",
                     "1 is a thread with the mean load");
  } else if (threshold_ok && target >= threshold) {
    problems.Add("target",
                 absl::StrCat("value is ", target,
                              "; less than rebalance.threshold (", threshold,
                              ") is required, so that it does not act on "
                              "noise"));
  }
  const double utilisation = rebalance.min_utilisation();
  problems.Require(utilisation >= 0 && utilisation <= 1, "min_utilisation",
                   utilisation, "0 to 1");
  problems.Range("rest_ms", rebalance.rest_ms(), 0, kTimeoutMsMax);
  problems.Range("budget_mib", rebalance.budget_mib(), 1, kMibMax);
  problems.Range("moves_max", rebalance.moves_max(), 1, kMovesMax);
  problems.Range("concurrent_moves", rebalance.concurrent_moves(), 1,
                 kConcurrentMovesMax);
}

}  // namespace slackline
