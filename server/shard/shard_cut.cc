#include "server/shard/shard_cut.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

// Why there can be no cut of a shard to which this happens; empty: there can.
std::string WhyNoCut(const ShardRecord& record, const CutLimits& limits,
                     const ShardMachine& live) {
  if (std::holds_alternative<SplitRecord>(record)) return "it is split in two";
  const auto* const install = std::get_if<InstallRecord>(&record);
  // All turns come after it.
  if (install == nullptr || live.accepted().plans_cuts()) return "";
  if (!limits.uniform().has_value())
    return absl::StrCat("workers have stepped by all-reduce until clock ",
                        install->clock, " and each has its own limit");
  if (install->clock > *limits.uniform()) {
    return absl::StrCat("workers have stepped by all-reduce until clock ",
                        install->clock, ", which is after the cut at clock ",
                        *limits.uniform());
  }
  return "";
}

}  // namespace

// ---- Limits -----------------------------------------------------------------

CutLimits::CutLimits(const wire::Cut& cut) {
  if (cut.until().empty()) {
    uniform_ = cut.clock();
    return;
  }
  for (const wire::Cut::Until& until : cut.until()) {
    const Until limit{.who = {Rank{until.rank()}, until.incarnation()},
                      .clock = until.clock()};
    if (of_.try_emplace(until.incarnation(), limit).second)
      until_.push_back(limit);
  }
}

Clock CutLimits::Of(const WorkerLife& who) const {
  if (uniform_.has_value()) return *uniform_;
  const auto found = of_.find(who.incarnation);
  return found == of_.end() || found->second.who.rank != who.rank
             ? std::numeric_limits<Clock>::min()
             : found->second.clock;
}

// ---- One shard --------------------------------------------------------------

ShardCut::ShardCut(std::shared_ptr<const CutLimits> limits)
    : limits_(std::move(limits)), missing_(limits_->until()) {}

bool ShardCut::IsBefore(const ShardRecord& record,
                        const ShardMachine& live) const {
  if (const auto* const push = std::get_if<GradientRecord>(&record))
    return push->clock < limits_->Of(push->who);
  if (const auto* const advance = std::get_if<AdvanceRecord>(&record)) {
    const Participant* const who =
        live.participants().Find(advance->who.rank, advance->who.incarnation);
    return who != nullptr && who->clock < limits_->Of(advance->who);
  }
  if (const auto* const join = std::get_if<JoinRecord>(&record))
    return limits_->uniform().has_value() && join->clock < *limits_->uniform();
  return true;
}

absl::Status ShardCut::OnRecord(const ShardRecord& record,
                                const ShardMachine& live) {
  if (const std::string why = WhyNoCut(record, *limits_, live); !why.empty())
    return absl::FailedPreconditionError(why);
  if (!IsBefore(record, live)) {
    if (!copy_.has_value()) {
      // A store that lacks the memory for a copy says so here, and the job goes
      // on without the cut; one that shares what it has would at its next
      // update, which ends the job.
      SL_ASSIGN_OR_RETURN(
          copy_, ShardMachine::Create(live.rule(), live.shard().range(),
                                      live.Snapshot()));
    }
    return absl::OkStatus();
  }
  if (!copy_.has_value() || (copy_->accepted().plans_cuts() &&
                             std::holds_alternative<LeaveRecord>(record))) {
    return absl::OkStatus();
  }
  const absl::Status applied = copy_->Apply(record).status();
  return absl::IsInvalidArgument(applied)
             ? Annotate(applied, "what comes before the cut does not fit")
             : applied;
}

const ShardMachine* ShardCut::Complete(const ShardMachine& live) {
  const ShardMachine& machine = copy_.has_value() ? *copy_ : live;
  if (limits_->uniform().has_value()) {
    return machine.complete_clock() >= *limits_->uniform() ? &machine : nullptr;
  }
  const auto there = [&](const CutLimits::Until& until) {
    const Participant* const who =
        machine.participants().Find(until.who.rank, until.who.incarnation);
    return who == nullptr || who->clock >= until.clock;
  };
  missing_.erase(std::remove_if(missing_.begin(), missing_.end(), there),
                 missing_.end());
  return missing_.empty() ? &machine : nullptr;
}

}  // namespace slackline
