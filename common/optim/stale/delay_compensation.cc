// g + lambda g g (w - w_then) (Zheng et al., "Asynchronous stochastic gradient
// descent with delay compensation", 2017, with a constant lambda).
#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

class DelayCompensation : public StaleRule::Formula {
 public:
  explicit DelayCompensation(double lambda)
      : lambda_(static_cast<float>(lambda)) {}

  bool NeedsBase() const override { return true; }

  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* /*memory*/) const override {
    StaleRule::Verdict verdict;
    if (args.then == nullptr) return verdict;
    // g g stands for the curvature of a loss, which has the other sign in what
    // is to be maximized.
    const float lambda = args.maximize ? -lambda_ : lambda_;
    verdict.gradient = MapGradient(args, [=](float g, float moved, size_t) {
      return g + lambda * g * g * moved;
    });
    return verdict;
  }

 private:
  const float lambda_;
};

}  // namespace

constinit const StaleConfig kDelayCompensation = {
    .rule = config::StaleGradients::kDelayCompensation,
    .check =
        [](const config::StaleGradients& config,
           const ConfigProblems& problems) {
          problems.FloatAtLeastZero("lambda",
                                    config.delay_compensation().lambda());
        },
    .make = [](const config::StaleGradients& config)
        -> std::unique_ptr<const StaleRule::Formula> {
      return std::make_unique<DelayCompensation>(
          config.delay_compensation().lambda());
    }};

}  // namespace slackline::optim
