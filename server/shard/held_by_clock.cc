#include "server/shard/held_by_clock.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/shard_snapshot.h"

namespace slackline {
namespace {

// With so many gradients of the `last` clock.
Clock CompleteWith(int64_t gradients, int spare, Clock last,
                   const Participants& participants) {
  // Who has left counts with what it pushed, and is waited for no more.
  const auto needed = static_cast<int64_t>(participants.size()) - spare;
  const bool enough = gradients > 0 && spare > 0 && gradients >= needed;
  return std::max(last + (enough ? 1 : 0), participants.MinClock());
}

void SortByWorker(std::vector<HeldGradient>* held) {
  std::ranges::sort(*held, {}, [](const HeldGradient& gradient) {
    return std::tie(gradient.who.rank, gradient.who.incarnation);
  });
}

}  // namespace

absl::Status HeldByClock::Add(const GradientRecord& push,
                              const Present& present) {
  if (push.held) {
    spare_ = push.spare;
    held_.push_back({.who = push.who,
                     .gradient = push.gradient,
                     .options = push.options,
                     .rms = push.rms});
    return absl::OkStatus();
  }
  due_ = DueUpdate{.clock = push.clock,
                   .ranks = {push.who.rank},
                   .gradients = {push.gradient},
                   .rms = {push.rms},
                   .workers = static_cast<int>(present.participants.size()),
                   .options = push.options};
  return absl::OkStatus();
}

absl::Status HeldByClock::AddSum(const SumRecord& sum, Clock last,
                                 const Participants& after) {
  const size_t count = sum.who.size();
  if (!held_.empty() || CompleteWith(static_cast<int64_t>(count), sum.spare,
                                     last, after) == last) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of ", count, " gradients, spare ", sum.spare,
                     ", is not all of clock ", sum.clock,
                     ", of which the shard holds ", held_.size()));
  }
  spare_ = sum.spare;
  due_ = DueUpdate{.clock = sum.clock,
                   .ranks = {},
                   .gradients = {sum.sum},
                   .rms = {sum.rms.begin(), sum.rms.end()},
                   .workers = static_cast<int>(count),
                   .options = sum.options,
                   .of_clock = true};
  for (const WorkerLife& who : sum.who) due_->ranks.push_back(who.rank);
  return absl::OkStatus();
}

int HeldByClock::OnInstalled() {
  const auto replaced = static_cast<int>(held_.size());
  held_.clear();
  return replaced;
}

Clock HeldByClock::CompleteClock(Clock last,
                                 const Participants& participants) const {
  const bool sum = due_.has_value() && due_->of_clock;
  return CompleteWith(
      static_cast<int64_t>(sum ? due_->ranks.size() : held_.size()), spare_,
      last, participants);
}

std::optional<DueUpdate> HeldByClock::Next(const Present&,
                                           std::optional<Clock> completed,
                                           std::vector<TurnVerdict>*) {
  if (due_.has_value()) return std::exchange(due_, std::nullopt);
  // All that are held are of the clock that is complete. Later clocks, up to
  // the one that is reached, are clocks at which every participant only
  // advanced, or of modes that hold nothing.
  if (!completed.has_value() || held_.empty()) return std::nullopt;
  SortByWorker(&held_);
  std::optional<DueUpdate> update(std::in_place);
  update->clock = *completed;
  update->workers = static_cast<int>(held_.size());
  // One update has one rate: that of the lowest rank.
  update->options = held_.front().options;
  update->of_clock = true;
  for (HeldGradient& held : std::exchange(held_, {})) {
    update->ranks.push_back(held.who.rank);
    update->gradients.push_back(std::move(held.gradient));
    update->rms.push_back(held.rms);
  }
  return update;
}

HeldByClock HeldByClock::Split(const ShardStore& store, const Region& kept,
                               const Region& rest) {
  HeldByClock part = *this;
  for (size_t i = 0; i < held_.size(); ++i) {
    std::tie(held_[i].gradient, part.held_[i].gradient) =
        store.SplitGradient(held_[i].gradient, kept, rest);
  }
  return part;
}

void HeldByClock::Put(ShardSnapshot* snapshot) const {
  snapshot->held = held_;
  SortByWorker(&snapshot->held);
  snapshot->spare = spare_;
}

absl::Status HeldByClock::Check(const ShardStore& store) const {
  for (const HeldGradient& held : held_)
    SL_RETURN_IF_ERROR(store.CheckGradient(held.gradient));
  return absl::OkStatus();
}

}  // namespace slackline
