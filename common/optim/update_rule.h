// How the gradients of one table become updates of it: on the servers, by
// all-reduce, and in a replay.
#pragma once

#include <algorithm>
#include <limits>

#include "common/ids.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"

namespace slackline {

// What a worker may multiply the rate of one of its gradients with: a number
// from 0 to kRateFactorMax. With 0, only the optimizer's state changes.
inline constexpr double kRateFactorMax = 1e6;
inline bool IsRateFactor(double factor) {
  return factor >= 0 && factor <= kRateFactorMax;  // A NaN is neither.
}

struct UpdateRule {
  Optimizer optimizer;  // Of the table.
  LearningRateSchedule schedule;

  // The rate of an update of this clock: the optimizer's, times the schedule's
  // factor, times `factor` of its gradients (and of a rule for stale ones). At
  // most the largest float.
  double RateAt(Clock clock, double factor) const {
    return std::min(
        optimizer.learning_rate() * schedule.FactorAt(clock) * factor,
        static_cast<double>(std::numeric_limits<float>::max()));
  }
};

}  // namespace slackline
