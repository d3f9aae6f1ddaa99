#include "common/optim/rules/betas.h"

namespace slackline::optim {
namespace {

Coefficients CoefficientsOfLion(const config::Optimizer& config,
                                const RuleStep& step) {
  Coefficients c = CoefficientsOfBetas(config.lion(), step);
  c.keep = KeepOf(step.rate, config.lion().weight_decay());
  return c;
}

}  // namespace

constinit const RuleConfig kLionConfig = {
    .kind = config::Optimizer::kLion,
    .formula = [](const config::Optimizer&) { return Rule::kLion; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.lion().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.lion().beta1();
    },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetas(config.lion(), problems);
        },
    .coefficients = &CoefficientsOfLion};

}  // namespace slackline::optim
