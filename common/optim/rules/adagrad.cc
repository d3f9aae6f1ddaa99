#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckAdagrad(const config::Optimizer& config,
                  const ConfigProblems& problems) {
  CheckRates(config.adagrad(), problems);
  // Without it, a parameter whose gradients are all 0 becomes 0 / 0.
  problems.FloatAboveZero("epsilon", config.adagrad().epsilon());
}

Coefficients CoefficientsOfAdagrad(const config::Optimizer& config,
                                   const RuleStep& step) {
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(config.adagrad().weight_decay());
  c.epsilon = static_cast<float>(config.adagrad().epsilon());
  return c;
}

}  // namespace

constinit const RuleConfig kAdagradConfig = {
    .kind = config::Optimizer::kAdagrad,
    .formula = [](const config::Optimizer&) { return Rule::kAdagrad; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adagrad().learning_rate();
        },
    .momentum = nullptr,
    .check = &CheckAdagrad,
    .coefficients = &CoefficientsOfAdagrad};

}  // namespace slackline::optim
