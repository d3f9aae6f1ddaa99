#include "tests/sim/check/shard_arithmetic.h"

#include <utility>

#include "common/status.h"

namespace slackline::sim {

ShardArithmetic::ShardArithmetic(const Scenario& scenario)
    : scenario_(scenario) {
  for (size_t t = 0; t < scenario.table_elements.size(); ++t) {
    absl::StatusOr<Optimizer> optimizer = Optimizer::Create(
        scenario.OptimizerOf(TableId{static_cast<int32_t>(t)}));
    SL_CHECK(optimizer.ok(), optimizer.status().ToString());
    optimizers_.push_back(*std::move(optimizer));
  }
}

std::vector<float> ShardArithmetic::GradientOf(const ShardRange& range,
                                               const Contribution& contribution,
                                               bool by_all_reduce) const {
  if (by_all_reduce) {
    return scenario_.Gradient(contribution.life.first, contribution.life.second,
                              contribution.clock, range.table,
                              range.region.begin(), range.region.end());
  }
  return scenario_.Pushed(contribution.life.first, contribution.life.second,
                          contribution.clock, range.table, range.region.begin(),
                          range.region.end());
}

Tensor ShardArithmetic::SumOf(const ShardRange& range,
                              const TwinUpdate& update) const {
  std::vector<float> sum =
      GradientOf(range, update.contributions.front(), update.by_all_reduce);
  for (size_t i = 1; i < update.contributions.size(); ++i) {
    const std::vector<float> gradient =
        GradientOf(range, update.contributions[i], update.by_all_reduce);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
  }
  if (update.gradient_factor != 1) {
    for (float& element : sum) element *= update.gradient_factor;
  }
  return sum;
}

double ShardArithmetic::SizeOf(const ShardRange& range,
                               const Contribution& contribution) const {
  if (!scenario_.gradient_bound.has_value()) return 0;
  const std::vector<float> floats =
      GradientOf(range, contribution, /*by_all_reduce=*/false);
  const std::optional<double> rms = scenario_.MakeGradientBound().Measure(
      reinterpret_cast<const std::byte*>(floats.data()), floats.size());
  SL_CHECK(rms.has_value(), "a gradient of the simulation is not finite");
  return *rms;
}

// The rate is that of the table's optimizer times what the schedule, the first
// of the gradients and the rule for stale ones make of it. Of SGD and momentum:
// values - n / divisor * rate * step, where step is the mean of the n
// gradients, and with momentum the sum of that and what the slot has. The
// arithmetic of the other rules is the product's; other tests compare it with
// LibTorch's.
Tensor ShardArithmetic::Apply(const ShardRange& range, Version from,
                              const Tensor& values, Versions* slots,
                              const TwinUpdate& update) const {
  const Tensor sum = SumOf(range, update);
  const auto count = static_cast<double>(update.contributions.size());
  const float scale = 1.0f / static_cast<float>(count);
  const Optimizer& optimizer = OptimizerOf(range.table);
  const Rank whose =
      update.by_all_reduce ? Rank{0} : update.contributions.front().life.first;
  const StepOptions options =
      scenario_.GradientOptions(whose, update.clock, range.table);
  const double factor = options.rate_factor * update.rate_factor;
  const double whole_rate =
      optimizer.learning_rate() * scenario_.RateFactorAt(update.clock) * factor;
  const float rate = static_cast<float>(whole_rate * count / update.divisor);
  const config::Optimizer& config = scenario_.OptimizerOf(range.table);
  std::vector<float> next = values;
  if (!config.has_momentum() &&
      (!config.has_sgd() || config.sgd().weight_decay() != 0)) {
    const auto* const gradient = reinterpret_cast<const std::byte*>(sum.data());
    Optimizer::ApplyArgs args;
    args.in = args.out = next.data();
    for (size_t slot = 0; slot < slots->size(); ++slot)
      args.slots[slot] = (*slots)[slot].data();
    args.gradients = absl::MakeConstSpan(&gradient, 1);
    args.elements = next.size();
    args.gradient_scale = scale;
    args.numbers = {.learning_rate = rate, .momentum = options.momentum};
    args.update_count = static_cast<int64_t>(from) + 1;
    optimizer.Apply(args);
    return next;
  }
  const float momentum = static_cast<float>(
      options.momentum.value_or(config.momentum().momentum()));
  for (size_t e = 0; e < next.size(); ++e) {
    float step = sum[e] * scale;
    if (config.has_momentum()) {
      const float decayed = momentum * slots->front()[e];
      step = decayed + step;
      slots->front()[e] = step;
    }
    next[e] -= rate * step;
  }
  return next;
}

}  // namespace slackline::sim
