// DELAYS: the order of updates at each shard, and the version that each
// gradient is computed from, are given (common/delays). A shard applies a
// gradient in its turn and answers a pull with the version that is named for
// it, so every run of the job ends with the same bits.
// server/shard/given_turns.h is what a shard keeps for it.
#include "common/delays/delay_source.h"
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Delays : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kDelays; }
  WholeJob whole_job() const override {
    return {.is = "delays are given",
            .job = "a job with given delays",
            .command = "slackline run --delays"};
  }
  Updates updates() const override { return Updates::kAsGiven; }
  std::string GivenDelaysOf(const sync::Mode& mode) const override {
    return mode.delays().given();
  }
  void Check(const sync::Mode& mode, int,
             std::vector<ModeProblem>* problems) const override {
    const std::string why = WhyNoDelays(mode.delays().given());
    if (!why.empty()) problems->push_back({.field = "given", .why = why});
  }
  PullNeeds NeedsOf(const sync::Mode&, Clock) const override {
    return {.turn = true};
  }
  bool waits_for_slowest() const override { return false; }
};

}  // namespace

const ModeRule& DelaysRule() {
  static const Delays rule;
  return rule;
}

}  // namespace slackline
