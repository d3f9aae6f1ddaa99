// DSSP(min, max): SSP with the bound `min`, which the leading worker may exceed
// up to `max` as long as it would otherwise wait longer for the slowest one's
// next push (Zhao et al., "Dynamic stale synchronous parallel distributed
// training for deep learning", 2019; dssp_controller.h).
#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Dssp : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kDssp; }
  absl::Span<const Parameter> parameters() const override {
    static constexpr Parameter kParameters[] = {
        {.field = "min_staleness", .sign = "MIN", .least = 0},
        {.field = "max_staleness", .sign = "MAX", .least = 0}};
    return kParameters;
  }
  void Check(const sync::Mode& mode, int,
             std::vector<ModeProblem>* problems) const override {
    const int32_t least = mode.dssp().min_staleness();
    const int32_t most = mode.dssp().max_staleness();
    CheckStaleness("min_staleness", least, problems);
    CheckStaleness("max_staleness", most, problems);
    if (most >= least) return;
    problems->push_back({.field = "max_staleness",
                         .why = absl::StrCat("value is ", most,
                                             "; at least the smallest bound (",
                                             least, ") is required")});
  }
  PullNeeds NeedsOf(const sync::Mode& mode, Clock clock) const override {
    return {.of_all = clock - mode.dssp().min_staleness()};
  }
  int64_t extra_steps(const sync::Mode& mode) const override {
    return int64_t{mode.dssp().max_staleness()} - mode.dssp().min_staleness();
  }
};

}  // namespace

const ModeRule& DsspRule() {
  static const Dssp rule;
  return rule;
}

}  // namespace slackline
