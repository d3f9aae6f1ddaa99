// BACKUP(b): BSP that takes the first W - b gradients of a clock at each shard
// and drops the late ones (Chen et al., "Revisiting distributed synchronous
// SGD", 2016). A pull of clock c waits until the clocks before c are complete,
// whoever has made them so. Who is late skips to where the shards are.
#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

class Backup : public ModeRule {
 public:
  sync::Mode::KindCase kind() const override { return sync::Mode::kBackup; }
  absl::Span<const Parameter> parameters() const override {
    static constexpr Parameter kParameters[] = {
        {.field = "workers", .sign = "B", .least = 1}};
    return kParameters;
  }
  void Check(const sync::Mode& mode, int workers,
             std::vector<ModeProblem>* problems) const override {
    const int32_t late = mode.backup().workers();
    if (workers < 2) {
      problems->push_back(
          {.field = "workers",
           .why = absl::StrCat("there is ", workers,
                               " worker; at least 2 are required, of which "
                               "one may be late")});
    } else if (late < 1 || late >= workers) {
      problems->push_back(
          {.field = "workers",
           .why =
               absl::StrCat("value is ", late, "; 1 to ", workers - 1,
                            " is required; there are ", workers, " workers")});
    }
  }
  Updates updates() const override { return Updates::kByClock; }
  int spare_workers(const sync::Mode& mode) const override {
    return mode.backup().workers();
  }
  PullNeeds NeedsOf(const sync::Mode&, Clock clock) const override {
    return {.complete = clock};
  }
  PullNeeds NeedsAfter(Clock from) const override { return {.complete = from}; }
  bool skips_ahead() const override { return true; }
  bool waits_for_slowest() const override { return false; }
};

}  // namespace

const ModeRule& BackupRule() {
  static const Backup rule;
  return rule;
}

}  // namespace slackline
