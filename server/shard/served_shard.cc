#include "server/shard/served_shard.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/io/state_hash.h"
#include "common/status.h"
#include "server/shard/refusals.h"
#include "server/shard/shard_codec.h"

namespace slackline {
namespace {

// The participant whose own clock the record changes; nullopt: it may be
// everybody's.
std::optional<Rank> ChangedBy(const ShardRecord& record) {
  if (const auto* const join = std::get_if<JoinRecord>(&record))
    return join->who.rank;
  if (const auto* const push = std::get_if<GradientRecord>(&record))
    return push->who.rank;
  if (const auto* const advance = std::get_if<AdvanceRecord>(&record))
    return advance->who.rank;
  return std::nullopt;
}

}  // namespace

void ServedShard::Effects::Clear() {
  answers.clear();
  still_parked.reset();
  trace.clear();
  work.clear();
  report = false;
  at_cut.reset();
  cut_lost = failure = absl::OkStatus();
}

ServedShard::ServedShard(std::shared_ptr<const Rules> rules,
                         ShardMachine machine, uint64_t term)
    : rules_(std::move(rules)),
      machine_(std::move(machine)),
      orders_(*machine_.rule(), machine_.accepted().order_of_values()) {
  machine_.BeginTerm(term);
}

std::string ServedShard::Name() const {
  return absl::StrCat(rules_->table, range().region.Text());
}

bool ServedShard::HasFailed(const Call& call) const {
  call.effects.failure = failure_;
  return !failure_.ok();
}

ShardOutcome ServedShard::Commit(const ShardRecord& record,
                                 const std::optional<ShardTraceRecord>& cause,
                                 const Call& call) {
  Effects& effects = call.effects;
  if (HasFailed(call)) return {};
  // Holding the old values makes an update write elsewhere.
  UpdateOrder& order = orders_.OfValues();
  const bool compare = order.NeedsUpdates();
  const Payload before = compare ? machine_.shard().values() : Payload();
  if (cut_.has_value()) {
    effects.cut_lost = cut_->OnRecord(record, machine_);
    if (!effects.cut_lost.ok()) cut_.reset();
  }
  absl::StatusOr<ShardOutcome> applied =
      machine_.Apply(record, {.memory = *rules_->memory, .sums = call.sums});
  if (!applied.ok()) {
    SL_CHECK(!absl::IsInvalidArgument(applied.status()),
             applied.status().ToString());
    effects.failure = failure_ = applied.status();
    return {};
  }
  if (!applied->updates.empty() ||
      !std::holds_alternative<GradientRecord>(record))
    rounded_.reset();
  if (cut_.has_value()) effects.at_cut = TakeAtCut();
  call.log(record, *applied);
  const auto trace = [&](ShardTraceRecord event) {
    event.shard = range().shard;
    event.min_clock = machine_.participants().MinClock();
    event.index = machine_.position().index;
    effects.trace.push_back(std::move(event));
  };
  if (cause.has_value() && rules_->trace) trace(*cause);
  for (const TurnVerdict& verdict : applied->turned) Count(verdict, call);
  for (const ShardOutcome::Update& update : applied->updates) {
    if (compare) order.OnUpdate(before, machine_.shard().values());
    call.counts.Updated(update.ranks.size());
    effects.work.push_back(
        {.shard = range().shard, .bytes_applied = update.bytes});
    if (!rules_->trace) continue;
    trace({.kind = ShardTraceRecord::Kind::kUpdated,
           .rank = Rank{-1},
           .clock = update.clock,
           .version = update.version,
           .ranks = {update.ranks.begin(), update.ranks.end()},
           .workers = update.workers});
  }
  call.counts.Dropped(static_cast<size_t>(applied->replaced));
  ReleaseParked(ChangedBy(record), call);
  return *std::move(applied);
}

// ---- Pushes -----------------------------------------------------------------

ServedShard::Pushed ServedShard::Push(const WorkerLife& who,
                                      const wire::Push& push,
                                      const Payload& frame,
                                      const PushTerms& terms,
                                      const Call& call) {
  if (HasFailed(call)) return {.refusal = Retry()};
  const Participant* const participant = Find(who);
  if (participant == nullptr) {
    return {.refusal = Rejected(absl::StrCat(
                "push to ", Name(), " by rank ", static_cast<int>(who.rank),
                ", which has not joined the shard: send a join pull first"))};
  }
  if (terms.may_be_split && push.has_gradient() &&
      !machine_.shard().store().CheckFrame(push, frame).ok()) {
    return {.refusal = Retry()};
  }
  std::optional<wire::Refusal> refusal =
      Accept(push, frame, *participant, terms.mode, call);
  return {.refusal = std::move(refusal),
          .accepted_seq = participant->next_seq - 1};
}

void ServedShard::Count(const TurnVerdict& verdict, const Call& call) const {
  const ShardId shard = range().shard;
  switch (verdict.kind) {
    case TurnVerdict::Kind::kApplied:
      return call.counts.Missed(verdict.missed_updates, verdict.workers);
    case TurnVerdict::Kind::kTooStale:
      return call.counts.Dropped(1);
    case TurnVerdict::Kind::kNotFinite:
      call.effects.report |=
          call.counts.Nonfinite(shard, verdict.rank, verdict.clock);
      return;
    case TurnVerdict::Kind::kOversized:
      call.effects.report |= call.counts.Oversized(
          shard, verdict.rank, verdict.clock, *verdict.excess);
      return;
  }
}

std::string ServedShard::FaultOf(const wire::Push& push, const Payload& frame,
                                 const Participant& participant,
                                 const sync::Mode& mode) const {
  if (push.clock() != participant.clock)
    return absl::StrCat("its next clock is ", participant.clock);
  const absl::Status fits = CheckMomentum(
      FromWire(push.options()), machine_.rule()->optimizer, rules_->table);
  if (!fits.ok()) return std::string(fits.message());
  const absl::Status frame_fits =
      machine_.shard().store().CheckFrame(push, frame);
  if (!frame_fits.ok()) return std::string(frame_fits.message());
  if (!PushesGradients(RuleOf(mode).StepOf(push.clock())))
    return "the step of that clock is done by all-reduce";
  return "";
}

std::optional<wire::Refusal> ServedShard::Accept(const wire::Push& push,
                                                 const Payload& frame,
                                                 const Participant& participant,
                                                 const sync::Mode& mode,
                                                 const Call& call) {
  if (push.seq() < participant.next_seq) {
    call.counts.Count(run::ServerStats::kDuplicatesFieldNumber);
    return std::nullopt;
  }
  // An earlier one was lost; both are sent again in order.
  if (push.seq() > participant.next_seq) return Retry();

  const auto reject = [&](absl::string_view why) {
    return Rejected(absl::StrCat("push to ", Name(), " by rank ",
                                 static_cast<int>(participant.rank),
                                 " of clock ", push.clock(), ": ", why));
  };
  if (!push.has_advance()) {
    const std::string fault = FaultOf(push, frame, participant, mode);
    if (!fault.empty()) return reject(fault);
  }
  UpdateOrder& order = orders_.Of(mode);
  const absl::Status may_take = order.MayTake(push, participant, machine_);
  if (absl::IsUnavailable(may_take)) return Retry();
  if (!may_take.ok()) return reject(may_take.message());
  if (push.has_advance()) {
    Advance(push, participant, call);
    return std::nullopt;
  }
  const absl::StatusOr<Payload> gradient =
      machine_.shard().store().GradientIn(push, frame);
  if (!gradient.ok() && !absl::IsInvalidArgument(gradient.status())) {
    call.effects.failure = failure_ = gradient.status();
    return Retry();
  }
  if (!gradient.ok()) return reject(gradient.status().message());
  call.counts.Pushed(frame.size());
  call.effects.work.push_back(
      {.shard = range().shard, .pushes = 1, .bytes_in = frame.size()});
  const Accepted accepted =
      Judge(push, *gradient, participant, mode, order, call);
  Commit(accepted.record, accepted.cause, call);
  return std::nullopt;
}

void ServedShard::Advance(const wire::Push& push,
                          const Participant& participant, const Call& call) {
  const WorkerLife who{participant.rank, participant.incarnation};
  Commit(AdvanceRecord{.who = who, .clock = push.clock()},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kAdvanced,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = push.clock(),
                          .version = machine_.shard().version()},
         call);
}

