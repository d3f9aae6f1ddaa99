#include "common/sync/sync_config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"

namespace slackline {
namespace {

// The name of the mode that is set.
std::string ModeField(const config::Sync& sync) {
  return config::Sync::descriptor()
      ->FindFieldByNumber(sync.mode_case())
      ->name();
}

// `block` is a Sync or a Phase.
template <typename Block>
void CheckMode(const Block& block, int workers,
               const ConfigProblems& problems) {
  const sync::Mode mode = ConfiguredMode(block);
  for (const ModeProblem& problem : ProblemsOf(mode, workers)) {
    problems.Add(absl::StrCat(RuleOf(mode).name(), ".", problem.field),
                 problem.why);
  }
}

void CheckAuto(const config::Auto& policy, const ConfigProblems& problems) {
  sync::Mode ssp;
  ssp.mutable_ssp()->set_staleness(policy.staleness());
  for (const ModeProblem& problem : ProblemsOf(ssp, /*workers=*/1)) {
    problems.Add("staleness", problem.why);
  }
  const double even = policy.even_below();
  const bool even_ok = std::isfinite(even) && even >= 1;
  problems.Require(even_ok, "even_below", even, "at least 1",
                   "1 is a slowest worker as fast as the median one");
  const double straggler = policy.straggler_above();
  const bool straggler_ok = std::isfinite(straggler);
  problems.Require(straggler_ok, "straggler_above", straggler, "a number");
  if (even_ok && straggler_ok && straggler <= even) {
    problems.Add("straggler_above",
                 absl::StrCat("value is ", straggler,
                              "; more than sync.auto.even_below (", even,
                              ") is required, so that it does not act on "
                              "noise"));
  }
  problems.Range("hold_ms", policy.hold_ms(), 100, kHourMs);
}

// `before`: where the phase before ends, 0 if there is none. Returns where this
// one ends.
double CheckEnd(const config::Phase& phase, double before,
                const ConfigProblems& problems) {
  if (!phase.has_until_epoch()) {
    problems.Add("until_epoch",
                 "is missing; only the last phase has no end, write until how "
                 "many epochs of the job this one lasts");
    return before;
  }
  const double until = phase.until_epoch();
  if (before == 0) {
    problems.AboveZero("until_epoch", until);
  } else {
    problems.Require(
        std::isfinite(until) && until > before, "until_epoch", until,
        absl::StrCat("above ", before, ", where the phase before ends,"));
  }
  return std::isfinite(until) ? std::max(before, until) : before;
}

void CheckPhases(const config::Sync& sync, int workers,
                 const ConfigProblems& problems) {
  const int phases = sync.phase_size();
  if (phases == 0) return;
  if (sync.mode_case() != config::Sync::MODE_NOT_SET) {
    problems.In("phase", 0)
        .Add("", absl::StrCat(
                     "there is sync.", ModeField(sync),
                     ", too; keep the phases or that mode (--mode replaces "
                     "phases)"));
  }
  if (phases > kPhasesMax) {
    return problems.Add("phase",
                        absl::StrCat("there are ", phases, " phases; at most ",
                                     kPhasesMax, " are allowed"));
  }
  double before = 0;
  for (int i = 0; i < phases; ++i) {
    const config::Phase& phase = sync.phase(i);
    const ConfigProblems here = problems.In("phase", i);
    if (phase.mode_case() == config::Phase::MODE_NOT_SET) {
      here.Add("",
               "has no mode; one of bsp, ssp, dssp, asp, backup and allreduce "
               "is required, as in phase { allreduce {} until_epoch: 1 }");
    }
    CheckMode(phase, workers, here);
    if (i + 1 < phases) {
      before = CheckEnd(phase, before, here);
    } else if (phase.has_until_epoch()) {
      here.Add("until_epoch",
               absl::StrCat("value is ", phase.until_epoch(),
                            "; the last phase lasts until the end of the job, "
                            "leave it out or add a phase"));
    }
  }
}

}  // namespace

void FillModes(config::Sync* sync) {
  if (sync->mode_case() == config::Sync::MODE_NOT_SET &&
      sync->phase_size() == 0) {
    sync->mutable_bsp();
  }
}

void CheckModes(const config::Sync& sync, int workers,
                const ConfigProblems& problems) {
  CheckMode(sync, workers, problems);
  if (sync.has_auto_()) CheckAuto(sync.auto_(), problems.In("auto"));
  CheckPhases(sync, workers, problems);
}

bool MayAllReduce(const config::Sync& sync) {
  const auto reduces = [](const auto& block) {
    return ConnectsWorkers(RuleOf(ConfiguredMode(block)).StepOf(0));
  };
  if (sync.has_auto_()) return true;
  if (sync.phase_size() == 0) return reduces(sync);
  return std::any_of(sync.phase().begin(), sync.phase().end(), reduces);
}

bool StepsTogether(const config::Sync& sync) {
  const auto together = [](const auto& block) {
    const sync::Mode mode = ConfiguredMode(block);
    const ModeRule& rule = RuleOf(mode);
    return IsDoneTogether(rule.StepOf(0)) ||
           (rule.holds_gradients() && rule.spare_workers(mode) == 0);
  };
  if (sync.has_auto_()) return false;
  if (sync.phase_size() == 0) return together(sync);
  return std::all_of(sync.phase().begin(), sync.phase().end(), together);
}

}  // namespace slackline
