// What gradients make of a shard, in plain float arithmetic.
#pragma once

#include <cstddef>
#include <vector>

#include "common/optim/optimizer.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class ShardArithmetic {
 public:
  explicit ShardArithmetic(const Scenario& scenario);

  Tensor GradientOf(const ShardRange& range, const Contribution& contribution,
                    bool by_all_reduce) const;
  // The size of a gradient, as servers see it; 0 without a bound.
  double SizeOf(const ShardRange& range,
                const Contribution& contribution) const;
  // The values after version `from` with these values; `*slots` becomes what
  // comes after.
  Tensor Apply(const ShardRange& range, Version from, const Tensor& values,
               Versions* slots, const TwinUpdate& update) const;
  const Optimizer& OptimizerOf(TableId table) const {
    return optimizers_[static_cast<size_t>(table)];
  }

 private:
  // The sum of the update's gradients.
  Tensor SumOf(const ShardRange& range, const TwinUpdate& update) const;
  // As if the update were one of each element.
  Tensor ApplyToAll(const ShardRange& range, Version from, const Tensor& values,
                    Versions* slots, const TwinUpdate& update) const;
  // Of a table by rows: which elements are in rows that the gradient has. Those
  // are the ones in which something is not zero.
  std::vector<bool> InRowsOf(const ShardRange& range,
                             const Tensor& gradient) const;

  const Scenario& scenario_;
  std::vector<Optimizer> optimizers_;  // By table, as the scenario has them.
};

}  // namespace slackline::sim
