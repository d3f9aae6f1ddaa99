#include "common/optim/rules/rule_config.h"

namespace slackline::optim {
namespace {

void CheckMomentum(const config::Optimizer& config,
                   const ConfigProblems& problems) {
  CheckRates(config.momentum(), problems);
  problems.FloatBelowOne("momentum", config.momentum().momentum());
  const double dampening = config.momentum().dampening();
  problems.Require(dampening >= 0 && dampening <= 1, "dampening", dampening,
                   "0 to 1");
}

Coefficients CoefficientsOfMomentum(const config::Optimizer& config,
                                    const RuleStep& step) {
  Coefficients c;
  c.rate = step.rate;
  c.weight_decay = static_cast<float>(config.momentum().weight_decay());
  c.momentum = static_cast<float>(step.momentum);
  // PyTorch begins with the whole first gradient.
  if (step.update_count > 1) {
    c.one_minus_dampening =
        static_cast<float>(1 - config.momentum().dampening());
  }
  return c;
}

}  // namespace

constinit const RuleConfig kMomentumConfig = {
    .kind = config::Optimizer::kMomentum,
    .formula =
        [](const config::Optimizer& config) {
          return config.momentum().dampening() == 0 ? Rule::kMomentum
                                                    : Rule::kDampenedMomentum;
        },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.momentum().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.momentum().momentum();
    },
    .momentum_is_above_zero = true,
    .check = &CheckMomentum,
    .coefficients = &CoefficientsOfMomentum};

}  // namespace slackline::optim
