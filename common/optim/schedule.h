// The learning rate over a job: the optimizer's rate times FactorAt(clock).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/block/config_problems.h"
#include "common/ids.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Writes out what was left out: constant.
void FillSchedule(config::LearningRateSchedule* config);
// Adds what is wrong with a job's schedule.
void CheckSchedule(const config::LearningRateSchedule& config,
                   const ConfigProblems& problems);

// Immutable; any thread may call anything at any time.
//
// At clock c below warmup_steps the factor is (c + 1) / warmup_steps. After it,
// with t = c - warmup_steps:
//   constant  1
//   step      factor ^ floor(t / (every_epochs * steps_per_epoch))
//   cosine    f + (1 - f) (1 + cos(pi t / last)) / 2, where f is final_factor
//             and `last` is t of the job's last step; 1 if it is the only one
//             (Loshchilov and Hutter, "SGDR", 2017, without restarts)
class LearningRateSchedule {
 public:
  struct JobLength {
    int64_t steps_total = 0;      // One worker's, over the job. At least 1.
    int64_t steps_per_epoch = 0;  // One worker's. At least 1.
  };
  // A config in which nothing is set is constant. InvalidArgument names the
  // field, its value and its bound. A warm-up longer than the job is allowed.
  static absl::StatusOr<LearningRateSchedule> Create(
      const config::LearningRateSchedule& config, const JobLength& length);

  // Clocks at and beyond the end of the job have the factor of its last step,
  // but for a step schedule, which goes on. `clock` is at least 0.
  double FactorAt(Clock clock) const;

 private:
  LearningRateSchedule(const config::LearningRateSchedule& config,
                       const JobLength& length)
      : config_(config), length_(length) {}

  config::LearningRateSchedule config_;
  JobLength length_;
};

}  // namespace slackline
