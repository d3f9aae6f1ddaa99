#include "server/shard/shard_machine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

std::string NameOf(const WorkerLife& who) {
  return absl::StrCat("rank ", static_cast<int>(who.rank), " (incarnation ",
                      who.incarnation, ")");
}

absl::Status NoParticipant(const WorkerLife& who) {
  return absl::InvalidArgumentError(
      absl::StrCat(NameOf(who), " does not take part"));
}

absl::Status CheckSizes(absl::Span<const double> rms, size_t gradients) {
  if (rms.empty() || rms.size() == gradients) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      rms.size(), " sizes of ", gradients, " gradients; all or none"));
}

}  // namespace

ShardMachine::ShardMachine(std::shared_ptr<const TableRule> rule, Shard shard)
    : rule_(std::move(rule)), shard_(std::move(shard)) {}

ShardMachine::Accepted ShardMachine::AcceptedOf(
    const std::shared_ptr<const TableRule>& rule, ShardSnapshot snapshot) {
  if (rule->delays == nullptr)
    return HeldByClock(std::move(snapshot.held), snapshot.spare);
  SL_CHECK(snapshot.turns.has_value(), "delays without turns");
  return GivenTurns(rule, *std::move(snapshot.turns));
}

absl::StatusOr<ShardMachine> ShardMachine::Create(
    std::shared_ptr<const TableRule> rule, const ShardRange& range,
    ShardSnapshot snapshot) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<ShardStore> store,
                      rule->store->Of(range.region, std::move(snapshot.values),
                                      std::move(snapshot.slots)));
  ShardMachine machine(std::move(rule),
                       Shard(range, snapshot.version, std::move(store)));
  machine.participants_ =
      Participants(snapshot.min_clock, std::move(snapshot.participants));
  machine.complete_clock_ = snapshot.complete_clock;
  machine.position_ = snapshot.position;
  machine.running_rms_ = snapshot.running_rms;
  machine.accepted_ = AcceptedOf(machine.rule_, std::move(snapshot));
  return machine;
}

ShardSnapshot ShardMachine::Snapshot() const {
  ShardSnapshot snapshot{
      .version = shard_.version(),
      .values = shard_.values(),
      .slots = shard_.slots(),
      .min_clock = participants_.MinClock(),
      .participants = {participants_.begin(), participants_.end()},
      .complete_clock = complete_clock_,
      .position = position_,
      .running_rms = running_rms_};
  accepted().Put(&snapshot);
  return snapshot;
}

absl::StatusOr<ShardOutcome> ShardMachine::Apply(const ShardRecord& record) {
  PayloadMemory heap;
  return Apply(record, {.memory = heap});
}

