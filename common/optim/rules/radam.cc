// radam: adam whose rate is rectified by how many gradients the second moment
// is the mean of; as long as that is less than 5, it is not divided by. Liu et
// al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond". As in
// PyTorch, epsilon is added before the division by sqrt(1 - beta2^t).
//
// Everything that depends on t is in the numbers of an update, so the formula
// is that of adam: without the division, the root counts 0 and epsilon is 1.
#include "common/optim/rules/betas.h"

namespace slackline::optim {
namespace {

Coefficients CoefficientsOfRadam(const config::Optimizer& config,
                                 const RuleStep& step) {
  const config::RAdam& block = config.radam();
  const auto t = static_cast<double>(step.update_count);
  const double correction1 = BiasCorrection(step.momentum, step.update_count);
  const double correction2 = BiasCorrection(block.beta2(), step.update_count);
  Coefficients c = CoefficientsOfBetas(block, step);
  SetWeightDecay(block, step.rate, &c);
  const double rate = static_cast<double>(step.rate) / correction1;
  const double rho_max = 2 / (1 - block.beta2()) - 1;
  const double rho = rho_max - 2 * t * std::pow(block.beta2(), t) / correction2;
  if (rho > 5) {
    const double rectified = std::sqrt((rho - 4) * (rho - 2) * rho_max /
                                       ((rho_max - 4) * (rho_max - 2) * rho));
    c.rate = static_cast<float>(rate * rectified * std::sqrt(correction2));
    c.epsilon = static_cast<float>(block.epsilon());
  } else {
    c.rate = static_cast<float>(rate);
    c.root_scale = 0;
    c.epsilon = 1;
  }
  return c;
}

}  // namespace

constinit const RuleConfig kRadamConfig = {
    .kind = config::Optimizer::kRadam,
    .formula = [](const config::Optimizer&) { return Rule::kAdam; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.radam().learning_rate();
        },
    .momentum = [](const config::Optimizer& config) -> std::optional<double> {
      return config.radam().beta1();
    },
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetasAndEpsilon(config.radam(), problems);
        },
    .coefficients = &CoefficientsOfRadam};

}  // namespace slackline::optim