ServedShard::Accepted ServedShard::Judge(const wire::Push& push,
                                         const Payload& gradient,
                                         const Participant& participant,
                                         const sync::Mode& mode,
                                         UpdateOrder& order, const Call& call) {
  using Verdict = UpdateOrder::Verdict;
  const Version base = push.gradient();
  const WorkerLife who{participant.rank, participant.incarnation};
  GradientRecord record{.who = who,
                        .clock = push.clock(),
                        .gradient = gradient,
                        .options = FromWire(push.options())};
  ShardTraceRecord cause{.kind = ShardTraceRecord::Kind::kPushAccepted,
                         .rank = who.rank,
                         .incarnation = who.incarnation,
                         .clock = push.clock(),
                         .version = base};
  order.OnArrival(participant, push.clock(), mode, call.now);
  // Also what a rule remembers must not come from such a gradient.
  const GradientBound& bound = machine_.rule()->gradient_bound;
  const absl::Span<const std::byte> floats =
      machine_.shard().store().FloatsOf(gradient);
  const std::optional<double> rms =
      floats.empty()
          ? 0
          : bound.Measure(floats.data(), floats.size() / sizeof(float));
  record.rms = rms.value_or(0);
  const std::optional<GradientBound::Excess> excess =
      rms.has_value() && order.BoundsArrivals()
          ? bound.Judge(*rms, machine_.running_rms())
          : std::nullopt;
  Verdict verdict = Verdict::kNotFinite;
  if (rms.has_value() && !excess.has_value())
    verdict = order.Judge(mode, base, machine_, &record, &call.counts);
  if (verdict == Verdict::kTaken)
    return {.record = std::move(record), .cause = cause};
  if (excess.has_value()) {
    call.effects.report |=
        call.counts.Oversized(range().shard, who.rank, push.clock(), *excess);
  } else if (verdict == Verdict::kNotFinite) {
    call.effects.report |=
        call.counts.Nonfinite(range().shard, who.rank, push.clock());
  } else {
    call.counts.Dropped(1);
  }
  if (verdict != Verdict::kUseless)
    cause.kind = ShardTraceRecord::Kind::kPushDiscarded;
  // To the shard, a discarded gradient is as if the worker had only said that
  // it is done.
  return {.record = AdvanceRecord{.who = who, .clock = push.clock() + 1},
          .cause = cause};
}

