// The vector loops behind Optimizer. Internal to common/optim.
#pragma once

#include <array>
#include <cstddef>

#include "absl/types/span.h"

namespace slackline::optim {

// What is computed for an element; see optimizer.h for the formulas.
enum class Rule { kSgd, kMomentum, kNesterov, kAdagrad, kAdam };

// The numbers of one update, already rounded to float. A rule reads those that
// its formula has.
struct Coefficients {
  float gradient_scale = 1;
  float weight_decay = 0;  // L2.
  float keep = 1;          // Adam: the parameter is first multiplied by this.
  float rate = 0;          // Adam: divided by 1 - beta1^t.
  float momentum = 0;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float root_scale = 1;  // Adam: 1 / sqrt(1 - beta2^t).
  float epsilon = 0;
};

// Little-endian floats at any alignment. `out` is `in` or disjoint from it.
struct Operands {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::array<std::byte*, 2> slots =
      {};  // Those that the rule does not use: null.
  absl::Span<const std::byte* const> gradients;  // At least one.
};

void Update(Rule rule, const Coefficients& coefficients,
            const Operands& operands, size_t elements);

}  // namespace slackline::optim
