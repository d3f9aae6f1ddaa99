// The blocks of adam and adamw, which have the same fields and one formula.
#include "common/optim/rules/betas.h"

namespace slackline::optim {
namespace {

// All but the weight decay.
template <typename Block>
Coefficients CoefficientsOf(const Block& block, const RuleStep& step) {
  const double correction1 = BiasCorrection(step.momentum, step.update_count);
  const double correction2 = BiasCorrection(block.beta2(), step.update_count);
  Coefficients c = CoefficientsOfBetas(block, step);
  c.rate = static_cast<float>(static_cast<double>(step.rate) / correction1);
  c.root_scale = static_cast<float>(1 / std::sqrt(correction2));
  c.epsilon = static_cast<float>(block.epsilon());
  return c;
}

template <typename Block>
Rule FormulaOf(const Block& block) {
  return block.amsgrad() ? Rule::kAmsgrad : Rule::kAdam;
}

Coefficients CoefficientsOfAdam(const config::Optimizer& config,
                                const RuleStep& step) {
  Coefficients c = CoefficientsOf(config.adam(), step);
  c.weight_decay = static_cast<float>(config.adam().weight_decay());
  return c;
}

Coefficients CoefficientsOfAdamw(const config::Optimizer& config,
                                 const RuleStep& step) {
  Coefficients c = CoefficientsOf(config.adamw(), step);
  c.keep = KeepOf(step.rate, config.adamw().weight_decay());
  return c;
}

}  // namespace

constinit const RuleConfig kAdamConfig = {
    .kind = config::Optimizer::kAdam,
    .formula =
        [](const config::Optimizer& config) {
          return FormulaOf(config.adam());
        },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adam().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.adam().beta1();
    },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetasAndEpsilon(config.adam(), problems);
        },
    .coefficients = &CoefficientsOfAdam};

constinit const RuleConfig kAdamwConfig = {
    .kind = config::Optimizer::kAdamw,
    .formula =
        [](const config::Optimizer& config) {
          return FormulaOf(config.adamw());
        },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.adamw().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.adamw().beta1();
    },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetasAndEpsilon(config.adamw(), problems);
        },
    .coefficients = &CoefficientsOfAdamw};

}  // namespace slackline::optim
