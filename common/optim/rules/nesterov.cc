#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckNesterov(const config::Optimizer& config,
                   const ConfigProblems& problems) {
  CheckRates(config.nesterov(), problems);
  problems.FloatBelowOne("momentum", config.nesterov().momentum());
}

Coefficients CoefficientsOfNesterov(const config::Optimizer& config,
                                    const RuleStep& step) {
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(config.nesterov().weight_decay());
  c.momentum = static_cast<float>(step.momentum);
  return c;
}

}  // namespace

constinit const RuleConfig kNesterovConfig = {
    .kind = config::Optimizer::kNesterov,
    .formula = [](const config::Optimizer&) { return Rule::kNesterov; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.nesterov().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.nesterov().momentum();
    },
    .momentum_is_above_zero = true,
    .check = &CheckNesterov,
    .coefficients = &CoefficientsOfNesterov};

}  // namespace slackline::optim
