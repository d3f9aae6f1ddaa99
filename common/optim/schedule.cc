#include "common/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "common/block/bounds.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

void FillSchedule(config::LearningRateSchedule* config) {
  if (config->kind_case() == config::LearningRateSchedule::KIND_NOT_SET) {
    config->mutable_constant();
  }
}

void CheckSchedule(const config::LearningRateSchedule& config,
                   const ConfigProblems& problems) {
  problems.Range("warmup_steps", config.warmup_steps(), 0, kStepsMax);
  if (config.has_step()) {
    const ConfigProblems step = problems.In("step");
    if (config.step().has_every_epochs()) {
      step.AboveZero("every_epochs", config.step().every_epochs());
    } else {
      step.Add("every_epochs",
               "is missing; above 0 is required, as in every_epochs: 2");
    }
    step.AboveZero("factor", config.step().factor());
  }
  if (config.has_cosine()) {
    const double factor = config.cosine().final_factor();
    problems.In("cosine").Require(factor >= 0 && factor <= 1, "final_factor",
                                  factor, "0 to 1");
  }
}

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(
    const config::LearningRateSchedule& config, const JobLength& length) {
  const ConfigProblems problems;
  problems.Require(length.steps_total >= 1, "steps_total", length.steps_total,
                   "at least 1");
  problems.Require(length.steps_per_epoch >= 1, "steps_per_epoch",
                   length.steps_per_epoch, "at least 1");
  CheckSchedule(config, problems.In("schedule"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  return LearningRateSchedule(config, length);
}

double LearningRateSchedule::FactorAt(Clock clock) const {
  SL_CHECK(clock >= 0, absl::StrCat("clock is ", clock));
  const int64_t warmup = config_.warmup_steps();
  if (clock < warmup) {
    return static_cast<double>(clock + 1) / static_cast<double>(warmup);
  }
  const double t = static_cast<double>(clock - warmup);
  if (config_.has_step()) {
    const double period = config_.step().every_epochs() *
                          static_cast<double>(length_.steps_per_epoch);
    // The small number keeps a period such as 0.55 * 100, slightly more than
    // 55, from ending one step late.
    return std::pow(config_.step().factor(), std::floor(t / period + 1e-9));
  }
  if (config_.has_cosine()) {
    const double last = static_cast<double>(length_.steps_total - 1 - warmup);
    const double progress = last > 0 ? std::min(t / last, 1.0) : 0;
    const double final_factor = config_.cosine().final_factor();
    return final_factor +
           (1 - final_factor) * (1 + std::cos(kPi * progress)) / 2;
  }
  return 1;
}

}  // namespace slackline