// ---- Installations ----------------------------------------------------------

ServedShard::Pushed ServedShard::Install(const WorkerLife& who,
                                         const wire::Push& push,
                                         absl::Span<const Payload> frames,
                                         const InstallTerms& terms,
                                         const Call& call) {
  std::optional<wire::Refusal> refusal =
      // A worker that we have not heard of may be one of those at this clock.
      terms.may_be_split ? Retry()
                         : TakeInstallation(who, push, frames, terms, call);
  const Participant* const participant = Find(who);
  return {
      .refusal = std::move(refusal),
      .accepted_seq = participant == nullptr ? 0 : participant->next_seq - 1};
}

std::optional<wire::Refusal> ServedShard::TakeInstallation(
    const WorkerLife& who, const wire::Push& push,
    absl::Span<const Payload> frames, const InstallTerms& terms,
    const Call& call) {
  if (HasFailed(call)) return Retry();
  const Participant* const participant = Find(who);
  const uint64_t next_seq = participant == nullptr ? 1 : participant->next_seq;
  if (push.seq() < next_seq) {
    call.counts.Count(run::ServerStats::kDuplicatesFieldNumber);
    return std::nullopt;
  }
  if (push.seq() > next_seq) return Retry();
  const Clock clock = push.clock();
  const Version version = push.installation().version();
  const auto reject = [&](const auto&... why) {
    return Rejected(absl::StrCat("installation of ", Name(), " by rank ",
                                 static_cast<int>(who.rank), " at clock ",
                                 clock, ": ", why...));
  };
  if (!terms.ends_all_reduce)
    return reject("no phase by all-reduce ends there");
  const size_t slots = machine_.shard().slots().size();
  if (frames.size() != 1 + slots) {
    return reject("it has ", frames.size() - 1, " optimizer slots, the table ",
                  slots);
  }
  const absl::Status fits = machine_.rule()->store->Check(
      range().region, frames.front(), frames.subspan(1));
  if (!fits.ok()) return reject(fits.message());
  if (version > kVersionMax) return reject("its version is above 2^60");
  if (StateHash(version, frames.front(), frames.subspan(1)) !=
      push.installation().hash()) {
    return reject("its bits are not those that the worker sent");
  }
  ShardTraceRecord cause{.kind = ShardTraceRecord::Kind::kInstalled,
                         .rank = who.rank,
                         .incarnation = who.incarnation,
                         .clock = clock,
                         .version = version};
  if (machine_.complete_clock() >= clock) {
    // Others have installed it already.
    if (participant == nullptr)
      return reject("the worker came after all had reached that clock");
    cause.kind = ShardTraceRecord::Kind::kAdvanced;
    cause.version = machine_.shard().version();
    Commit(AdvanceRecord{.who = who, .clock = participant->clock}, cause, call);
    return std::nullopt;
  }
  InstallRecord record{.who = who,
                       .clock = clock,
                       .version = version,
                       .values = frames.front(),
                       .slots = {frames.begin() + 1, frames.end()}};
  for (const WorkerLife& member : terms.members) {
    if (Find(member) == nullptr) record.joining.push_back(member);
  }
  size_t bytes = 0;
  for (const Payload& frame : frames) bytes += frame.size();
  call.counts.Installed(bytes);
  orders_.Forget();
  Commit(record, cause, call);
  return std::nullopt;
}

