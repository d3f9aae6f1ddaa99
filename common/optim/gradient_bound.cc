#include "common/optim/gradient_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/optim/finite.h"
#include "common/optim/squares.h"

namespace slackline {
namespace {

constexpr int kWarmUpGradients = 100;
constexpr int kWarmUpMax = 1'000'000'000;
// No gradient of floats is larger.
constexpr double kRmsMax = std::numeric_limits<float>::max();

}  // namespace

void FillGradientBound(config::GradientBound* config) {
  if (config->has_times_running_rms() && !config->has_warm_up_gradients())
    config->set_warm_up_gradients(kWarmUpGradients);
}

void CheckGradientBound(const config::GradientBound& config,
                        const GradientBoundContext& context,
                        const ConfigProblems& problems) {
  if (!config.has_rms() && !config.has_times_running_rms()) {
    problems.Add(
        "",
        "has neither rms nor times_running_rms; give one, or leave the "
        "bound out");
  }
  if (config.has_rms()) {
    problems.Require(config.rms() > 0 && config.rms() <= kRmsMax, "rms",
                     config.rms(), "above 0 and at most the largest float",
                     "it is the root mean square of one shard's gradient");
  }
  if (config.has_times_running_rms()) {
    problems.Require(
        config.times_running_rms() > 1 && config.times_running_rms() <= kRmsMax,
        "times_running_rms", config.times_running_rms(),
        "above 1 and at most the largest float",
        "20 leaves room for gradients that differ much");
    problems.Range("warm_up_gradients", config.warm_up_gradients(), 1,
                   kWarmUpMax);
  } else if (config.has_warm_up_gradients()) {
    problems.Add("warm_up_gradients",
                 "is set without times_running_rms, which it is of; leave it "
                 "out, or give times_running_rms");
  }
  if (config.policy() == config::GradientBound::POLICY_UNSPECIFIED) {
    problems.Add("policy",
                 "value is POLICY_UNSPECIFIED; STOP or SKIP is required");
  }
  if (context.may_all_reduce) {
    problems.Add(
        "",
        "cannot hold: servers look at gradients, and steps by "
        "all-reduce pass them by; leave it out, or use bsp, ssp, dssp, "
        "asp or backup, without auto");
  }
}

void RunningRms::Add(double rms) {
  if (rms == 0) return;
  ++count_;
  mean_ += (rms - mean_) / static_cast<double>(std::min(count_, kWindow));
}

void RunningRmsOfParts::Add(const RunningRms& part, int64_t elements) {
  if (parts_++ == 0) {
    first_ = part;
    count_ = part.count();
  }
  count_ = std::min(count_, part.count());
  const auto weight = static_cast<double>(elements);
  squares_ += part.mean() * part.mean() * weight;
  elements_ += weight;
}

RunningRms RunningRmsOfParts::Whole() const {
  if (parts_ == 1) return first_;
  if (count_ == 0) return RunningRms();
  return RunningRms(std::sqrt(squares_ / elements_), count_);
}

GradientBound::GradientBound(const config::GradientBound& config)
    : warm_up_(static_cast<uint64_t>(config.warm_up_gradients())),
      stops_(config.policy() == config::GradientBound::STOP) {
  if (config.has_rms()) rms_ = config.rms();
  if (config.has_times_running_rms())
    times_running_ = config.times_running_rms();
}

std::optional<double> GradientBound::Measure(const std::byte* gradient,
                                             size_t elements) const {
  if (!any()) {
    if (!optim::AllFinite(gradient, elements)) return std::nullopt;
    return 0.0;
  }
  const double sum = optim::SumOfSquares(gradient, elements);
  if (!std::isfinite(sum)) return std::nullopt;
  return std::sqrt(sum / static_cast<double>(elements));
}

std::optional<GradientBound::Excess> GradientBound::Judge(
    double rms, const RunningRms& before) const {
  if (rms_.has_value() && rms > *rms_)
    return Excess{.rms = rms, .bound = *rms_, .running = std::nullopt};
  if (!times_running_.has_value() || before.count() < warm_up_)
    return std::nullopt;
  const double bound = *times_running_ * before.mean();
  if (rms <= bound) return std::nullopt;
  return Excess{.rms = rms, .bound = bound, .running = before.mean()};
}

}  // namespace slackline
