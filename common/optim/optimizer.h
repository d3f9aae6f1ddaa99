// The arithmetic of SGD, Adam and other rules, for servers and all-reduce
// workers alike.
//
// What a step computes is what torch.optim of PyTorch 1.13 computes, with
// Adagrad's lr_decay 0; and Lion, which is not in it. The formulas with their
// sources are in rules/*-inl.h, one file each: there p is a parameter, g its
// gradient with weight decay d as an L2 penalty (g + d p, where it is not
// decoupled), r the learning rate, t the number of the update. What the config
// may say is in rules/*.cc.
//
// Every operation on an element is rounded to float by itself, in a fixed
// order, without fused multiply-add. So an element gets the same bits wherever
// a table is split into shards, at any alignment, in place or not, and on
// machines with vectors of any width.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/block/config_problems.h"
#include "common/optim/rules/rule_config.h"
#include "proto/optimizer.pb.h"

namespace slackline {

// Adds what is wrong with an optimizer, of a job or of a table.
void CheckOptimizer(const config::Optimizer& config,
                    const ConfigProblems& problems);

// The numbers of an optimizer that may be others in each update.
struct StepNumbers {
  double learning_rate = 0;  // With the schedule's factor.
  // It replaces Optimizer::momentum(). None: that one.
  std::optional<double> momentum = std::nullopt;
};

// Immutable; any thread may call anything at any time. The state belongs to the
// caller and starts as zeros.
class Optimizer {
 public:
  // InvalidArgument: what CheckOptimizer() says.
  static absl::StatusOr<Optimizer> Create(const config::Optimizer& config);

  static constexpr int kSlotsMax = optim::kSlotsMax;
  // Floats of state per parameter, as the formula of the rule has them: 0 for
  // sgd, 2 for adam, 3 with amsgrad.
  int slot_count() const;
  // The config's rate, to be multiplied by the schedule's factor.
  double learning_rate() const { return rule_->learning_rate(config_); }
  // Updates go up the gradients, which are those of something to be maximized.
  bool maximize() const { return config_.maximize(); }
  // The config's momentum, or its beta1: the number that an update may replace
  // by another one (StepNumbers). None: the rule has no such number, or one
  // that is the same in all updates.
  std::optional<double> momentum() const;
  // What is wrong with a number in its place; "" if an update may have it.
  std::string FaultOfMomentum(double momentum) const;

  struct ApplyArgs {
    // The parameters before and after. `out` is `in`, or overlaps with no
    // input.
    const float* in = nullptr;
    float* out = nullptr;
    // The first slot_count() are updated in place, in the order of the
    // formula's parameters (rules/*-inl.h).
    std::array<float*, kSlotsMax> slots = {};
    // One per gradient, at least one: `elements` little-endian floats each, at
    // any alignment (frames from the network have none).
    absl::Span<const std::byte* const> gradients;
    // Gets the sum of the gradients, without gradient_scale, unless it is null.
    // Overlaps with nothing else.
    float* sum = nullptr;
    size_t elements = 0;
    // g is ((gradient 0 + gradient 1) + gradient 2 ...) * gradient_scale.
    float gradient_scale = 1;
    // The rate is rounded to float. A momentum where the rule has none changes
    // nothing.
    StepNumbers numbers = {};
    int64_t update_count = 1;  // t of Adam: 1 for the first update.
  };
  // One pass over parameters, state and all gradients. A missing slot or
  // gradient, or an update_count below 1, is fatal. A parameter that is
  // infinite may become NaN.
  void Apply(const ApplyArgs& args) const;

  // What Apply computes, for those who compute it elsewhere (on a GPU): the
  // rule, and the numbers of one update. An update_count below 1 is fatal.
  optim::Rule rule() const { return formula_; }
  optim::Coefficients CoefficientsOf(const ApplyArgs& args) const;

 private:
  Optimizer(const optim::RuleConfig* rule, const config::Optimizer& config)
      : rule_(rule), config_(config), formula_(rule->formula(config)) {}

  const optim::RuleConfig* rule_;
  config::Optimizer config_;
  optim::Rule formula_;
};

}  // namespace slackline
