// BSP: bulk-synchronous. One update per clock, from the mean of all workers'
// gradients; a pull of clock c waits until everybody has pushed all before c.
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Bsp : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kBsp; }
  Updates updates() const override { return Updates::kByClock; }
  PullNeeds NeedsOf(const sync::Mode&, Clock clock) const override {
    return {.of_all = clock};
  }
  // No clock of this mode is left half done.
  PullNeeds NeedsAfter(Clock from) const override { return {.of_all = from}; }
};

}  // namespace

const ModeRule& BspRule() {
  static const Bsp rule;
  return rule;
}

}  // namespace slackline
