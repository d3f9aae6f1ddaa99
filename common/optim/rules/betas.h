// What the blocks of adam and its kin have in common: the rates, beta1, beta2
// and, but for lion, epsilon.
#pragma once

#include <cmath>

#include "common/optim/rules/rule_config.h"

namespace slackline::optim {

template <typename Block>
void CheckBetas(const Block& block, const ConfigProblems& problems) {
  CheckRates(block, problems);
  problems.FloatBelowOne("beta1", block.beta1());
  problems.FloatBelowOne("beta2", block.beta2());
}

template <typename Block>
void CheckBetasAndEpsilon(const Block& block, const ConfigProblems& problems) {
  CheckBetas(block, problems);
  // A parameter whose gradients are all 0 becomes 0 / 0 with an epsilon of 0.
  problems.FloatAboveZero("epsilon", block.epsilon());
}

// beta1, beta2 and what they leave to 1. The step's momentum is beta1.
template <typename Block>
Coefficients CoefficientsOfBetas(const Block& block, const RuleStep& step) {
  Coefficients c;
  c.rate = step.rate;
  c.beta1 = static_cast<float>(step.momentum);
  c.one_minus_beta1 = static_cast<float>(1 - step.momentum);
  c.beta2 = static_cast<float>(block.beta2());
  c.one_minus_beta2 = static_cast<float>(1 - block.beta2());
  return c;
}

// 1 - beta^t: what a mean of t gradients that began with 0 is too small by.
inline double BiasCorrection(double beta, int64_t update_count) {
  return 1 - std::pow(beta, static_cast<double>(update_count));
}

// The factor by which a decoupled weight decay makes the parameter smaller.
inline float KeepOf(float rate, double weight_decay) {
  return static_cast<float>(1 - static_cast<double>(rate) * weight_decay);
}

// One of the two, as the block says.
template <typename Block>
void SetWeightDecay(const Block& block, float rate, Coefficients* c) {
  if (block.decoupled_weight_decay()) {
    c->keep = KeepOf(rate, block.weight_decay());
  } else {
    c->weight_decay = static_cast<float>(block.weight_decay());
  }
}

}  // namespace slackline::optim
