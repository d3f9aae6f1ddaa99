// The optimizer rules by name, and the numbers that one update is computed
// with. Free of everything but the language, so that nvcc compiles it, too.
#pragma once

namespace slackline::optim {

// A formula: rules/*-inl.h has one each. Adam's is AdamW's, too.
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

}  // namespace slackline::optim
