// SSP(s): a pull of clock c waits until everybody has pushed all before c - s,
// so no worker leads the slowest by more than s clocks (Ho et al., "More
// effective distributed ML via a stale synchronous parallel parameter server",
// 2013). Gradients are applied as they come.
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Ssp : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kSsp; }
  absl::Span<const Parameter> parameters() const override {
    static constexpr Parameter kParameters[] = {
        {.field = "staleness", .sign = "S", .least = 0}};
    return kParameters;
  }
  void Check(const sync::Mode& mode, int,
             std::vector<ModeProblem>* problems) const override {
    CheckStaleness("staleness", mode.ssp().staleness(), problems);
  }
  PullNeeds NeedsOf(const sync::Mode& mode, Clock clock) const override {
    return {.of_all = clock - mode.ssp().staleness()};
  }
};

}  // namespace

const ModeRule& SspRule() {
  static const Ssp rule;
  return rule;
}

}  // namespace slackline
