// ASP: asynchronous. No pull waits for anybody; gradients are applied as they
// come.
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Asp : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kAsp; }
  PullNeeds NeedsOf(const sync::Mode&, Clock) const override { return {}; }
  bool waits_for_slowest() const override { return false; }
};

}  // namespace

const ModeRule& AspRule() {
  static const Asp rule;
  return rule;
}

}  // namespace slackline
