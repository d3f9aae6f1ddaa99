#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckSgd(const config::Optimizer& config, const ConfigProblems& problems) {
  CheckRates(config.sgd(), problems);
}

Coefficients CoefficientsOfSgd(const config::Optimizer& config, float rate,
                               int64_t /*update_count*/) {
  Coefficients c;
  c.rate = rate;
  c.weight_decay = static_cast<float>(config.sgd().weight_decay());
  return c;
}

}  // namespace

constinit const RuleConfig kSgdConfig = {
    .kind = config::Optimizer::kSgd,
    .rule = Rule::kSgd,
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.sgd().learning_rate();
        },
    .check = &CheckSgd,
    .coefficients = &CoefficientsOfSgd};

}  // namespace slackline::optim
