#include "worker/conditions/pacer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace slackline {
namespace {

// Inverse transform sampling from a uniform number in [0, 1).
double Draw(const config::RandomSlowdown& random, double uniform) {
  switch (random.distribution()) {
    case config::RandomSlowdown::UNIFORM:
      return 2 * random.mean() * uniform;
    case config::RandomSlowdown::PARETO:
      // With shape 2 the mean is twice the smallest value.
      return random.mean() / 2 / std::sqrt(1 - uniform);
    default:
      return -random.mean() * std::log1p(-uniform);
  }
}

}  // namespace

double Pacer::FactorAt(Clock step, absl::Duration since_start) const {
  const config::Conditions& conditions = options_.conditions;
  if (conditions.has_random()) {
    Rng rng = Rng(options_.seed)
                  .Fork(absl::StrCat("slowdown of rank ",
                                     static_cast<int32_t>(options_.rank),
                                     " in step ", step));
    return options_.slowdown * (1 + Draw(conditions.random(), rng.Uniform()));
  }
  if (conditions.has_periodic()) {
    const config::PeriodicSlowdown& periodic = conditions.periodic();
    const double ms =
        absl::ToDoubleMilliseconds(since_start) - periodic.offset_ms();
    const double period_ms = periodic.slow_ms() + periodic.fast_ms();
    const bool slow = ms >= 0 && std::fmod(ms, period_ms) < periodic.slow_ms();
    return options_.slowdown * (slow ? periodic.factor() : 1);
  }
  return options_.slowdown;
}

absl::Duration Pacer::SleepBefore(Clock step, absl::Duration compute,
                                  absl::Duration since_start) {
  const absl::Duration least =
      absl::Milliseconds(options_.conditions.step_ms());
  absl::Duration sleep =
      std::max(least, compute) * FactorAt(step, since_start) - compute;
  if (step != last_step_) {
    for (const config::Pause& pause : options_.conditions.pause()) {
      if (pause.step() == step) sleep += absl::Milliseconds(pause.ms());
    }
  }
  last_step_ = step;
  return sleep;
}

}  // namespace slackline