// ---- Pulls ------------------------------------------------------------------

std::optional<wire::Refusal> ServedShard::Pull(
    const WorkerLife& who, const std::shared_ptr<const wire::Pull>& asked,
    const PullTerms& terms, const Call& call) {
  if (HasFailed(call)) return Retry();
  const wire::Pull& pull = *asked;
  const Participant* participant = Find(who);
  if (participant == nullptr) {
    if (!pull.has_join()) {
      return Rejected(absl::StrCat(
          "pull of ", Name(), " by rank ", static_cast<int>(who.rank),
          ", which has not joined the shard: send a join pull first"));
    }
    if (const absl::Status may_join = machine_.accepted().MayJoin();
        !may_join.ok()) {
      return Rejected(absl::StrCat("pull of ", Name(), " by rank ",
                                   static_cast<int>(who.rank),
                                   ", which joins: ", may_join.message()));
    }
    Commit(JoinRecord{.who = who, .clock = machine_.complete_clock()},
           std::nullopt, call);
    participant = Find(who);
    if (participant == nullptr) return Retry();  // It has failed.
  }
  UpdateOrder& order = orders_.OfValues();
  // A late copy.
  const Clock step =
      pull.has_join() ? participant->joined_at : pull.step().clock();
  if (!pull.has_state() && order.IsOver(step, *participant, machine_))
    return Retry();
  GatedPull gated = Gated(who, asked, terms, call);
  if (StalenessGate::Admits(machine_.participants(), order.Progress(machine_),
                            gated)) {
    AnswerPull(std::move(gated), call);
  } else if (!gate_.Park(gated)) {
    // Asked again: say what it waits for, so that a person can be told.
    call.effects.still_parked.emplace(
        StillParked{.pull = gated, .waits_for = order.Missing(machine_)});
  }
  return std::nullopt;
}

GatedPull ServedShard::Gated(const WorkerLife& who,
                             const std::shared_ptr<const wire::Pull>& asked,
                             const PullTerms& terms, const Call& call) {
  const wire::Pull& pull = *asked;
  GatedPull gated{.rank = who.rank,
                  .incarnation = who.incarnation,
                  .request_id = pull.id(),
                  .asked = asked,
                  .since = call.now};
  if (pull.has_state()) {
    gated.clock = gated.own_clock = gated.needed = pull.state().clock();
    return gated;
  }
  gated.clock = pull.step().clock();  // 0 of a worker that joins.
  gated.own_clock = pull.step().own_clock();
  orders_.OfValues().Gate(terms, machine_, &gated);
  return gated;
}

void ServedShard::ReleaseParked(std::optional<Rank> changed, const Call& call) {
  if (gate_.parked_count() == 0) return;
  std::vector<GatedPull> admitted;
  gate_.Release(machine_.participants(), orders_.OfValues().Progress(machine_),
                changed, &admitted);
  for (GatedPull& pull : admitted) AnswerPull(std::move(pull), call);
}

