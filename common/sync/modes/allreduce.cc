// ALLREDUCE: the workers sum their gradients among themselves and each applies
// the mean; servers hold the state of the last change. What is pulled or pushed
// at these clocks crosses the change: it needs everybody there.
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class AllReduce : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kAllreduce; }
  StepKind StepOf(Clock) const override { return StepKind::kAllReduce; }
  PullNeeds NeedsOf(const sync::Mode&, Clock clock) const override {
    return {.of_all = clock};
  }
  PullNeeds NeedsAfter(Clock from) const override { return {.of_all = from}; }
};

}  // namespace

const ModeRule& AllReduceRule() {
  static const AllReduce rule;
  return rule;
}

}  // namespace slackline
