// g / (1 + |w - w_then| / c), where c is the decayed mean of how far an update
// moves the parameter; 1 where nothing has moved it yet (Barkai, Hakimi,
// Schuster, "Gap aware mitigation of gradient staleness", 2020; in its form for
// each parameter by itself). The mean begins with its first sample.
#include <cmath>

#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

class GapAware : public StaleRule::Formula {
 public:
  explicit GapAware(double decay) : decay_(static_cast<float>(decay)) {}

  bool NeedsBase() const override { return true; }
  bool NeedsUpdates() const override { return true; }

  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* memory) const override {
    StaleRule::Verdict verdict;
    if (args.then == nullptr || memory->mean.empty()) return verdict;
    verdict.gradient =
        MapGradient(args, [memory](float g, float moved, size_t i) {
          const float usual = memory->mean[i];
          return usual > 0 ? g / (1 + std::fabs(moved) / usual) : g;
        });
    return verdict;
  }

  void Updated(const float* before, const float* after, size_t elements,
               StaleRule::Memory* memory) const override {
    std::vector<float>& mean = memory->mean;
    const bool first = mean.empty();
    if (first) mean.resize(elements);
    for (size_t i = 0; i < elements; ++i) {
      const float moved = std::fabs(after[i] - before[i]);
      mean[i] = first ? moved : decay_ * mean[i] + (1 - decay_) * moved;
    }
  }

 private:
  const float decay_;
};

}  // namespace

constinit const StaleConfig kGapAware = {
    .rule = config::StaleGradients::kGapAware,
    .check =
        [](const config::StaleGradients& config,
           const ConfigProblems& problems) {
          problems.FloatBelowOne("decay", config.gap_aware().decay());
        },
    .make = [](const config::StaleGradients& config)
        -> std::unique_ptr<const StaleRule::Formula> {
      return std::make_unique<GapAware>(config.gap_aware().decay());
    }};

}  // namespace slackline::optim
