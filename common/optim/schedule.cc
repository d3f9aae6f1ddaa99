#include "common/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "common/status.h"

namespace slackline {
namespace {

constexpr double kPi = 3.14159265358979323846;

template <typename Number>
absl::Status Refuse(absl::string_view field, Number value,
                    absl::string_view bound) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": value is ", value, ", ", bound, " is required"));
}

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(
    const config::LearningRateSchedule& config, const JobLength& length) {
  if (length.steps_total < 1) {
    return Refuse("steps_total", length.steps_total, "at least 1");
  }
  if (length.steps_per_epoch < 1) {
    return Refuse("steps_per_epoch", length.steps_per_epoch, "at least 1");
  }
  if (config.warmup_steps() < 0) {
    return Refuse("schedule.warmup_steps", config.warmup_steps(), "at least 0");
  }
  if (config.has_step()) {
    const config::StepSchedule& step = config.step();
    if (!step.has_every_epochs()) {
      return absl::InvalidArgumentError(
          "schedule.step.every_epochs: is not set, a number above 0 is "
          "required");
    }
    if (!(step.every_epochs() > 0)) {
      return Refuse("schedule.step.every_epochs", step.every_epochs(),
                    "a number above 0");
    }
    if (!(step.factor() > 0) || !std::isfinite(step.factor())) {
      return Refuse("schedule.step.factor", step.factor(),
                    "a finite number above 0");
    }
  }
  if (config.has_cosine()) {
    const double final_factor = config.cosine().final_factor();
    if (!(final_factor >= 0 && final_factor <= 1)) {
      return Refuse("schedule.cosine.final_factor", final_factor,
                    "at least 0 and at most 1");
    }
  }
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
