#include "server/shard/served_shard.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/io/state_hash.h"
#include "common/optim/finite.h"
#include "common/status.h"
#include "server/shard/refusals.h"

namespace slackline {
namespace {

// As the push says, or as its frame has.
size_t ElementsOf(const wire::Push& push, const Payload& frame) {
  return push.has_encoding() ? static_cast<size_t>(push.encoding().elements())
                             : frame.size() / sizeof(float);
}

bool AllFinite(const Payload& gradient) {
  return optim::AllFinite(gradient.data(), gradient.size() / sizeof(float));
}

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
  logged = report = false;
  at_cut.reset();
  cut_lost = absl::OkStatus();
}

ServedShard::ServedShard(std::shared_ptr<const Rules> rules,
                         ShardMachine machine, uint64_t term,
                         std::vector<FollowerFeeds::Known> awaited,
                         GivenDelays delays)
    : rules_(std::move(rules)),
      machine_(std::move(machine)),
      stale_(rules_->stale, rules_->maximize),
      delays_(std::move(delays)),
      followers_(rules_->feed, range().shard, machine_.position(), term,
                 std::move(awaited)) {
  machine_.BeginTerm(term);
}

std::string ServedShard::Name() const {
  return absl::StrCat(rules_->table, "[", range().begin, ", ", range().end,
                      ")");
}

ShardOutcome ServedShard::Commit(const ShardRecord& record,
                                 const std::optional<ShardTraceRecord>& cause,
                                 const Call& call) {
  Effects& effects = call.effects;
  // Holding the old values makes an update write elsewhere.
  const bool compare = stale_.rule().NeedsUpdates();
  const Payload before = compare ? machine_.shard().values() : Payload();
  if (cut_.has_value()) {
    effects.cut_lost = cut_->OnRecord(record, machine_);
    if (!effects.cut_lost.ok()) cut_.reset();
  }
  absl::StatusOr<ShardOutcome> applied = machine_.Apply(
      record, {.memory = *rules_->memory, .sums = !followers_.empty()});
  SL_CHECK(applied.ok(), applied.status().ToString());
  effects.logged = true;
  if (!applied->updates.empty() ||
      !std::holds_alternative<GradientRecord>(record))
    rounded_.reset();
  if (cut_.has_value()) effects.at_cut = TakeAtCut();
  if (move_feed_.has_value()) move_feed_->OnRecord(record, machine_.position());
  if (!followers_.empty())
    followers_.OnRecord(record, *applied, machine_, call.now);
  const auto trace = [&](ShardTraceRecord event) {
    event.shard = range().shard;
    event.min_clock = machine_.participants().MinClock();
    event.index = machine_.position().index;
    effects.trace.push_back(std::move(event));
  };
  if (cause.has_value() && rules_->trace) trace(*cause);
  for (const ShardOutcome::Update& update : applied->updates) {
    if (compare) stale_.OnUpdate(before, machine_.shard().values());
    call.counts.Updated(update.ranks.size());
    effects.work.push_back(
        {.shard = range().shard,
         .bytes_applied = update.ranks.size() * range().bytes()});
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
  const Participant* const participant = Find(who);
  if (participant == nullptr) {
    return {.refusal = Rejected(absl::StrCat(
                "push to ", Name(), " by rank ", static_cast<int>(who.rank),
                ", which has not joined the shard: send a join pull first"))};
  }
  if (terms.may_be_split && push.has_gradient() &&
      ElementsOf(push, frame) != static_cast<size_t>(range().elements())) {
    return {.refusal = Retry()};
  }
  std::optional<wire::Refusal> refusal =
      Accept(push, frame, *participant, terms.mode, call);
  return {.refusal = std::move(refusal),
          .accepted_seq = participant->next_seq - 1};
}

std::optional<wire::Refusal> ServedShard::Accept(const wire::Push& push,
                                                 const Payload& frame,
                                                 const Participant& participant,
                                                 const sync::Mode& mode,
                                                 const Call& call) {
  if (push.seq() < participant.next_seq) {
    call.counts.Duplicate();
    return std::nullopt;
  }
  // An earlier one was lost; both are sent again in order.
  if (push.seq() > participant.next_seq) return Retry();
  if (push.has_advance()) return AcceptAdvance(push, participant, call);

  const auto reject = [&](const auto&... why) {
    return Rejected(absl::StrCat("push to ", Name(), " by rank ",
                                 static_cast<int>(participant.rank),
                                 " of clock ", push.clock(), ": ", why...));
  };
  if (push.clock() != participant.clock)
    return reject("its next clock is ", participant.clock);
  const absl::Status fits = CheckMomentum(
      FromWire(push.options()), machine_.rule()->optimizer, rules_->table);
  if (!fits.ok()) return reject(fits.message());
  const GradientCode code = CodeOf(push.encoding());
  const auto elements = static_cast<size_t>(range().elements());
  if (ElementsOf(push, frame) != elements && push.has_encoding()) {
    return reject(push.encoding().elements(), " elements, the shard has ",
                  elements);
  }
  if (frame.size() != code.Bytes(elements)) {
    return reject(frame.size(), " bytes, the shard has ", code.Bytes(elements));
  }
  const ModeRule& rule = RuleOf(mode);
  if (!PushesGradients(rule.StepOf(push.clock())))
    return reject("the step of that clock is done by all-reduce");
  // One frame of each worker is held, so a worker that runs ahead has to wait.
  if (!delays_.given() && rule.holds_gradients() &&
      push.clock() > machine_.complete_clock()) {
    return Retry();
  }
  Payload gradient = frame;
  if (!code.whole()) {
    gradient = Payload::Allocate(range().bytes());
    const absl::Span<float> floats(
        reinterpret_cast<float*>(gradient.MutableData()), elements);
    if (!Decode(code, frame.data(), floats))
      return reject("its frame is not in the code that it names");
  }
  if (delays_.given())
    return AcceptGiven(push, gradient, frame.size(), participant, call);
  CountPush(frame.size(), call);
  const Accepted accepted = Judge(push, gradient, participant, mode, call);
  Commit(accepted.record, accepted.cause, call);
  return std::nullopt;
}

std::optional<wire::Refusal> ServedShard::AcceptAdvance(
    const wire::Push& push, const Participant& participant, const Call& call) {
  const auto reject = [&](const auto&... why) {
    return Rejected(absl::StrCat("push to ", Name(), " by rank ",
                                 static_cast<int>(participant.rank),
                                 " of clock ", push.clock(), ": ", why...));
  };
  if (delays_.given()) {
    if (push.clock() != participant.clock + 1) {
      return reject(
          "it skips steps, and the job's delays have a gradient of each");
    }
    return AcceptGivenNothing(participant, call);
  }
  if (push.clock() < participant.clock)
    return reject("its clock is already ", participant.clock);
  const WorkerLife who{participant.rank, participant.incarnation};
  Commit(AdvanceRecord{.who = who, .clock = push.clock()},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kAdvanced,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = push.clock(),
                          .version = machine_.shard().version()},
         call);
  return std::nullopt;
}

ServedShard::Accepted ServedShard::Judge(const wire::Push& push,
                                         const Payload& gradient,
                                         const Participant& participant,
                                         const sync::Mode& mode,
                                         const Call& call) {
  const Shard& shard = machine_.shard();
  const ModeRule& rule = RuleOf(mode);
  const Version base = push.gradient();
  GradientRecord record{.who = {participant.rank, participant.incarnation},
                        .clock = push.clock(),
                        .gradient = gradient,
                        .held = rule.holds_gradients(),
                        .spare = rule.spare_workers(mode),
                        .options = FromWire(push.options())};
  ShardTraceRecord cause{.kind = ShardTraceRecord::Kind::kPushAccepted,
                         .rank = participant.rank,
                         .incarnation = participant.incarnation,
                         .clock = push.clock(),
                         .version = base};
  if (rule.extra_steps(mode) > 0) {
    dssp_.OnPush(participant.rank, participant.incarnation, push.clock(),
                 call.now);
  }
  const auto workers = static_cast<int>(machine_.participants().size());
  // Also what a rule remembers must not come from such a gradient.
  const std::optional<double> rms = Measure(gradient);
  bool finite = rms.has_value();
  std::optional<GradientBound::Excess> excess;
  if (finite) {
    record.rms = *rms;
    excess = rules_->gradient_bound.Judge(*rms, machine_.running_rms());
  }
  bool dropped = false;
  if (finite && !excess.has_value() && !record.held) {
    StaleRule::Verdict verdict =
        stale_.OnPush({.rank = participant.rank,
                       .incarnation = participant.incarnation,
                       .base = base,
                       .gradient = &gradient,
                       .now = shard.version(),
                       .values = &shard.values(),
                       .workers = workers});
    record.options.rate_factor *= verdict.rate_factor;
    dropped = verdict.drop;
    if (!verdict.gradient.empty()) {
      record.gradient = std::move(verdict.gradient);
      finite = AllFinite(record.gradient);  // Products may overflow.
    }
  }
  // To the shard, a discarded gradient is as if the worker had only said that
  // it is done.
  const AdvanceRecord nothing{.who = record.who, .clock = push.clock() + 1};
  if (dropped || !finite || excess.has_value()) {
    cause.kind = ShardTraceRecord::Kind::kPushDiscarded;
    if (dropped) call.counts.Dropped(1);
    if (!finite) {
      call.effects.report |=
          call.counts.Nonfinite(range().shard, participant.rank, push.clock());
    }
    if (excess.has_value()) {
      call.effects.report |= call.counts.Oversized(
          range().shard, participant.rank, push.clock(), *excess);
    }
    return {.record = nothing, .cause = cause};
  }
  if (record.held && push.clock() < machine_.complete_clock()) {
    // Late: the others' mean is in the model already.
    call.counts.Dropped(1);
    return {.record = nothing, .cause = cause};
  }
  call.counts.Missed(
      base < shard.version() ? static_cast<int64_t>(shard.version() - base) : 0,
      record.held ? 1 : workers);
  return {.record = std::move(record), .cause = cause};
}

void ServedShard::CountPush(size_t bytes, const Call& call) const {
  call.counts.Pushed(bytes);
  call.effects.work.push_back(
      {.shard = range().shard, .pushes = 1, .bytes_in = bytes});
}

std::optional<double> ServedShard::Measure(const Payload& gradient) const {
  return rules_->gradient_bound.Measure(gradient.data(),
                                        gradient.size() / sizeof(float));
}

// ---- Given delays -----------------------------------------------------------

std::optional<wire::Refusal> ServedShard::AcceptGiven(
    const wire::Push& push, const Payload& gradient, size_t frame_bytes,
    const Participant& participant, const Call& call) {
  const Shard& shard = machine_.shard();
  const WorkerLife who{participant.rank, participant.incarnation};
  const Clock clock = push.clock();
  const auto reject = [&](const auto&... why) {
    return Rejected(absl::StrCat("push to ", Name(), " by rank ",
                                 static_cast<int>(who.rank), " of clock ",
                                 clock, ": ", why...));
  };
  if (clock >= delays_.plan().steps())
    return reject("the job has ", delays_.plan().steps(), " steps");
  const std::optional<GivenDelays::Base> base =
      delays_.BaseOf(who.rank, clock, shard);
  if (!base.has_value() || base->version != push.gradient()) {
    return reject("it was computed from version ", push.gradient(),
                  ", and the delays of the job name the version after ",
                  delays_.TurnsBefore(who.rank, clock), " updates",
                  base.has_value() ? absl::StrCat(", which is ", base->version)
                                   : ", which is not there yet");
  }
  GivenDelays::Push given{.rank = who.rank,
                          .clock = clock,
                          .base = base->version,
                          .base_values = {},
                          .gradient = {},
                          .options = FromWire(push.options())};
  if (stale_.rule().NeedsBase()) given.base_values = base->values;
  CountPush(frame_bytes, call);
  const std::optional<double> rms = Measure(gradient);
  if (!rms.has_value()) {
    call.effects.report |=
        call.counts.Nonfinite(range().shard, who.rank, clock);
  } else if (!delays_.Uses(who.rank, clock)) {
    call.counts.Dropped(1);
  } else {
    given.gradient = gradient;
    given.rms = *rms;
  }
  Commit(AdvanceRecord{.who = who, .clock = clock + 1},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kPushAccepted,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = clock,
                          .version = base->version},
         call);
  delays_.Add(std::move(given));
  TakeTurns(call);
  return std::nullopt;
}

