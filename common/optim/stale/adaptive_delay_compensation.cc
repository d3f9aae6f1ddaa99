// g + lambda / sqrt(m + 1e-7) g g (w - w_then), where
// m = decay m + (1 - decay) g g (Zheng et al., "Asynchronous stochastic
// gradient descent with delay compensation", 2017). The mean begins with its
// first sample.
#include <cmath>

#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

constexpr float kRootEpsilon = 1e-7F;

class AdaptiveDelayCompensation : public StaleRule::Formula {
 public:
  AdaptiveDelayCompensation(double lambda, double decay)
      : lambda_(static_cast<float>(lambda)),
        decay_(static_cast<float>(decay)) {}

  bool NeedsBase() const override { return true; }

  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* memory) const override {
    std::vector<float>& mean = memory->mean;
    const bool first = mean.empty();
    if (first) mean.resize(args.elements);
    StaleRule::Verdict verdict;
    // As in delay_compensation.cc.
    const float most = args.maximize ? -lambda_ : lambda_;
    // Also where the base is not known: the mean is of all gradients.
    verdict.gradient = MapGradient(args, [&](float g, float moved, size_t i) {
      mean[i] = first ? g * g : decay_ * mean[i] + (1 - decay_) * g * g;
      const float lambda = most / std::sqrt(mean[i] + kRootEpsilon);
      return g + lambda * g * g * moved;
    });
    return verdict;
  }

 private:
  const float lambda_;
  const float decay_;
};

}  // namespace

constinit const StaleConfig kAdaptiveDelayCompensation = {
    .rule = config::StaleGradients::kAdaptiveDelayCompensation,
    .check =
        [](const config::StaleGradients& config,
           const ConfigProblems& problems) {
          const auto& block = config.adaptive_delay_compensation();
          problems.FloatAtLeastZero("lambda", block.lambda());
          problems.FloatBelowOne("decay", block.decay());
        },
    .make = [](const config::StaleGradients& config)
        -> std::unique_ptr<const StaleRule::Formula> {
      const auto& block = config.adaptive_delay_compensation();
      return std::make_unique<AdaptiveDelayCompensation>(block.lambda(),
                                                         block.decay());
    }};

}  // namespace slackline::optim
