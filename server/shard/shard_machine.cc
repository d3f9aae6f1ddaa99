#include "server/shard/shard_machine.h"

#include <algorithm>
#include <tuple>
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

void SortByWorker(std::vector<HeldGradient>* held) {
  std::sort(held->begin(), held->end(),
            [](const HeldGradient& a, const HeldGradient& b) {
              return std::tie(a.who.rank, a.who.incarnation) <
                     std::tie(b.who.rank, b.who.incarnation);
            });
}

// The clock that is complete by now, with so many gradients of the `last` one.
Clock CompleteClock(Clock last, const Participants& participants,
                    size_t gradients, int spare) {
  // Who has left counts with what it pushed, and is waited for no more.
  const auto count = static_cast<int64_t>(gradients);
  const auto needed = static_cast<int64_t>(participants.size()) - spare;
  const bool enough = count > 0 && spare > 0 && count >= needed;
  return std::max(last + (enough ? 1 : 0), participants.MinClock());
}

}  // namespace

ShardMachine::ShardMachine(std::shared_ptr<const TableRule> rule, Shard shard)
    : rule_(std::move(rule)), shard_(std::move(shard)) {}

absl::StatusOr<ShardMachine> ShardMachine::Create(
    std::shared_ptr<const TableRule> rule, const ShardRange& range,
    ShardSnapshot snapshot) {
  SL_CHECK(snapshot.turns.has_value() == (rule->delays != nullptr),
           "turns without delays, or delays without turns");
  SL_ASSIGN_OR_RETURN(std::unique_ptr<ShardStore> store,
                      rule->store->Of(range.region, std::move(snapshot.values),
                                      std::move(snapshot.slots)));
  ShardMachine machine(std::move(rule),
                       Shard(range, snapshot.version, std::move(store)));
  machine.participants_ =
      Participants(snapshot.min_clock, std::move(snapshot.participants));
  machine.complete_clock_ = snapshot.complete_clock;
  machine.held_ = std::move(snapshot.held);
  machine.spare_ = snapshot.spare;
  machine.position_ = snapshot.position;
  machine.running_rms_ = snapshot.running_rms;
  if (snapshot.turns.has_value())
    machine.turns_.emplace(machine.rule_, *std::move(snapshot.turns));
  return machine;
}

ShardSnapshot ShardMachine::Snapshot() const {
  std::vector<HeldGradient> held = held_;
  SortByWorker(&held);
  return {.version = shard_.version(),
          .values = shard_.values(),
          .slots = shard_.slots(),
          .min_clock = participants_.MinClock(),
          .participants = {participants_.begin(), participants_.end()},
          .complete_clock = complete_clock_,
          .held = std::move(held),
          .spare = spare_,
          .position = position_,
          .running_rms = running_rms_,
          .turns = turns_.has_value() ? std::optional(turns_->state())
                                      : std::nullopt};
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
  // What its steps would be computed from is let go.
  if (turns_.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        NameOf(join.who),
        " joins, and a job with given delays has the workers that it began "
        "with"));
  }
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

  if (turns_.has_value()) SL_RETURN_IF_ERROR(turns_->Add(push, shard_));
  ShardOutcome outcome;
  ++who->next_seq;
  participants_.Advance(*who, push.clock + 1);
  if (turns_.has_value()) {
    turns_->OnPushed(push.who.rank, push.clock, push.clock + 1, participants_);
  } else if (push.held) {
    spare_ = push.spare;
    held_.push_back({.who = push.who,
                     .gradient = push.gradient,
                     .options = push.options,
                     .rms = push.rms});
  } else {
    running_rms_.Add(push.rms);
    SL_RETURN_IF_ERROR(Update(absl::MakeConstSpan(&push.gradient, 1),
                              {push.who.rank},
                              static_cast<int>(participants_.size()),
                              push.clock, push.options, options, &outcome));
  }
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const SumRecord& record,
                                                const ApplyOptions& options) {
  if (record.who.empty() || record.clock != complete_clock_ || !held_.empty() ||
      turns_.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of ", record.who.size(), " gradients of clock ",
                     record.clock, "; the shard is at clock ", complete_clock_,
                     " and holds ", held_.size()));
  }
  SL_RETURN_IF_ERROR(shard_.store().CheckGradient(record.sum));
  SL_RETURN_IF_ERROR(CheckSizes(record.rms, record.who.size()));
  Participants after = participants_;
  ShardOutcome outcome;
  absl::InlinedVector<Rank, 1> ranks;
  for (const WorkerLife& life : record.who) {
    Participant* const who = after.Find(life.rank, life.incarnation);
    if (who == nullptr) return NoParticipant(life);
    if (who->clock != record.clock ||
        (!ranks.empty() && ranks.back() >= life.rank)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "in a sum of clock ", record.clock, ": ", NameOf(life),
          ", which is at clock ", who->clock, "; each once, sorted by rank"));
    }
    ++who->next_seq;
    after.Advance(*who, record.clock + 1);
    ranks.push_back(life.rank);
  }
  const Clock complete =
      CompleteClock(complete_clock_, after, record.who.size(), record.spare);
  if (complete == complete_clock_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of ", record.who.size(), " gradients, spare ",
                     record.spare, ", is not all of clock ", record.clock));
  }
  participants_ = std::move(after);
  spare_ = record.spare;
  complete_clock_ = complete;
  for (const double rms : record.rms) running_rms_.Add(rms);
  const auto workers = static_cast<int>(record.who.size());
  SL_RETURN_IF_ERROR(shard_.ApplyMean(
      rule_->optimizer,
      {.parts = absl::MakeConstSpan(&record.sum, 1),
       .count = workers,
       .workers = workers},
      rule_->NumbersAt(record.clock, record.options), options.memory));
  outcome.updates.push_back({.clock = record.clock,
                             .version = shard_.version(),
                             .ranks = std::move(ranks),
                             .workers = workers,
                             .bytes = record.sum.size()});
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
  if (turns_.has_value()) {
    turns_->OnPushed(advance.who.rank, before, advance.clock, participants_);
  }
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
  if (turns_.has_value() && !turns_->MayBegin(install)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an installation at clock ", install.clock,
        ", and the turns of the job's delays have begun, or somebody joins"));
  }
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
  outcome.replaced = static_cast<int>(held_.size());
  held_.clear();
  if (turns_.has_value()) turns_->OnParticipants(participants_);
  SL_RETURN_IF_ERROR(Complete(options, &outcome));
  return outcome;
}