absl::StatusOr<ShardOutcome> ShardMachine::Apply(const ShardRecord& record,
                                                 const ApplyOptions& options) {
  absl::StatusOr<ShardOutcome> outcome =
      std::visit([&](const auto& kind) { return Take(kind, options); }, record);
  if (!outcome.ok()) return outcome;
  const auto* const sum = std::get_if<SumRecord>(&record);
  position_.index += sum == nullptr ? 1 : sum->who.size();
  if (outcome->part.has_value()) outcome->part->position_ = position_;
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const JoinRecord& join,
                                                const ApplyOptions&) {
  if (participants_.Has(join.who.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(join.who), " joins, and takes part already"));
  }
  const absl::Status may_join = accepted().MayJoin();
  if (!may_join.ok())
    return Annotate(may_join, absl::StrCat(NameOf(join.who), " joins"));
  participants_.Join(join.who.rank, join.who.incarnation, join.clock);
  return ShardOutcome();
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const GradientRecord& push,
                                                const ApplyOptions& options) {
  Participant* const who =
      participants_.Find(push.who.rank, push.who.incarnation);
  if (who == nullptr) return NoParticipant(push.who);
  if (push.clock != who->clock ||
      (push.held && push.clock != complete_clock_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a gradient of clock ", push.clock, " by ", NameOf(push.who),
        ", which is at clock ", who->clock, push.held ? ", to be held" : "",
        "; the shard is at clock ", complete_clock_));
  }
  SL_RETURN_IF_ERROR(shard_.store().CheckGradient(push.gradient));

  SL_RETURN_IF_ERROR(mutable_accepted().Add(push, Present()));
  ShardOutcome outcome;
  ++who->next_seq;
  participants_.Advance(*who, push.clock + 1);
  mutable_accepted().OnPushed(push.who.rank, push.clock, push.clock + 1,
                              participants_);
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const SumRecord& record,
                                                const ApplyOptions& options) {
  if (record.who.empty() || record.clock != complete_clock_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sum of ", record.who.size(), " gradients of clock ", record.clock,
        "; the shard is at clock ", complete_clock_));
  }
  SL_RETURN_IF_ERROR(shard_.store().CheckGradient(record.sum));
  SL_RETURN_IF_ERROR(CheckSizes(record.rms, record.who.size()));
  Participants after = participants_;
  const WorkerLife* before = nullptr;
  for (const WorkerLife& life : record.who) {
    Participant* const who = after.Find(life.rank, life.incarnation);
    if (who == nullptr) return NoParticipant(life);
    if (who->clock != record.clock ||
        (before != nullptr && before->rank >= life.rank)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "in a sum of clock ", record.clock, ": ", NameOf(life),
          ", which is at clock ", who->clock, "; each once, sorted by rank"));
    }
    ++who->next_seq;
    after.Advance(*who, record.clock + 1);
    before = &life;
  }
  SL_RETURN_IF_ERROR(mutable_accepted().AddSum(record, complete_clock_, after));
  participants_ = std::move(after);
  ShardOutcome outcome;
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const AdvanceRecord& advance,
                                                const ApplyOptions& options) {
  Participant* const who =
      participants_.Find(advance.who.rank, advance.who.incarnation);
  if (who == nullptr) return NoParticipant(advance.who);
  if (advance.clock < who->clock) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(advance.who), " goes back from clock ", who->clock,
                     " to clock ", advance.clock));
  }
  ShardOutcome outcome;
  ++who->next_seq;
  const Clock before = who->clock;
  participants_.Advance(*who, advance.clock);
  mutable_accepted().OnPushed(advance.who.rank, before, advance.clock,
                              participants_);
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const InstallRecord& install,
                                                const ApplyOptions& options) {
  if (install.clock <= complete_clock_ ||
      install.slots.size() != shard_.slots().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an installation at clock ", install.clock, " with ",
                     install.slots.size(), " slots; the shard is at clock ",
                     complete_clock_, " and has ", shard_.slots().size()));
  }
  SL_RETURN_IF_ERROR(rule_->store->Check(shard_.range().region, install.values,
                                         install.slots));
  SL_RETURN_IF_ERROR(accepted().MayInstall(install));
  Participants after = participants_;
  for (const WorkerLife& joining : install.joining) {
    if (after.Has(joining.rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(joining), " joins, and takes part already"));
    }
    after.Join(joining.rank, joining.incarnation, install.clock);
  }
  Participant* const who =
      after.Find(install.who.rank, install.who.incarnation);
  if (who == nullptr) return NoParticipant(install.who);

  ++who->next_seq;
  after.AdvanceAll(install.clock);
  participants_ = std::move(after);
  SL_RETURN_IF_ERROR(
      shard_.Install(install.version, install.values, install.slots));
  // What was measured before is of gradients of long ago.
  running_rms_ = {};
  complete_clock_ = install.clock;
  ShardOutcome outcome;
  outcome.replaced = mutable_accepted().OnInstalled();
  mutable_accepted().OnParticipants(participants_);
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const LeaveRecord& leave,
                                                const ApplyOptions& options) {
  participants_.Remove(leave.incarnations);
  mutable_accepted().OnParticipants(participants_);
  ShardOutcome outcome;
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const SplitRecord& split,
                                                const ApplyOptions&) {
  const Region whole = shard_.range().region;
  if (!whole.CanBeSplit(split.at)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a split at ", split.at, " of ", whole.Text()));
  }
  const auto [kept, rest] = whole.SplitAt(split.at);
  ShardOutcome outcome;
  Accepted accepted = std::visit(
      [&, &kept = kept, &rest = rest](auto& of) -> Accepted {
        return of.Split(shard_.store(), kept, rest);
      },
      accepted_);
  SL_ASSIGN_OR_RETURN(Shard part, shard_.Split(split.at, split.part));
  outcome.part.emplace(rule_, std::move(part));
  outcome.part->participants_ = participants_;
  outcome.part->complete_clock_ = complete_clock_;
  outcome.part->running_rms_ = running_rms_;
  outcome.part->accepted_ = std::move(accepted);
  return outcome;
}

absl::Status ShardMachine::Complete(const ApplyOptions& options,
                                    ShardOutcome* outcome) {
  const Clock complete =
      accepted().CompleteClock(complete_clock_, participants_);
  const std::optional<Clock> completed = complete > complete_clock_
                                             ? std::optional(complete_clock_)
                                             : std::nullopt;
  while (std::optional<DueUpdate> due =
             mutable_accepted().Next(Present(), completed, &outcome->turned)) {
    if (due->gradients.empty()) continue;
    for (const double rms : due->rms) running_rms_.Add(rms);
    // Holding the old values makes the update write elsewhere.
    const bool compare = accepted().NeedsUpdates();
    const Payload before = compare ? shard_.values() : Payload();
    SL_RETURN_IF_ERROR(Update(*std::move(due), options, outcome));
    if (compare) mutable_accepted().OnUpdate(before, shard_.values());
  }
  complete_clock_ = complete;
  return absl::OkStatus();
}

absl::Status ShardMachine::Update(DueUpdate due, const ApplyOptions& options,
                                  ShardOutcome* outcome) {
  size_t bytes = 0;
  for (const Payload& gradient : due.gradients) bytes += gradient.size();
  Payload sum;
  const bool wants_sum =
      options.sums && due.of_clock && due.gradients.size() > 1;
  SL_RETURN_IF_ERROR(
      shard_.ApplyMean(rule_->optimizer,
                       {.parts = due.gradients,
                        .count = static_cast<int>(due.ranks.size()),
                        .workers = due.workers},
                       rule_->NumbersAt(due.clock, due.options), options.memory,
                       wants_sum ? &sum : nullptr));
  outcome->updates.push_back({.clock = due.clock,
                              .version = shard_.version(),
                              .ranks = std::move(due.ranks),
                              .workers = due.workers,
                              .bytes = bytes,
                              .sum = std::move(sum)});
  return absl::OkStatus();
}

}  // namespace slackline
