#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckAdadelta(const config::Optimizer& config,
                   const ConfigProblems& problems) {
  CheckRates(config.adadelta(), problems);
  problems.FloatBelowOne("rho", config.adadelta().rho());
  // Without it, the first d is 0, and all that follow.
  problems.FloatAboveZero("epsilon", config.adadelta().epsilon());
}

Coefficients CoefficientsOfAdadelta(const config::Optimizer& config,
                                    const RuleStep& step) {
  const config::Adadelta& block = config.adadelta();
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(block.weight_decay());
  c.beta2 = static_cast<float>(block.rho());
  c.one_minus_beta2 = static_cast<float>(1 - block.rho());
  c.epsilon = static_cast<float>(block.epsilon());
  return c;
}

}  // namespace

constinit const RuleConfig kAdadeltaConfig = {
    .kind = config::Optimizer::kAdadelta,
    .formula = [](const config::Optimizer&) { return Rule::kAdadelta; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adadelta().learning_rate();
        },
    .momentum = nullptr,
    .check = &CheckAdadelta,
    .coefficients = &CoefficientsOfAdadelta};

}  // namespace slackline::optim