absl::StatusOr<ShardOutcome> ShardMachine::Take(const LeaveRecord& leave,
                                                const ApplyOptions& options) {
  participants_.Remove(leave.incarnations);
  if (turns_.has_value()) turns_->OnParticipants(participants_);
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
  outcome.part = *this;
  for (size_t i = 0; i < held_.size(); ++i) {
    std::tie(held_[i].gradient, outcome.part->held_[i].gradient) =
        shard_.store().SplitGradient(held_[i].gradient, kept, rest);
  }
  if (turns_.has_value())
    outcome.part->turns_ = turns_->Split(kept.DenseBytes());
  SL_ASSIGN_OR_RETURN(outcome.part->shard_, shard_.Split(split.at, split.part));
  return outcome;
}

absl::Status ShardMachine::Complete(const ApplyOptions& options,
                                    ShardOutcome* outcome) {
  if (turns_.has_value()) SL_RETURN_IF_ERROR(TakeTurns(options, outcome));
  const Clock complete =
      CompleteClock(complete_clock_, participants_, held_.size(), spare_);
  if (complete == complete_clock_) return absl::OkStatus();
  // All held gradients are of complete_clock_. Later clocks, up to the one that
  // is reached, are clocks at which every participant only advanced, or of
  // modes that hold nothing.
  if (!held_.empty()) {
    SortByWorker(&held_);
    const StepOptions step = held_.front().options;
    std::vector<Payload> gradients;
    gradients.reserve(held_.size());
    absl::InlinedVector<Rank, 1> ranks;
    for (HeldGradient& held : held_) {
      gradients.push_back(std::move(held.gradient));
      ranks.push_back(held.who.rank);
      running_rms_.Add(held.rms);
    }
    held_.clear();
    SL_RETURN_IF_ERROR(Update(gradients, std::move(ranks),
                              static_cast<int>(gradients.size()),
                              complete_clock_, step, options, outcome));
  }
  complete_clock_ = complete;
  return absl::OkStatus();
}

absl::Status ShardMachine::TakeTurns(const ApplyOptions& options,
                                     ShardOutcome* outcome) {
  while (turns_->Ready(participants_)) {
    GivenTurns::Turn turn =
        turns_->Take(shard_, running_rms_, participants_, &outcome->turned);
    if (turn.gradients.empty()) continue;
    for (const double rms : turn.rms) running_rms_.Add(rms);
    // Holding the old values makes the update write elsewhere.
    const Payload before = turns_->NeedsUpdates() ? shard_.values() : Payload();
    SL_RETURN_IF_ERROR(Update(turn.gradients, std::move(turn.ranks),
                              turn.workers, turn.clock, turn.options,
                              {.memory = options.memory}, outcome));
    if (turns_->NeedsUpdates()) turns_->OnUpdate(before, shard_.values());
  }
  return absl::OkStatus();
}

absl::Status ShardMachine::Update(absl::Span<const Payload> gradients,
                                  absl::InlinedVector<Rank, 1> ranks,
                                  int workers, Clock clock,
                                  const StepOptions& step,
                                  const ApplyOptions& options,
                                  ShardOutcome* outcome) {
  size_t bytes = 0;
  for (const Payload& gradient : gradients) bytes += gradient.size();
  Payload sum;
  const bool wants_sum = options.sums && gradients.size() > 1;
  SL_RETURN_IF_ERROR(
      shard_.ApplyMean(rule_->optimizer,
                       {.parts = gradients,
                        .count = static_cast<int>(gradients.size()),
                        .workers = workers},
                       rule_->NumbersAt(clock, step), options.memory,
                       wants_sum ? &sum : nullptr));
  outcome->updates.push_back({.clock = clock,
                              .version = shard_.version(),
                              .ranks = std::move(ranks),
                              .workers = workers,
                              .bytes = bytes,
                              .sum = std::move(sum)});
  return absl::OkStatus();
}

}  // namespace slackline
