#include "server/shard/given_delays.h"

#include <algorithm>

namespace slackline {

GivenDelays::GivenDelays(std::shared_ptr<const DelayPlan> plan, ShardId shard)
    : plan_(std::move(plan)),
      shard_(shard),
      next_clock_(static_cast<size_t>(plan_->workers()), plan_->first()) {}

int64_t GivenDelays::TurnsBefore(Rank rank, Clock clock) const {
  return plan_->Of(shard_).TurnsBefore(static_cast<int32_t>(rank), clock);
}

Clock GivenDelays::CompleteFor(Rank rank, Clock clock) const {
  return plan_->Of(shard_).CompleteFor(static_cast<int32_t>(rank), clock);
}

bool GivenDelays::Uses(Rank rank, Clock clock) const {
  return plan_->Of(shard_).Uses(static_cast<int32_t>(rank), clock);
}

std::optional<GivenDelays::Base> GivenDelays::BaseOf(
    Rank rank, Clock clock, const Shard& present) const {
  const int64_t turns = TurnsBefore(rank, clock);
  if (turns == turns_)
    return Base{.version = present.version(), .values = present.values()};
  const auto kept = kept_.find(turns);
  if (kept == kept_.end()) return std::nullopt;
  return kept->second.base;
}

void GivenDelays::Add(Push push) {
  next_clock_[static_cast<size_t>(push.rank)] = push.clock + 1;
  const auto kept = kept_.find(TurnsBefore(push.rank, push.clock));
  if (kept != kept_.end() && --kept->second.readers == 0) kept_.erase(kept);
  if (!Uses(push.rank, push.clock)) return;
  waiting_gradients_ += !push.gradient.empty();
  const std::pair<Rank, Clock> key{push.rank, push.clock};
  waiting_.emplace(key, std::move(push));
}

const DelayTrace::Update* GivenDelays::NextTurn() const {
  const DelayPlan::OfShard plan = plan_->Of(shard_);
  return turns_ < plan.turn_count() ? &plan.turn(turns_) : nullptr;
}

std::optional<std::pair<Rank, Clock>> GivenDelays::Missing() const {
  const DelayTrace::Update* const next = NextTurn();
  if (next == nullptr) return std::nullopt;
  for (const int32_t rank : next->ranks) {
    const std::pair<Rank, Clock> key{Rank{rank}, next->clock};
    if (!waiting_.contains(key)) return key;
  }
  return std::nullopt;
}

bool GivenDelays::Ready() const {
  return NextTurn() != nullptr && !Missing().has_value();
}

GivenDelays::Turn GivenDelays::Take(const Shard& before) {
  const DelayPlan::OfShard plan = plan_->Of(shard_);
  const absl::Span<const DelayPlan::Reader> readers = plan.ReadersAfter(turns_);
  const auto to_come = static_cast<int>(std::count_if(
      readers.begin(), readers.end(), [&](const DelayPlan::Reader& reader) {
        return reader.clock >= next_clock_[static_cast<size_t>(reader.rank)];
      }));
  if (to_come > 0) {
    kept_[turns_] = {
        .base = {.version = before.version(), .values = before.values()},
        .readers = to_come};
  }
  const DelayTrace::Update& update = plan.turn(turns_++);
  Turn turn{.clock = update.clock,
            .workers = update.workers,
            .mean = plan.IsMean(update),
            .pushes = {}};
  for (const int32_t rank : update.ranks) {
    const auto push = waiting_.find(std::pair(Rank{rank}, update.clock));
    waiting_gradients_ -= !push->second.gradient.empty();
    turn.pushes.push_back(std::move(push->second));
    waiting_.erase(push);
  }
  return turn;
}

}  // namespace slackline