Payload ServedShard::RoundedOf(const ShardVersion& told) {
  if (rules_->pulled_as == wire::Encoding::FLOAT32) return told.values;
  const auto round = [&] {
    return RoundParameters(rules_->pulled_as, told.values, *rules_->memory);
  };
  // A store may tell each pull something else of the present version.
  const Shard& shard = machine_.shard();
  if (told.version == shard.version() &&
      told.values.data() != shard.values().data()) {
    return round();
  }
  if (!rounded_.has_value() || rounded_->version != told.version)
    rounded_ = {.version = told.version, .values = round()};
  return rounded_->values;
}

void ServedShard::AnswerPull(GatedPull gated, const Call& call) {
  const Shard& shard = machine_.shard();
  const bool of_state = gated.asked->has_state();
  const Participant* const joined =
      gated.asked->has_join()
          ? Find({.rank = gated.rank, .incarnation = gated.incarnation})
          : nullptr;
  UpdateOrder& order = orders_.OfValues();
  const ShardVersion told = of_state ? ShardVersion{.version = shard.version(),
                                                    .values = shard.values()}
                                     : order.Answer(gated, machine_);
  const bool as_they_are = of_state || gated.asked->step().exact();
  Answer& answer = call.effects.answers.emplace_back(
      Answer{.pull = std::move(gated),
             .shard_clock = joined != nullptr ? joined->joined_at
                                              : machine_.complete_clock(),
             .version = told.version,
             .values = as_they_are ? told.values : RoundedOf(told)});
  const GatedPull& pull = answer.pull;
  if (!as_they_are) answer.kind = rules_->pulled_as;
  size_t bytes = answer.values.size();
  if (of_state) {
    answer.hash = StateHash(shard.version(), shard.values(), shard.slots());
    answer.slots = shard.slots();
    for (const Payload& slot : answer.slots) bytes += slot.size();
  }
  call.counts.Answered(bytes);
  call.effects.work.push_back(
      {.shard = range().shard, .pulls = 1, .bytes_out = bytes});
  if (of_state) return;  // For no step.
  // Not of the final model; and once for each step, though who has not heard
  // the answer asks again.
  LeadCounted& counted = leads_[pull.rank];
  if (counted.incarnation != pull.incarnation)
    counted = {.incarnation = pull.incarnation};
  if (pull.clock > counted.clock && pull.clock < call.end) {
    counted.clock = pull.clock;
    call.counts.Lead(pull.clock, order.CompleteFor(pull, machine_));
  }
  if (!rules_->trace) return;
  call.effects.trace.push_back({.kind = ShardTraceRecord::Kind::kPullAnswered,
                                .shard = range().shard,
                                .rank = pull.rank,
                                .incarnation = pull.incarnation,
                                .clock = pull.clock,
                                .min_clock = machine_.participants().MinClock(),
                                .version = told.version,
                                .request_id = pull.request_id,
                                .ranks = {},
                                .workers = 0,
                                .index = machine_.position().index});
}

// ---- What a view does -------------------------------------------------------

void ServedShard::Leave(LeaveRecord leave, const Call& call) {
  if (leave.incarnations.empty()) return;
  Commit(std::move(leave), std::nullopt, call);
  gate_.ForgetStrangers(machine_.participants());
  orders_.ForgetStrangers(machine_.participants());
}

std::optional<ShardMachine> ServedShard::SplitAt(int64_t at, ShardId part,
                                                 const Call& call) {
  // A gradient that is held becomes one of each part.
  call.counts.Inherited(machine_.waiting_count());
  ShardOutcome outcome =
      Commit(SplitRecord{.at = at, .part = part}, std::nullopt, call);
  orders_.Forget();
  return std::move(outcome.part);
}

std::optional<ShardState> ServedShard::TakeAtCut() {
  const ShardMachine* const machine =
      cut_.has_value() ? cut_->Complete(machine_) : nullptr;
  if (machine == nullptr) return std::nullopt;
  const ShardSnapshot at_cut = machine->Snapshot();
  ShardState state{.table = rules_->table,
                   .region = machine->shard().range().region,
                   .version = at_cut.version,
                   .values = at_cut.values,
                   .slots = at_cut.slots,
                   .running_rms = at_cut.running_rms,
                   .floats = machine_.rule()->store->form().IsFloats()};
  if (at_cut.turns.has_value()) state.turns = EncodeTurns(*at_cut.turns);
  cut_.reset();
  return state;
}

}  // namespace slackline
