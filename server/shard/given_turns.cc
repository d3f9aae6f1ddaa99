#include "server/shard/given_turns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/optim/finite.h"
#include "common/status.h"

namespace slackline {
namespace {

const float* AsFloats(const Payload& payload) {
  return reinterpret_cast<const float*>(payload.data());
}

bool AllFinite(const Payload& gradient) {
  return optim::AllFinite(gradient.data(), gradient.size() / sizeof(float));
}

// Who has left has pushed all that it ever will.
bool HasPushed(const Participants& participants, Rank rank, Clock clock) {
  const auto who = std::lower_bound(
      participants.begin(), participants.end(), rank,
      [](const Participant& other, Rank r) { return other.rank < r; });
  return who == participants.end() || who->rank != rank || who->clock > clock;
}

// Whether the gradient is still to be computed, or judged, from its version.
bool Needs(const DelayPlan::Reader& reader, const UpdateRule& rule,
           const TurnState& state, const Participants& participants) {
  const Rank rank{reader.rank};
  return !HasPushed(participants, rank, reader.clock) ||
         (rule.stale.NeedsBase() &&
          state.waiting.contains({reader.clock, rank}));
}

template <typename... Parts>
absl::Status Unfit(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace

GivenTurns::GivenTurns(std::shared_ptr<const UpdateRule> rule, TurnState state)
    : rule_(std::move(rule)), state_(std::move(state)) {}

absl::Status GivenTurns::Check(const UpdateRule& rule, const TurnState& state,
                               Version version,
                               const Participants& participants) {
  const DelayPlan& plan = *rule.delays;
  if (!plan.Has(state.plan)) {
    return Unfit("turns of shard ", static_cast<int>(state.plan),
                 ", which the delays do not have");
  }
  const DelayPlan::OfShard turns = plan.Of(state.plan);
  if (state.over < 0 || state.over > turns.turn_count()) {
    return Unfit(state.over, " turns are over; the delays have ",
                 turns.turn_count());
  }
  for (const auto& [key, waiting] : state.waiting) {
    const auto& [clock, rank] = key;
    const auto number = static_cast<int32_t>(rank);
    const bool planned = number >= 0 && number < plan.workers() &&
                         clock >= plan.first() && turns.Uses(number, clock);
    if (planned && waiting.base <= version &&
        HasPushed(participants, rank, clock)) {
      continue;
    }
    return Unfit("a gradient of rank ", number, " and clock ", clock,
                 " waits for its turn, which it cannot have");
  }
  const int64_t over = state.waiting.empty() ? 0 : state.over;
  for (int64_t turn = 0; turn < over; ++turn) {
    const DelayTrace::Update& update = turns.turn(turn);
    for (const int32_t rank : update.ranks) {
      if (!state.waiting.contains({update.clock, Rank{rank}})) continue;
      return Unfit("a gradient of rank ", rank, " and clock ", update.clock,
                   " waits for turn ", turn, ", which is over");
    }
  }
  // Both in the order of turns.
  auto kept = state.kept.begin();
  int64_t found = -1;
  for (const DelayPlan::Reader& reader : turns.ReadersBefore(state.over)) {
    if (reader.turns == found || !Needs(reader, rule, state, participants))
      continue;
    found = reader.turns;
    if (kept == state.kept.end() || kept->first > found)
      return Unfit("the version after ", found,
                   " turns is needed, and missing");
    if (kept->first < found) break;
    ++kept;
  }
  if (kept != state.kept.end()) {
    return Unfit("the version after ", kept->first,
                 " turns is kept, and nobody needs it");
  }
  return absl::OkStatus();
}

std::optional<ShardVersion> GivenTurns::BaseOf(Rank rank, Clock clock,
                                               const Shard& present) const {
  const int64_t turns = TurnsBefore(rank, clock);
  if (turns == state_.over) {
    return ShardVersion{.version = present.version(),
                        .values = present.values()};
  }
  const auto kept = state_.kept.find(turns);
  if (kept == state_.kept.end()) return std::nullopt;
  return kept->second;
}

std::optional<std::pair<Rank, Clock>> GivenTurns::Missing(
    const Participants& participants) const {
  if (state_.over == turns().turn_count()) return std::nullopt;
  const DelayTrace::Update& next = turns().turn(state_.over);
  for (const int32_t rank : next.ranks) {
    if (!HasPushed(participants, Rank{rank}, next.clock))
      return std::pair(Rank{rank}, next.clock);
  }
  return std::nullopt;
}

absl::Status GivenTurns::MayJoin() const {
  // What the steps of who joins would be computed from is let go.
  return Unfit("a job with given delays has the workers that it began with");
}

absl::Status GivenTurns::MayInstall(const InstallRecord& install) const {
  if (state_.over == 0 && state_.waiting.empty() && install.joining.empty())
    return absl::OkStatus();
  return Unfit("an installation at clock ", install.clock,
               ", and the turns of the job's delays have begun, or somebody "
               "joins");
}

absl::Status GivenTurns::AddSum(const SumRecord& sum, Clock,
                                const Participants&) {
  return Unfit("a sum of ", sum.who.size(), " gradients of clock ", sum.clock,
               ", and with given delays each has its turn");
}

absl::Status GivenTurns::Add(const GradientRecord& push,
                             const Present& present) {
  const Rank rank = push.who.rank;
  if (push.held || static_cast<int32_t>(rank) >= plan().workers() ||
      push.clock < plan().first() || !Uses(rank, push.clock)) {
    return Unfit("a gradient of rank ", static_cast<int>(rank), " and clock ",
                 push.clock, ", of which the delays have no update");
  }
  const std::optional<ShardVersion> base =
      BaseOf(rank, push.clock, present.shard);
  if (!base.has_value()) {
    return Unfit("a gradient of rank ", static_cast<int>(rank), " and clock ",
                 push.clock, " before its version is there");
  }
  state_.waiting.insert_or_assign({push.clock, rank},
                                  WaitingGradient{.base = base->version,
                                                  .gradient = push.gradient,
                                                  .options = push.options,
                                                  .rms = push.rms});
  return absl::OkStatus();
}

bool GivenTurns::IsNeeded(int64_t turns,
                          const Participants& participants) const {
  const absl::Span<const DelayPlan::Reader> readers =
      this->turns().ReadersAfter(turns);
  return std::any_of(readers.begin(), readers.end(), [&](const auto& reader) {
    return Needs(reader, *rule_, state_, participants);
  });
}

void GivenTurns::LetGo(int64_t turns, const Participants& participants) {
  const auto kept = state_.kept.find(turns);
  if (kept != state_.kept.end() && !IsNeeded(turns, participants))
    state_.kept.erase(kept);
}

void GivenTurns::OnPushed(Rank rank, Clock from, Clock to,
                          const Participants& participants) {
  if (static_cast<int32_t>(rank) >= plan().workers()) return;
  const Clock end = std::min(to, plan().steps());
  for (Clock clock = std::max(from, plan().first()); clock < end; ++clock)
    LetGo(TurnsBefore(rank, clock), participants);
}

void GivenTurns::OnParticipants(const Participants& participants) {
  std::erase_if(state_.kept, [&](const auto& kept) {
    return !IsNeeded(kept.first, participants);
  });
}

TurnVerdict GivenTurns::Judge(std::pair<Rank, Clock> of,
                              WaitingGradient* waiting, bool mean, int workers,
                              const Present& present) {
  const Shard& shard = present.shard;
  using Kind = TurnVerdict::Kind;
  TurnVerdict verdict{
      .rank = of.first,
      .clock = of.second,
      .missed_updates = static_cast<int64_t>(shard.version() - waiting->base),
      .workers = mean ? 1 : workers};
  verdict.excess =
      rule_->gradient_bound.Judge(waiting->rms, present.running_rms);
  if (verdict.excess.has_value()) {
    verdict.kind = Kind::kOversized;
    return verdict;
  }
  if (mean) return verdict;
  const std::optional<ShardVersion> base =
      rule_->stale.NeedsBase() ? BaseOf(of.first, of.second, shard)
                               : std::nullopt;
  StaleRule::Verdict stale = rule_->stale.Judge(
      {.gradient = waiting->gradient.data(),
       .elements = waiting->gradient.size() / sizeof(float),
       .now = AsFloats(shard.values()),
       .then = base.has_value() ? AsFloats(base->values) : nullptr,
       .missed_updates = verdict.missed_updates,
       .workers = workers,
       .maximize = rule_->optimizer.maximize()},
      &state_.memory);
  waiting->options.rate_factor *= stale.rate_factor;
  if (stale.drop) {
    verdict.kind = Kind::kTooStale;
  } else if (!stale.gradient.empty()) {
    waiting->gradient = std::move(stale.gradient);
    // Products may overflow.
    if (!AllFinite(waiting->gradient)) verdict.kind = Kind::kNotFinite;
  }
  return verdict;
}

std::optional<DueUpdate> GivenTurns::Next(const Present& present,
                                          std::optional<Clock>,
                                          std::vector<TurnVerdict>* verdicts) {
  const Participants& participants = present.participants;
  if (state_.over == turns().turn_count() || Missing(participants).has_value())
    return std::nullopt;
  const DelayTrace::Update& update = turns().turn(state_.over);
  const bool mean = turns().IsMean(update);
  DueUpdate turn;
  turn.clock = update.clock;
  turn.workers = update.workers;
  for (const int32_t rank : update.ranks) {
    const auto found = state_.waiting.find({update.clock, Rank{rank}});
    if (found == state_.waiting.end()) continue;  // It came to nothing.
    const TurnVerdict verdict =
        Judge({Rank{rank}, update.clock}, &found->second, mean, update.workers,
              present);
    verdicts->push_back(verdict);
    const WaitingGradient waiting = std::move(found->second);
    state_.waiting.erase(found);
    if (verdict.kind != TurnVerdict::Kind::kApplied) continue;
    // One update has one rate: that of its first gradient.
    if (turn.gradients.empty()) turn.options = waiting.options;
    turn.ranks.push_back(Rank{rank});
    turn.gradients.push_back(waiting.gradient);
    turn.rms.push_back(waiting.rms);
  }
  if (mean) turn.workers = static_cast<int>(turn.gradients.size());
  if (IsNeeded(state_.over, participants)) {
    state_.kept[state_.over] = {.version = present.shard.version(),
                                .values = present.shard.values()};
  }
  ++state_.over;
  if (rule_->stale.NeedsBase()) {
    for (const int32_t rank : update.ranks)
      LetGo(TurnsBefore(Rank{rank}, update.clock), participants);
  }
  return turn;
}

void GivenTurns::OnUpdate(const Payload& before, const Payload& after) {
  rule_->stale.Updated(AsFloats(before), AsFloats(after),
                       after.size() / sizeof(float), &state_.memory);
}

GivenTurns GivenTurns::Split(const ShardStore&, const Region& kept_region,
                             const Region&) {
  const size_t bytes = kept_region.DenseBytes();
  GivenTurns part = *this;
  const auto split = [&](Payload* kept, Payload* rest) {
    const Payload whole = *kept;
    *kept = whole.Slice(0, bytes);
    *rest = whole.Slice(bytes, whole.size() - bytes);
  };
  for (auto& [key, waiting] : state_.waiting)
    split(&waiting.gradient, &part.state_.waiting.at(key).gradient);
  for (auto& [turns, kept] : state_.kept)
    split(&kept.values, &part.state_.kept.at(turns).values);
  if (std::vector<float>& mean = state_.memory.mean; !mean.empty()) {
    const auto elements = static_cast<ptrdiff_t>(bytes / sizeof(float));
    part.state_.memory.mean.assign(mean.begin() + elements, mean.end());
    mean.resize(bytes / sizeof(float));
  }
  return part;
}

void GivenTurns::Put(ShardSnapshot* snapshot) const {
  snapshot->turns = state_;
}

absl::Status GivenTurns::Check(const ShardStore& store) const {
  for (const auto& [of, waiting] : state_.waiting)
    SL_RETURN_IF_ERROR(store.CheckGradient(waiting.gradient));
  return absl::OkStatus();
}

}  // namespace slackline
