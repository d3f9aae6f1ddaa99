#include "worker/conditions/conditions_config.h"

#include <cmath>

#include "common/block/bounds.h"

namespace slackline {
namespace {

constexpr int kLatencyMsMax = 1000;
constexpr double kScaleMax = 1e30;

void CheckRandom(const config::RandomSlowdown& random,
                 const ConfigProblems& problems) {
  if (random.distribution() ==
      config::RandomSlowdown::DISTRIBUTION_UNSPECIFIED) {
    problems.Add("distribution",
                 "value is DISTRIBUTION_UNSPECIFIED; UNIFORM, EXPONENTIAL or "
                 "PARETO is required");
  }
  problems.Require(random.mean() > 0 && random.mean() <= kSlowdownMax, "mean",
                   random.mean(),
                   absl::StrCat("above 0 and at most ", kSlowdownMax),
                   "1 makes a step twice as long, on average");
}

void CheckPeriodic(const config::PeriodicSlowdown& periodic,
                   const ConfigProblems& problems) {
  if (periodic.has_factor()) {
    problems.Slowdown("factor", periodic.factor(), "the worker's own speed");
  } else {
    problems.Add("factor",
                 "is missing; how many times slower, as in factor: 4");
  }
  if (periodic.has_slow_ms()) {
    problems.AboveZero("slow_ms", periodic.slow_ms());
  } else {
    problems.Add("slow_ms",
                 "is missing; how long it is slow, as in slow_ms: 2000");
  }
  if (periodic.has_fast_ms()) {
    problems.AtLeastZero("fast_ms", periodic.fast_ms());
  } else {
    problems.Add("fast_ms",
                 "is missing; how long it is not slow, as in fast_ms: 8000");
  }
  problems.AtLeastZero("offset_ms", periodic.offset_ms());
}

void CheckPause(const config::Pause& pause, int stall_timeout_ms,
                const ConfigProblems& problems) {
  if (pause.has_step()) {
    problems.Range("step", pause.step(), 0, kStepsMax,
                   "the first step has the number 0");
  } else {
    problems.Add("step", "is missing; before which step, as in step: 300");
  }
  if (!pause.has_ms()) {
    return problems.Add("ms", "is missing; how long, as in ms: 5000");
  }
  // It would be removed for holding the others up.
  problems.Require(pause.ms() > 0 && pause.ms() < stall_timeout_ms, "ms",
                   pause.ms(),
                   absl::StrCat("above 0 and less than "
                                "limits.stall_timeout_ms (",
                                stall_timeout_ms, ")"));
}

void CheckLink(const config::Link& link, bool nccl,
               const ConfigProblems& problems) {
  problems.Require(link.latency_ms() >= 0 && link.latency_ms() <= kLatencyMsMax,
                   "latency_ms", link.latency_ms(),
                   absl::StrCat("0 to ", kLatencyMsMax));
  if (link.has_bandwidth_mbit()) {
    problems.AboveZero("bandwidth_mbit", link.bandwidth_mbit(),
                       "leave it out for no bound");
  } else if (link.latency_ms() == 0) {
    problems.Add("",
                 "has neither latency_ms nor bandwidth_mbit; give one, or "
                 "leave the link out");
  }
  if (nccl) {
    problems.Add("",
                 "cannot be: these workers all-reduce by NCCL, which knows no "
                 "such links; leave it out, or use bsp, ssp or asp");
  }
}

void CheckScale(const config::Conditions& conditions,
                const ConfigProblems& problems) {
  if (!conditions.has_scaled_by()) {
    if (conditions.scaled_at_step_size() > 0) {
      problems.Add("scaled_by",
                   "is missing; how many times larger the gradients of "
                   "scaled_at_step are, as in scaled_by: 1000");
    }
    return;
  }
  if (conditions.scaled_at_step_size() == 0) {
    problems.Add("scaled_by",
                 "is set without scaled_at_step; say in which steps, as in "
                 "scaled_at_step: 40, or leave it out");
  }
  const double scale = conditions.scaled_by();
  problems.Require(std::abs(scale) <= kScaleMax && scale != 0, "scaled_by",
                   scale,
                   absl::StrCat("not 0, and -", kScaleMax, " to ", kScaleMax));
}

}  // namespace

void CheckConditions(const config::Conditions& conditions,
                     const ConditionsContext& context,
                     const ConfigProblems& problems) {
  const double step_ms = conditions.step_ms();
  problems.Require(step_ms >= 0 && step_ms <= kHourMs, "step_ms", step_ms,
                   absl::StrCat("0 to ", kHourMs));
  if (conditions.has_random()) {
    CheckRandom(conditions.random(), problems.In("random"));
  }
  if (conditions.has_periodic()) {
    CheckPeriodic(conditions.periodic(), problems.In("periodic"));
  }
  for (int i = 0; i < conditions.pause_size(); ++i) {
    CheckPause(conditions.pause(i), context.stall_timeout_ms,
               problems.In("pause", i));
  }
  if (conditions.has_link()) {
    CheckLink(conditions.link(), context.nccl, problems.In("link"));
  }
  for (int i = 0; i < conditions.nonfinite_at_step_size(); ++i) {
    problems.Range(absl::StrCat("nonfinite_at_step[", i, "]"),
                   conditions.nonfinite_at_step(i), 0, kStepsMax);
  }
  if (conditions.has_stall_at_step()) {
    problems.Range("stall_at_step", conditions.stall_at_step(), 0, kStepsMax);
  }
  for (int i = 0; i < conditions.scaled_at_step_size(); ++i) {
    problems.Range(absl::StrCat("scaled_at_step[", i, "]"),
                   conditions.scaled_at_step(i), 0, kStepsMax);
  }
  CheckScale(conditions, problems);
  if (context.cuda && conditions.scaled_at_step_size() > 0) {
    problems.Add("scaled_at_step",
                 "is set for workers on GPUs; it works with device: CPU only");
  }
  if (context.cuda && conditions.nonfinite_at_step_size() > 0) {
    problems.Add("nonfinite_at_step",
                 "is set for workers on GPUs; it works with device: CPU only");
  }
}

}  // namespace slackline
