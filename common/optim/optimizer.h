// The arithmetic of SGD, momentum, Nesterov, AdaGrad, Adam and AdamW, for
// servers and all-reduce workers alike.
//
// What a step computes is what torch::optim of PyTorch 1.13 computes, with
// dampening 0, lr_decay 0 and no amsgrad. The formulas with their sources are
// in rules/*-inl.h, one file each: there p is a parameter, g its gradient with
// weight decay d as an L2 penalty (g + d p, but for AdamW), r the learning
// rate, t the number of the update. What the config may say is in rules/*.cc.
//
// Every operation on an element is rounded to float by itself, in a fixed
// order, without fused multiply-add. So an element gets the same bits wherever
// a table is cut into shards, at any alignment, in place or not, and on
// machines with vectors of any width.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/config/config_problems.h"
#include "common/optim/rules/rule_config.h"
#include "proto/optimizer.pb.h"

namespace slackline {

// Adds what is wrong with an optimizer, of a job or of a table.
void CheckOptimizer(const config::Optimizer& config,
                    const ConfigProblems& problems);

// Immutable; any thread may call anything at any time. The state belongs to the
// caller and starts as zeros.
class Optimizer {
 public:
  // InvalidArgument: what CheckOptimizer() says.
  static absl::StatusOr<Optimizer> Create(const config::Optimizer& config);

  static constexpr int kSlotsMax = 2;
  // Floats of state per parameter: 0 (sgd), 2 (adam, adamw), 1 (the others).
  int slot_count() const;
  // The config's rate, to be multiplied by the schedule's factor.
  double learning_rate() const { return rule_->learning_rate(config_); }

  struct ApplyArgs {
    // The parameters before and after. `out` is `in`, or overlaps with no
    // input.
    const float* in = nullptr;
    float* out = nullptr;
    // The first slot_count() are updated in place. Momentum and AdaGrad have
    // their v or s in the first; Adam has m in the first and v in the second.
    std::array<float*, kSlotsMax> slots = {};
    // One per gradient, at least one: `elements` little-endian floats each, at
    // any alignment (frames from the network have none).
    absl::Span<const std::byte* const> gradients;
    // If not null: gets the sum of the gradients, without gradient_scale.
    // Overlaps with nothing else.
    float* sum = nullptr;
    size_t elements = 0;
    // g is ((gradient 0 + gradient 1) + gradient 2 ...) * gradient_scale.
    float gradient_scale = 1;
    float learning_rate = 0;   // With the schedule's factor.
    int64_t update_count = 1;  // t of Adam: 1 for the first update.
  };
  // One pass over parameters, state and all gradients. A missing slot or
  // gradient, or an update_count below 1, is fatal. A parameter that is
  // infinite may become NaN.
  void Apply(const ApplyArgs& args) const;

  // What Apply computes, for those who compute it elsewhere (on a GPU): the
  // rule, and the numbers of one update. An update_count below 1 is fatal.
  optim::Rule rule() const { return rule_->rule; }
  optim::Coefficients CoefficientsOf(const ApplyArgs& args) const;

 private:
  Optimizer(const optim::RuleConfig* rule, const config::Optimizer& config)
      : rule_(rule), config_(config) {}

  const optim::RuleConfig* rule_;
  config::Optimizer config_;
};

}  // namespace slackline
