// The blocks of adam and adamw, which have the same fields and one formula.
#include <cmath>

#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

template <typename Block>
void CheckBlock(const Block& block, const ConfigProblems& problems) {
  CheckRates(block, problems);
  problems.FloatBelowOne("beta1", block.beta1());
  problems.FloatBelowOne("beta2", block.beta2());
  // Without it, a parameter whose gradients are all 0 becomes 0 / 0.
  problems.FloatAboveZero("epsilon", block.epsilon());
}

// All but the weight decay.
template <typename Block>
Coefficients CoefficientsOf(const Block& block, float rate,
                            int64_t update_count) {
  const double t = static_cast<double>(update_count);
  const double correction1 = 1 - std::pow(block.beta1(), t);
  const double correction2 = 1 - std::pow(block.beta2(), t);
  Coefficients c;
  c.rate = static_cast<float>(static_cast<double>(rate) / correction1);
  c.beta1 = static_cast<float>(block.beta1());
  c.one_minus_beta1 = static_cast<float>(1 - block.beta1());
  c.beta2 = static_cast<float>(block.beta2());
  c.one_minus_beta2 = static_cast<float>(1 - block.beta2());
  c.root_scale = static_cast<float>(1 / std::sqrt(correction2));
  c.epsilon = static_cast<float>(block.epsilon());
  return c;
}

Coefficients CoefficientsOfAdam(const config::Optimizer& config, float rate,
                                int64_t update_count) {
  Coefficients c = CoefficientsOf(config.adam(), rate, update_count);
  c.weight_decay = static_cast<float>(config.adam().weight_decay());
  return c;
}

Coefficients CoefficientsOfAdamw(const config::Optimizer& config, float rate,
                                 int64_t update_count) {
  Coefficients c = CoefficientsOf(config.adamw(), rate, update_count);
  c.keep = static_cast<float>(1 - static_cast<double>(rate) *
                                      config.adamw().weight_decay());
  return c;
}

}  // namespace

constinit const RuleConfig kAdamConfig = {
    .kind = config::Optimizer::kAdam,
    .rule = Rule::kAdam,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adam().learning_rate();
        },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBlock(config.adam(), problems);
        },
    .coefficients = &CoefficientsOfAdam};

constinit const RuleConfig kAdamwConfig = {
    .kind = config::Optimizer::kAdamw,
    .rule = Rule::kAdam,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adamw().learning_rate();
        },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBlock(config.adamw(), problems);
        },
    .coefficients = &CoefficientsOfAdamw};

}  // namespace slackline::optim
