// The rate r / max(1, tau) in place of r / W (Zhang, Gupta, Lian, Liu,
// "Staleness-aware async-SGD for distributed deep learning", 2016).
#include <algorithm>

#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

class StalenessAwareRate : public StaleRule::Formula {
 public:
  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* /*memory*/) const override {
    StaleRule::Verdict verdict;
    verdict.rate_factor =
        static_cast<double>(args.workers) /
        static_cast<double>(std::max<int64_t>(1, args.missed_updates));
    return verdict;
  }
};

}  // namespace

constinit const StaleConfig kStalenessAwareRate = {
    .rule = config::StaleGradients::kStalenessAwareRate,
    .check = [](const config::StaleGradients&, const ConfigProblems&) {},
    .make = [](const config::StaleGradients&)
        -> std::unique_ptr<const StaleRule::Formula> {
      return std::make_unique<StalenessAwareRate>();
    }};

}  // namespace slackline::optim
