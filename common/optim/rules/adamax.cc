#include "common/optim/rules/betas.h"

namespace slackline::optim {
namespace {

Coefficients CoefficientsOfAdamax(const config::Optimizer& config,
                                  const RuleStep& step) {
  Coefficients c = CoefficientsOfBetas(config.adamax(), step);
  c.rate = static_cast<float>(static_cast<double>(step.rate) /
                              BiasCorrection(step.momentum, step.update_count));
  c.weight_decay = static_cast<float>(config.adamax().weight_decay());
  c.epsilon = static_cast<float>(config.adamax().epsilon());
  return c;
}

}  // namespace

constinit const RuleConfig kAdamaxConfig = {
    .kind = config::Optimizer::kAdamax,
    .formula = [](const config::Optimizer&) { return Rule::kAdamax; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adamax().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.adamax().beta1();
    },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetasAndEpsilon(config.adamax(), problems);
        },
    .coefficients = &CoefficientsOfAdamax};

}  // namespace slackline::optim