std::optional<wire::Refusal> ServedShard::AcceptGivenNothing(
    const Participant& participant, const Call& call) {
  const Shard& shard = machine_.shard();
  const WorkerLife who{participant.rank, participant.incarnation};
  const Clock clock = participant.clock;
  const std::optional<GivenDelays::Base> base =
      clock < delays_.plan().steps() ? delays_.BaseOf(who.rank, clock, shard)
                                     : std::nullopt;
  if (!base.has_value()) {
    return Rejected(absl::StrCat(
        "skip of ", Name(), " by rank ", static_cast<int>(who.rank),
        " at clock ", clock,
        ": the job's delays name no version for it that is there"));
  }
  Commit(AdvanceRecord{.who = who, .clock = clock + 1},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kAdvanced,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = clock + 1,
                          .version = shard.version()},
         call);
  delays_.Add({.rank = who.rank,
               .clock = clock,
               .base = base->version,
               .base_values = {},
               .gradient = {}});
  TakeTurns(call);
  return std::nullopt;
}

void ServedShard::TakeTurns(const Call& call) {
  const Shard& shard = machine_.shard();
  while (delays_.Ready()) {
    GivenDelays::Turn turn = delays_.Take(shard);
    UpdateRecord update{.clock = turn.clock,
                        .ranks = {},
                        .gradients = {},
                        .workers = turn.workers};
    // In the order of the turns, so the verdict is the same however gradients
    // come; and of all gradients of a turn by those before it.
    const RunningRms before = machine_.running_rms();
    for (GivenDelays::Push& push : turn.pushes) {
      if (push.gradient.empty()) continue;
      if (const std::optional<GradientBound::Excess> excess =
              rules_->gradient_bound.Judge(push.rms, before)) {
        call.effects.report |= call.counts.Oversized(range().shard, push.rank,
                                                     push.clock, *excess);
        continue;
      }
      StepOptions options = push.options;
      if (!turn.mean) {
        StaleRule::Verdict verdict =
            stale_.OnPush({.rank = push.rank,
                           .base = push.base,
                           .base_values = &push.base_values,
                           .gradient = &push.gradient,
                           .now = shard.version(),
                           .values = &shard.values(),
                           .workers = turn.workers});
        options.rate_factor *= verdict.rate_factor;
        if (verdict.drop) {
          call.counts.Dropped(1);
          continue;
        }
        if (!verdict.gradient.empty())
          push.gradient = std::move(verdict.gradient);
        if (!AllFinite(push.gradient)) {  // Products may overflow.
          call.effects.report |=
              call.counts.Nonfinite(range().shard, push.rank, push.clock);
          continue;
        }
      }
      call.counts.Missed(static_cast<int64_t>(shard.version() - push.base),
                         turn.mean ? 1 : turn.workers);
      // One update has one rate: that of its first gradient.
      if (update.gradients.empty()) update.options = options;
      update.ranks.push_back(push.rank);
      update.gradients.push_back(std::move(push.gradient));
      if (rules_->gradient_bound.any()) update.rms.push_back(push.rms);
    }
    if (update.gradients.empty()) {
      ReleaseParked(std::nullopt, call);
      continue;
    }
    if (turn.mean) update.workers = static_cast<int>(update.gradients.size());
    Commit(std::move(update), std::nullopt, call);
  }
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
  const Participant* const participant = Find(who);
  const uint64_t next_seq = participant == nullptr ? 1 : participant->next_seq;
  if (push.seq() < next_seq) {
    call.counts.Duplicate();
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
  for (const Payload& frame : frames) {
    if (frame.size() == range().bytes()) continue;
    return reject("a tensor has ", frame.size(), " bytes, the shard ",
                  range().bytes());
  }
  const size_t slots = machine_.shard().slots().size();
  if (frames.size() != 1 + slots) {
    return reject("it has ", frames.size() - 1, " optimizer slots, the table ",
                  slots);
  }
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
  stale_.Forget();
  Commit(record, cause, call);
  return std::nullopt;
}

// ---- Pulls ------------------------------------------------------------------

std::optional<wire::Refusal> ServedShard::Pull(const WorkerLife& who,
                                               const wire::Pull& pull,
                                               const PullTerms& terms,
                                               const Call& call) {
  const Participant* participant = Find(who);
  if (participant == nullptr) {
    if (!pull.has_join()) {
      return Rejected(absl::StrCat(
          "pull of ", Name(), " by rank ", static_cast<int>(who.rank),
          ", which has not joined the shard: send a join pull first"));
    }
    Commit(JoinRecord{.who = who, .clock = machine_.complete_clock()},
           std::nullopt, call);
    participant = Find(who);
  }
  // A late copy: the worker has computed that step, and what it was computed
  // from may be let go.
  if (delays_.given() && !pull.has_state() &&
      pull.step().clock() <
          std::max(participant->clock, delays_.plan().first())) {
    return Retry();
  }
  const GatedPull gated = Gated(who, pull, terms, call);
  if (StalenessGate::Admits(machine_.participants(), Progress(), gated)) {
    AnswerPull(
        gated,
        pull.has_join() ? participant->joined_at : machine_.complete_clock(),
        call);
  } else if (!gate_.Park(gated)) {
    // Asked again: say what it waits for, so that a person can be told.
    StillParked& parked =
        call.effects.still_parked.emplace(StillParked{.pull = gated});
    if (delays_.given()) {
      parked.waits_for = delays_.Missing();
    } else if (const Participant* const slowest =
                   machine_.participants().Slowest()) {
      parked.waits_for = {slowest->rank, slowest->clock};
    }
  }
  return std::nullopt;
}

Clock ServedShard::Progress() const {
  return delays_.given() ? delays_.turns() : machine_.complete_clock();
}

GatedPull ServedShard::Gated(const WorkerLife& who, const wire::Pull& pull,
                             const PullTerms& terms, const Call& call) {
  GatedPull gated{.rank = who.rank,
                  .incarnation = who.incarnation,
                  .request_id = pull.id(),
                  .state = pull.has_state(),
                  .since = call.now};
  if (pull.has_state()) {
    gated.clock = gated.own_clock = gated.needed = pull.state().clock();
    return gated;
  }
  // A worker that joins takes what is there, unless delays are given.
  if (pull.has_join() && !delays_.given()) return gated;
  gated.clock = pull.step().clock();  // 0 of a worker that joins.
  gated.own_clock = pull.step().own_clock();
  gated.exact = pull.step().exact();
  gated.needed = terms.needs.of_all;
  if (delays_.given()) {
    gated.complete = delays_.TurnsBefore(gated.rank, gated.clock);
    return gated;
  }
  gated.complete = terms.needs.complete;
  if (terms.extra_steps > 0 &&
      machine_.participants().MinClock() < gated.needed &&
      dssp_.Grants(gated, machine_.participants(), terms.extra_steps)) {
    gated.needed = terms.granted_of_all;
  }
  return gated;
}

void ServedShard::ReleaseParked(std::optional<Rank> changed, const Call& call) {
  if (gate_.parked_count() == 0) return;
  std::vector<GatedPull> admitted;
  gate_.Release(machine_.participants(), Progress(), changed, &admitted);
  for (const GatedPull& pull : admitted)
    AnswerPull(pull, machine_.complete_clock(), call);
}

Payload ServedShard::RoundedOf(const GivenDelays::Base& told) {
  if (rules_->pulled_as == wire::Encoding::FLOAT32) return told.values;
  if (!rounded_.has_value() || rounded_->version != told.version) {
    rounded_ = {.version = told.version,
                .values = RoundParameters(rules_->pulled_as, told.values,
                                          *rules_->memory)};
  }
  return rounded_->values;
}

void ServedShard::AnswerPull(const GatedPull& pull, Clock shard_clock,
                             const Call& call) {
  const Shard& shard = machine_.shard();
  GivenDelays::Base told{.version = shard.version(), .values = shard.values()};
  if (delays_.given() && !pull.state) {
    std::optional<GivenDelays::Base> named =
        delays_.BaseOf(pull.rank, pull.clock, shard);
    SL_CHECK(named.has_value(), "a pull is answered before its turn");
    told = *std::move(named);
  }
  const bool as_they_are = pull.state || pull.exact;
  Answer& answer = call.effects.answers.emplace_back(
      Answer{.pull = pull,
             .shard_clock = shard_clock,
             .version = told.version,
             .values = as_they_are ? told.values : RoundedOf(told)});
  if (!as_they_are) answer.kind = rules_->pulled_as;
  size_t bytes = answer.values.size();
  if (pull.state) {
    answer.hash = StateHash(shard.version(), shard.values(), shard.slots());
    answer.slots = shard.slots();
    for (const Payload& slot : answer.slots) bytes += slot.size();
  }
  call.counts.Answered(bytes);
  call.effects.work.push_back(
      {.shard = range().shard, .pulls = 1, .bytes_out = bytes});
  if (pull.state) return;  // For no step.
  if (!delays_.given()) {
    stale_.OnAnswer(pull.rank, pull.incarnation, told.version, told.values);
  }
  // Not of the final model; and once for each step, though who has not heard
  // the answer asks again.
  LeadCounted& counted = leads_[pull.rank];
  if (counted.incarnation != pull.incarnation)
    counted = {.incarnation = pull.incarnation};
  if (pull.clock > counted.clock && pull.clock < call.end) {
    counted.clock = pull.clock;
    call.counts.Lead(
        pull.clock, delays_.given() ? delays_.CompleteFor(pull.rank, pull.clock)
                                    : machine_.complete_clock());
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
}

ShardMachine ServedShard::SplitAt(int64_t at, ShardId part, const Call& call) {
  // A gradient that is held becomes one of each part.
  call.counts.Inherited(machine_.held().size());
  ShardOutcome outcome =
      Commit(SplitRecord{.at = at, .part = part}, std::nullopt, call);
  stale_.Forget();
  return *std::move(outcome.part);
}

std::optional<ShardState> ServedShard::TakeAtCut() {
  const ShardMachine* const machine =
      cut_.has_value() ? cut_->Complete(machine_) : nullptr;
  if (machine == nullptr) return std::nullopt;
  const Shard& shard = machine->shard();
  ShardState state{.table = rules_->table,
                   .begin = shard.range().begin,
                   .end = shard.range().end,
                   .version = shard.version(),
                   .values = shard.values(),
                   .slots = shard.slots(),
                   .running_rms = machine->running_rms()};
  cut_.reset();
  return state;
}

// ---- A move to another thread -----------------------------------------------

void ServedShard::BeginMove(Owner target, uint64_t move, absl::Time now) {
  if (followers_.FeedTo(target) != nullptr)
    return followers_.BeginMove(target, now);
  wire::Feed feed;
  feed.set_move(move);
  feed.set_term(machine_.position().term);
  move_feed_.emplace(rules_->feed, target, feed, machine_, now);
}

const LogFeed* ServedShard::FeedTo(Owner target) const {
  const LogFeed* const of_move = move_feed();
  return of_move != nullptr && of_move->target() == target
             ? of_move
             : followers_.FeedTo(target);
}

bool ServedShard::MustWait(Owner target, absl::Time now) const {
  if (!move_feed_.has_value())
    return !followers_.CaughtUp(target) || !FollowersHaveAll();
  return move_feed_->MustWait(now) ||
         (move_feed_->CaughtUp() && !FollowersHaveAll());
}

bool ServedShard::CanGo(Owner target) const {
  return FollowersHaveAll() &&
         (move_feed_.has_value() ? move_feed_->CaughtUp()
                                 : followers_.CaughtUp(target));
}

LogFeed ServedShard::Go(Owner target, uint64_t move, absl::Time now) {
  const wire::Go go = followers_.GoTo(target, move);
  LogFeed feed = move_feed_.has_value() ? *std::exchange(move_feed_, {})
                                        : followers_.Take(target);
  feed.Go(go, now);
  return feed;
}

}  // namespace slackline
