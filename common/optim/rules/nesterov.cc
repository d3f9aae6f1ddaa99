#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckNesterov(const config::Optimizer& config,
                   const ConfigProblems& problems) {
  CheckRates(config.nesterov(), problems);
  problems.FloatBelowOne("momentum", config.nesterov().momentum());
}

Coefficients CoefficientsOfNesterov(const config::Optimizer& config, float rate,
                                    int64_t /*update_count*/) {
  Coefficients c;
  c.rate = rate;
  c.weight_decay = static_cast<float>(config.nesterov().weight_decay());
  c.momentum = static_cast<float>(config.nesterov().momentum());
  return c;
}

}  // namespace

constinit const RuleConfig kNesterovConfig = {
    .kind = config::Optimizer::kNesterov,
    .rule = Rule::kNesterov,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.nesterov().learning_rate();
        },
    .check = &CheckNesterov,
    .coefficients = &CoefficientsOfNesterov};

}  // namespace slackline::optim
