// g / (1 + tau / W). tau / W is the delay in clocks: an even cluster has about
// 1, however many workers there are.
#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

class Scale : public StaleRule::Formula {
 public:
  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* /*memory*/) const override {
    StaleRule::Verdict verdict;
    const auto factor = static_cast<float>(1 / (1 + args.DelayClocks()));
    if (factor == 1) return verdict;
    verdict.gradient = MapGradient(
        args, [factor](float g, float, size_t) { return g * factor; });
    return verdict;
  }
};

}  // namespace

constinit const StaleConfig kScale = {
    .rule = config::StaleGradients::kScale,
    .check = [](const config::StaleGradients&, const ConfigProblems&) {},
    .make = [](const config::StaleGradients&)
        -> std::unique_ptr<const StaleRule::Formula> {
      return std::make_unique<Scale>();
    }};

}  // namespace slackline::optim
