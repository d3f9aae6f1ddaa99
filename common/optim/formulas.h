// What an update computes for one element, see optimizer.h: the formulas as
// CUDA's kernels and the tests have them. kernels.cc has them a second time,
// for vectors; optimizer_test holds the two together, bit for bit.
//
// Free of everything but the language, so that nvcc compiles it, too. Whoever
// compiles a call must keep products and sums apart (-ffp-contract=off for
// g++, --fmad=false for nvcc).
#pragma once

#include <cmath>
#include <cstddef>

#include "common/host_device.h"

namespace slackline::optim {

// What is computed for an element.
enum class Rule { kSgd, kMomentum, kNesterov, kAdagrad, kAdam };

// Floats of state per parameter.
constexpr int SlotCount(Rule rule) {
  return rule == Rule::kSgd ? 0 : rule == Rule::kAdam ? 2 : 1;
}

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

// A parameter and its state. Slots that the rule does not have are left alone.
struct Element {
  float parameter;
  float slots[2];
};

// One update. `sum` is that of the gradients, not yet scaled.
template <Rule kRule>
SL_HOST_DEVICE inline void UpdateElement(const Coefficients& c, float sum,
                                         Element& e) {
  float g = sum * c.gradient_scale;
  g = g + c.weight_decay * e.parameter;
  if constexpr (kRule == Rule::kSgd) {
    e.parameter = e.parameter - c.rate * g;
  } else if constexpr (kRule == Rule::kMomentum) {
    const float v = c.momentum * e.slots[0] + g;
    e.slots[0] = v;
    e.parameter = e.parameter - c.rate * v;
  } else if constexpr (kRule == Rule::kNesterov) {
    const float v = c.momentum * e.slots[0] + g;
    e.slots[0] = v;
    g = g + c.momentum * v;
    e.parameter = e.parameter - c.rate * g;
  } else if constexpr (kRule == Rule::kAdagrad) {
    const float s = e.slots[0] + g * g;
    e.slots[0] = s;
    const float root = ::sqrtf(s) + c.epsilon;
    e.parameter = e.parameter - c.rate * g / root;
  } else {
    const float m = c.beta1 * e.slots[0] + c.one_minus_beta1 * g;
    const float v = c.beta2 * e.slots[1] + c.one_minus_beta2 * g * g;
    e.slots[0] = m;
    e.slots[1] = v;
    const float root = ::sqrtf(v) * c.root_scale + c.epsilon;
    e.parameter = e.parameter * c.keep - c.rate * m / root;
  }
}

}  // namespace slackline::optim
