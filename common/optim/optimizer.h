// The arithmetic of SGD, momentum, Nesterov, AdaGrad, Adam and AdamW, for
// servers and all-reduce workers alike.
//
// What a step computes is what torch::optim of PyTorch 1.13 computes, with
// dampening 0, lr_decay 0 and no amsgrad. p is a parameter, g its gradient with
// weight decay d as an L2 penalty (g + d p, but for AdamW), r the learning
// rate:
//
//   sgd       p -= r g
//   momentum  v = momentum v + g; p -= r v
//   nesterov  v = momentum v + g; p -= r (g + momentum v)
//             (Sutskever et al. 2013, in the form that PyTorch uses)
//   adagrad   s += g^2; p -= r g / (sqrt(s) + epsilon)
//             (Duchi et al. 2011)
//   adam      m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
//             p -= r (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
//             (Kingma and Ba 2015)
//   adamw     p *= 1 - r d, then adam (Loshchilov and Hutter 2019)
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
#include "common/optim/formulas.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Immutable; any thread may call anything at any time. The state belongs to the
// caller and starts as zeros.
class Optimizer {
 public:
  // InvalidArgument names the field, its value and its bound.
  static absl::StatusOr<Optimizer> Create(const config::Optimizer& config);

  // Floats of state per parameter: 0 (sgd), 2 (adam, adamw), 1 (the others).
  int slot_count() const;
  // The config's rate, to be multiplied by the schedule's factor.
  double learning_rate() const { return learning_rate_; }

  struct ApplyArgs {
    // The parameters before and after. `out` is `in`, or overlaps with no
    // input.
    const float* in = nullptr;
    float* out = nullptr;
    // The first slot_count() are updated in place. Momentum and AdaGrad have
    // their v or s in the first; Adam has m in the first and v in the second.
    std::array<float*, 2> slots = {};
    // One per gradient, at least one: `elements` little-endian floats each, at
    // any alignment (frames from the network have none).
    absl::Span<const std::byte* const> gradients;
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
  optim::Rule rule() const;
  optim::Coefficients CoefficientsOf(const ApplyArgs& args) const;

 private:
  enum class Kind { kSgd, kMomentum, kNesterov, kAdagrad, kAdam, kAdamW };

  explicit Optimizer(Kind kind) : kind_(kind) {}

  Kind kind_;
  double learning_rate_ = 0;
  double weight_decay_ = 0;
  double momentum_ = 0;
  double beta1_ = 0;
  double beta2_ = 0;
  double epsilon_ = 0;
};

}  // namespace slackline
