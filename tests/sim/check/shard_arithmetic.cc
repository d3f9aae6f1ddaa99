#include "tests/sim/check/shard_arithmetic.h"

#include <algorithm>
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
  Tensor pushed = scenario_.Pushed(
      contribution.life.first, contribution.life.second, contribution.clock,
      range.table, range.region.begin(), range.region.end());
  // A negative zero may be left of a row by a code.
  if (scenario_.HasRows(range.table)) {
    const std::vector<bool> there = InRowsOf(range, pushed);
    for (size_t e = 0; e < pushed.size(); ++e) {
      if (!there[e]) pushed[e] = 0;
    }
  }
  return pushed;
}

std::vector<bool> ShardArithmetic::InRowsOf(const ShardRange& range,
                                            const Tensor& gradient) const {
  const int64_t width = scenario_.RowWidth(range.table);
  std::vector<bool> there;
  while (there.size() < gradient.size()) {
    const int64_t at =
        range.region.begin() + static_cast<int64_t>(there.size());
    const Region row = range.region.Overlap({at, (at / width + 1) * width});
    const auto first = gradient.begin() + (at - range.region.begin());
    const bool any = std::any_of(first, first + row.size(),
                                 [](float element) { return element != 0; });
    there.insert(there.end(), static_cast<size_t>(row.size()), any);
  }
  return there;
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
  std::vector<float> floats =
      GradientOf(range, contribution, /*by_all_reduce=*/false);
  if (scenario_.HasRows(range.table)) {
    const std::vector<bool> there = InRowsOf(range, floats);
    size_t next = 0;
    std::erase_if(floats, [&](float) { return !there[next++]; });
    if (floats.empty()) return 0;
  }
  const std::optional<double> rms = scenario_.MakeGradientBound().Measure(
      reinterpret_cast<const std::byte*>(floats.data()), floats.size());
  SL_CHECK(rms.has_value(), "a gradient of the simulation is not finite");
  return *rms;
}

// Rows of which no gradient has anything stay as they are.
Tensor ShardArithmetic::Apply(const ShardRange& range, Version from,
                              const Tensor& values, Versions* slots,
                              const TwinUpdate& update) const {
  if (!scenario_.HasRows(range.table))
    return ApplyToAll(range, from, values, slots, update);
  std::vector<bool> touched(values.size());
  for (const Contribution& contribution : update.contributions) {
    const std::vector<bool> there =
        InRowsOf(range, GradientOf(range, contribution, update.by_all_reduce));
    for (size_t e = 0; e < there.size(); ++e) {
      if (there[e]) touched[e] = true;
    }
  }
  const Versions slots_before = *slots;
  Tensor next = ApplyToAll(range, from, values, slots, update);
  for (size_t e = 0; e < next.size(); ++e) {
    if (touched[e]) continue;
    next[e] = values[e];
    for (size_t slot = 0; slot < slots->size(); ++slot)
      (*slots)[slot][e] = slots_before[slot][e];
  }
  return next;
}

// The rate is that of the table's optimizer times what the schedule, the first
// of the gradients and the rule for stale ones make of it. Of SGD and momentum:
// values - n / divisor * rate * step, where step is the mean of the n
// gradients, and with momentum the sum of that and what the slot has. The
// arithmetic of the other rules is the product's; other tests compare it with
// LibTorch's.
Tensor ShardArithmetic::ApplyToAll(const ShardRange& range, Version from,
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
