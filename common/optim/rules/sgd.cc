#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckSgd(const config::Optimizer& config, const ConfigProblems& problems) {
  CheckRates(config.sgd(), problems);
}

Coefficients CoefficientsOfSgd(const config::Optimizer& config,
                               const RuleStep& step) {
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(config.sgd().weight_decay());
  return c;
}

}  // namespace

constinit const RuleConfig kSgdConfig = {
    .kind = config::Optimizer::kSgd,
    .formula = [](const config::Optimizer&) { return Rule::kSgd; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.sgd().learning_rate();
        },
    .momentum = nullptr,
    .check = &CheckSgd,
    .coefficients = &CoefficientsOfSgd};

}  // namespace slackline::optim
