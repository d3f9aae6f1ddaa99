#include "common/optim/rules/betas.h"

namespace slackline::optim {
namespace {

// The base of PyTorch's momentum schedule.
constexpr double kDecayBase = 0.96;

// mu of update `t`.
double MomentumAt(const config::NAdam& block, double t) {
  return block.beta1() *
         (1 - 0.5 * std::pow(kDecayBase, t * block.momentum_decay()));
}

Coefficients CoefficientsOfNadam(const config::Optimizer& config,
                                 const RuleStep& step) {
  const config::NAdam& block = config.nadam();
  const auto t = static_cast<double>(step.update_count);
  const double rate = static_cast<double>(step.rate);
  const double mu = MomentumAt(block, t);
  const double mu_next = MomentumAt(block, t + 1);
  const double product = ProductOfMomenta(block, t);
  Coefficients c = CoefficientsOfBetas(
      block, {.rate = step.rate, .momentum = block.beta1()});
  SetWeightDecay(block, step.rate, &c);
  c.gradient_rate = static_cast<float>(rate * (1 - mu) / (1 - product));
  c.rate = static_cast<float>(rate * mu_next / (1 - product * mu_next));
  c.root_scale = static_cast<float>(
      1 / std::sqrt(BiasCorrection(block.beta2(), step.update_count)));
  c.epsilon = static_cast<float>(block.epsilon());
  return c;
}

}  // namespace

// mu_1 mu_2 ... mu_t for t updates, as a function of t: so it needs no state,
// and is the same after a move, a checkpoint or a change of the mode. With q =
// 0.96^decay, its logarithm is t log(beta1) plus the sum over i = 1 ... t of
// log(1 - q^i / 2), and each of these is minus the sum over k of (q^i / 2)^k /
// k. Summed over i first, a term of k is a geometric series; terms fall as
// 2^-k.
double ProductOfMomenta(const config::NAdam& block, double updates) {
  if (block.beta1() == 0) return 0;
  constexpr int kTerms = 60;  // 2^-60 is below a double's precision.
  const double log_q = block.momentum_decay() * std::log(kDecayBase);
  double log_product = updates * std::log(block.beta1());
  double halves = 1;
  for (int k = 1; k <= kTerms; ++k) {
    halves /= 2;
    const double log_qk = k * log_q;
    // q^k + q^2k + ... + q^tk.
    const double series = log_qk == 0 ? updates
                                      : std::exp(log_qk) *
                                            std::expm1(updates * log_qk) /
                                            std::expm1(log_qk);
    log_product -= halves / k * series;
  }
  return std::exp(log_product);
}

constinit const RuleConfig kNadamConfig = {
    .kind = config::Optimizer::kNadam,
    .formula = [](const config::Optimizer&) { return Rule::kNadam; },
    .learning_rate =
        [](const config::Optimizer& config) {
          return config.nadam().learning_rate();
        },
    // The product would depend on the momenta of all updates before.
    .momentum = nullptr,
    .check =
        [](const config::Optimizer& config, const ConfigProblems& problems) {
          CheckBetasAndEpsilon(config.nadam(), problems);
          problems.FloatAtLeastZero("momentum_decay",
                                    config.nadam().momentum_decay());
        },
    .coefficients = &CoefficientsOfNadam};

}  // namespace slackline::optim
