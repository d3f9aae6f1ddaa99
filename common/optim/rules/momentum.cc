#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckMomentum(const config::Optimizer& config,
                   const ConfigProblems& problems) {
  CheckRates(config.momentum(), problems);
  problems.FloatBelowOne("momentum", config.momentum().momentum());
}

Coefficients CoefficientsOfMomentum(const config::Optimizer& config, float rate,
                                    int64_t /*update_count*/) {
  Coefficients c;
  c.rate = rate;
  c.weight_decay = static_cast<float>(config.momentum().weight_decay());
  c.momentum = static_cast<float>(config.momentum().momentum());
  return c;
}

}  // namespace

constinit const RuleConfig kMomentumConfig = {
    .kind = config::Optimizer::kMomentum,
    .rule = Rule::kMomentum,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.momentum().learning_rate();
        },
    .check = &CheckMomentum,
    .coefficients = &CoefficientsOfMomentum};

}  // namespace slackline::optim
