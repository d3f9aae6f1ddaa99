#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

Rule FormulaOfRmsprop(const config::Optimizer& config) {
  const bool momentum = config.rmsprop().momentum() != 0;
  if (config.rmsprop().centered()) {
    return momentum ? Rule::kCenteredRmspropMomentum : Rule::kCenteredRmsprop;
  }
  return momentum ? Rule::kRmspropMomentum : Rule::kRmsprop;
}

void CheckRmsprop(const config::Optimizer& config,
                  const ConfigProblems& problems) {
  CheckRates(config.rmsprop(), problems);
  problems.FloatBelowOne("alpha", config.rmsprop().alpha());
  // Without it, a parameter whose gradients are all 0 becomes 0 / 0.
  problems.FloatAboveZero("epsilon", config.rmsprop().epsilon());
  problems.FloatBelowOne("momentum", config.rmsprop().momentum());
}

Coefficients CoefficientsOfRmsprop(const config::Optimizer& config,
                                   const RuleStep& step) {
  const config::Rmsprop& block = config.rmsprop();
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(block.weight_decay());
  c.momentum = static_cast<float>(step.momentum);
  c.beta2 = static_cast<float>(block.alpha());
  c.one_minus_beta2 = static_cast<float>(1 - block.alpha());
  c.epsilon = static_cast<float>(block.epsilon());
  return c;
}

}  // namespace

constinit const RuleConfig kRmspropConfig = {
    .kind = config::Optimizer::kRmsprop,
    .formula = &FormulaOfRmsprop,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.rmsprop().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      if (config.rmsprop().momentum() == 0) return std::nullopt;
      return config.rmsprop().momentum();
    },
    .momentum_is_above_zero = true,
    .check = &CheckRmsprop,
    .coefficients = &CoefficientsOfRmsprop};

}  // namespace slackline::optim
