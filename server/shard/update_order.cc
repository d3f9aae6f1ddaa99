#include "server/shard/update_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/optim/finite.h"
#include "common/status.h"

namespace slackline {
namespace {

template <typename... Parts>
absl::Status Never(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status NotBack(const wire::Push& push, const Participant& from) {
  if (!push.has_advance() || push.clock() >= from.clock)
    return absl::OkStatus();
  return Never("its clock is already ", from.clock);
}

int64_t MissedBy(Version base, const Shard& shard) {
  return base < shard.version() ? static_cast<int64_t>(shard.version() - base)
                                : 0;
}

}  // namespace

// ---- All --------------------------------------------------------------------

void UpdateOrder::Gate(const PullTerms& terms, const ShardMachine&,
                       GatedPull* pull) {
  if (pull->asked->has_join()) return;  // It takes what is there.
  pull->needed = terms.needs.of_all;
  pull->complete = terms.needs.complete;
}

ShardVersion UpdateOrder::Answer(const GatedPull& pull,
                                 const ShardMachine& shard) {
  return {.version = shard.shard().version(),
          .values = shard.shard().store().Pulled(*pull.asked)};
}

std::optional<std::pair<Rank, Clock>> UpdateOrder::Missing(
    const ShardMachine& shard) const {
  const Participant* const slowest = shard.participants().Slowest();
  if (slowest == nullptr) return std::nullopt;
  return std::pair(slowest->rank, slowest->clock);
}

UpdateOrder& UpdateOrders::Of(ModeRule::Updates updates) {
  switch (updates) {
    case ModeRule::Updates::kAtOnce:
      return at_once_;
    case ModeRule::Updates::kByClock:
      return by_clock_;
    case ModeRule::Updates::kAsGiven:
      break;
  }
  return as_given_;
}

// ---- At once ----------------------------------------------------------------

absl::Status AtOnce::MayTake(const wire::Push& push, const Participant& from,
                             const ShardMachine&) const {
  return NotBack(push, from);
}

void AtOnce::OnArrival(const Participant& from, Clock clock,
                       const sync::Mode& mode, absl::Time now) {
  if (RuleOf(mode).extra_steps(mode) > 0)
    dssp_.OnPush(from.rank, from.incarnation, clock, now);
}

UpdateOrder::Verdict AtOnce::Judge(const sync::Mode&, Version base,
                                   const ShardMachine& machine,
                                   GradientRecord* record,
                                   ShardCounts* counts) {
  const Shard& shard = machine.shard();
  const auto workers = static_cast<int>(machine.participants().size());
  if (!stale_.rule().any()) {
    counts->Missed(MissedBy(base, shard), workers);
    return Verdict::kTaken;
  }
  StaleRule::Verdict verdict =
      stale_.OnPush({.rank = record->who.rank,
                     .incarnation = record->who.incarnation,
                     .base = base,
                     .gradient = &record->gradient,
                     .now = shard.version(),
                     .values = &shard.values(),
                     .workers = workers});
  record->options.rate_factor *= verdict.rate_factor;
  if (verdict.drop) return Verdict::kTooStale;
  if (!verdict.gradient.empty()) {
    record->gradient = std::move(verdict.gradient);
    // Products may overflow.
    if (!optim::AllFinite(record->gradient.data(),
                          record->gradient.size() / sizeof(float))) {
      return Verdict::kNotFinite;
    }
  }
  counts->Missed(MissedBy(base, shard), workers);
  return Verdict::kTaken;
}

void AtOnce::Gate(const PullTerms& terms, const ShardMachine& shard,
                  GatedPull* pull) {
  UpdateOrder::Gate(terms, shard, pull);
  if (!pull->asked->has_join() && terms.extra_steps > 0 &&
      shard.participants().MinClock() < pull->needed &&
      dssp_.Grants(*pull, shard.participants(), terms.extra_steps)) {
    pull->needed = terms.granted_of_all;
  }
}

ShardVersion AtOnce::Answer(const GatedPull& pull, const ShardMachine& shard) {
  if (stale_.rule().NeedsBase()) {
    stale_.OnAnswer(pull.rank, pull.incarnation, shard.shard().version(),
                    shard.shard().values());
  }
  return UpdateOrder::Answer(pull, shard);
}

// ---- By clock ---------------------------------------------------------------

absl::Status ByClock::MayTake(const wire::Push& push, const Participant& from,
                              const ShardMachine& shard) const {
  // One frame of each worker is held, so a worker that runs ahead has to wait.
  if (!push.has_advance() && push.clock() > shard.complete_clock())
    return absl::UnavailableError("clocks before it are not complete");
  return NotBack(push, from);
}

UpdateOrder::Verdict ByClock::Judge(const sync::Mode& mode, Version base,
                                    const ShardMachine& shard,
                                    GradientRecord* record,
                                    ShardCounts* counts) {
  // Late: the others' mean is in the model already.
  if (record->clock < shard.complete_clock()) return Verdict::kUseless;
  record->held = true;
  record->spare = RuleOf(mode).spare_workers(mode);
  counts->Missed(MissedBy(base, shard.shard()), 1);
  return Verdict::kTaken;
}

// ---- As given ---------------------------------------------------------------

absl::Status AsGiven::MayTake(const wire::Push& push, const Participant& from,
                              const ShardMachine& shard) const {
  const GivenTurns& turns = *shard.turns();
  if (push.has_advance() && push.clock() != from.clock + 1)
    return Never(
        "it skips steps, and the job's delays have a gradient of each");
  if (from.clock >= turns.plan().steps())
    return Never("the job has ", turns.plan().steps(), " steps");
  if (from.clock < turns.plan().first())
    return Never("the job's delays begin at clock ", turns.plan().first());
  const std::optional<ShardVersion> base =
      turns.BaseOf(from.rank, from.clock, shard.shard());
  if (base.has_value() &&
      (push.has_advance() || base->version == push.gradient())) {
    return absl::OkStatus();
  }
  if (push.has_advance())
    return Never("the job's delays name no version for it that is there");
  return Never("it was computed from version ", push.gradient(),
               ", and the delays of the job name the version after ",
               turns.TurnsBefore(from.rank, from.clock), " updates",
               base.has_value() ? absl::StrCat(", which is ", base->version)
                                : ", which is not there yet");
}

UpdateOrder::Verdict AsGiven::Judge(const sync::Mode&, Version,
                                    const ShardMachine& shard,
                                    GradientRecord* record, ShardCounts*) {
  return shard.turns()->Uses(record->who.rank, record->clock)
             ? Verdict::kTaken
             : Verdict::kUseless;
}

bool AsGiven::IsOver(Clock step, const Participant& from,
                     const ShardMachine& shard) const {
  return step < std::max(from.clock, shard.turns()->plan().first());
}

void AsGiven::Gate(const PullTerms& terms, const ShardMachine& shard,
                   GatedPull* pull) {
  // A job that goes on from a checkpoint does so in the middle of its turns.
  if (const Participant* const who =
          shard.participants().Find(pull->rank, pull->incarnation);
      pull->asked->has_join() && who != nullptr) {
    pull->clock = who->joined_at;
  }
  pull->needed = terms.needs.of_all;
  pull->complete = shard.turns()->TurnsBefore(pull->rank, pull->clock);
}

ShardVersion AsGiven::Answer(const GatedPull& pull, const ShardMachine& shard) {
  std::optional<ShardVersion> named =
      shard.turns()->BaseOf(pull.rank, pull.clock, shard.shard());
  SL_CHECK(named.has_value(), "a pull is answered before its turn");
  return *std::move(named);
}

Clock AsGiven::CompleteFor(const GatedPull& pull,
                           const ShardMachine& shard) const {
  return shard.turns()->CompleteFor(pull.rank, pull.clock);
}

std::optional<std::pair<Rank, Clock>> AsGiven::Missing(
    const ShardMachine& shard) const {
  return shard.turns()->Missing(shard.participants());
}

}  // namespace slackline
