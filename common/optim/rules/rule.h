// The optimizer rules by name, and the numbers that one update is computed
// with. Free of everything but the language, so that nvcc compiles it, too.
#pragma once

namespace slackline::optim {

// A formula: rules/*-inl.h has them. Several rules of a config may have one:
// Adam's is AdamW's and RAdam's, too.
enum class Rule {
  kSgd,
  kMomentum,
  kDampenedMomentum,
  kNesterov,
  kAdagrad,
  kAdam,
  kAmsgrad,
  kNadam,
  kAdamax,
  kAdadelta,
  kRmsprop,
  kRmspropMomentum,
  kCenteredRmsprop,
  kCenteredRmspropMomentum,
  kLion,
};
inline constexpr Rule kRules[] = {Rule::kSgd,
                                  Rule::kMomentum,
                                  Rule::kDampenedMomentum,
                                  Rule::kNesterov,
                                  Rule::kAdagrad,
                                  Rule::kAdam,
                                  Rule::kAmsgrad,
                                  Rule::kNadam,
                                  Rule::kAdamax,
                                  Rule::kAdadelta,
                                  Rule::kRmsprop,
                                  Rule::kRmspropMomentum,
                                  Rule::kCenteredRmsprop,
                                  Rule::kCenteredRmspropMomentum,
                                  Rule::kLion};

// No formula has more slots.
inline constexpr int kSlotsMax = 3;

// The numbers of one update, already rounded to float. A rule reads those that
// its formula has.
struct Coefficients {
  float gradient_scale = 1;  // Negative: the update goes up the gradient.
  float weight_decay = 0;    // L2.
  float keep = 1;            // The parameter is first multiplied by this.
  float rate = 0;            // Adam and its kin: divided by 1 - beta1^t.
  float gradient_rate = 0;   // NAdam: the rate of the gradient itself.
  float momentum = 0;
  float one_minus_dampening = 1;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;  // Also RMSprop's alpha and Adadelta's rho.
  float one_minus_beta2 = 0;
  float root_scale = 1;  // Adam: 1 / sqrt(1 - beta2^t).
  float epsilon = 0;
};

}  // namespace slackline::optim
