// Not applied if tau / W is above the limit.
#include "common/optim/stale/formula.h"

namespace slackline::optim {
namespace {

class DropStale : public StaleRule::Formula {
 public:
  explicit DropStale(double limit_clocks) : limit_clocks_(limit_clocks) {}

  StaleRule::Verdict Judge(const StaleRule::Args& args,
                           StaleRule::Memory* /*memory*/) const override {
    StaleRule::Verdict verdict;
    verdict.drop = args.DelayClocks() > limit_clocks_;
    return verdict;
  }

 private:
  const double limit_clocks_;
};

}  // namespace

constinit const StaleConfig kDropStale = {
    .rule = config::StaleGradients::kDrop,
    .check =
        [](const config::StaleGradients& config,
           const ConfigProblems& problems) {
          if (!config.drop().has_beyond_clocks()) {
            return problems.Add("beyond_clocks",
                                "is missing; a number of clocks of at least 0 "
                                "is required");
          }
          const double limit = config.drop().beyond_clocks();
          problems.Require(limit >= 0, "beyond_clocks", limit, "at least 0");
        },
    .make = [](const config::StaleGradients& config)
        -> std::unique_ptr<const StaleRule::Formula> {
      return std::make_unique<DropStale>(config.drop().beyond_clocks());
    }};

}  // namespace slackline::optim
