// How the gradients of one table become updates of it: on the servers, by
// all-reduce, and in a replay.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>

#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/optim/stale/stale_rule.h"
#include "common/optim/step_options.h"

namespace slackline {

class DelayPlan;

struct UpdateRule {
  Optimizer optimizer;  // The table's.
  LearningRateSchedule schedule;
  // The members from here on are for servers.
  StaleRule stale = {};
  GradientBound gradient_bound = {};
  // The order of the updates of a job whose delays are given.
  std::shared_ptr<const DelayPlan> delays = nullptr;

  // The numbers of an update of this clock. Its rate is the optimizer's, times
  // the schedule's factor, times that of its gradients (and of a rule for stale
  // ones); at most the largest float.
  StepNumbers NumbersAt(Clock clock, const StepOptions& options) const {
    return {.learning_rate = std::min(
                optimizer.learning_rate() * schedule.FactorAt(clock) *
                    options.rate_factor,
                static_cast<double>(std::numeric_limits<float>::max())),
            .momentum = options.momentum};
  }
};

}  // namespace slackline
