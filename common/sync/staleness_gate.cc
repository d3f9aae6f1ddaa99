#include "common/sync/staleness_gate.h"

#include <algorithm>

#include "common/status.h"

namespace slackline {

StalenessGate::Participant& StalenessGate::Join(Rank rank,
                                                Incarnation incarnation,
                                                Clock clock) {
  const auto at =
      std::lower_bound(participants_.begin(), participants_.end(), rank,
                       [](const Participant& participant, Rank value) {
                         return participant.rank < value;
                       });
  SL_CHECK(at == participants_.end() || at->rank != rank,
           "a rank joined a shard twice");
  const Clock start = std::max(clock, min_clock_);
  const auto inserted = participants_.insert(at, {.rank = rank,
                                                  .incarnation = incarnation,
                                                  .joined_at = start,
                                                  .clock = start});
  const size_t index = inserted - participants_.begin();
  UpdateMinClock();
  return participants_[index];
}

void StalenessGate::Restore(Clock min_clock,
                            std::vector<Participant> participants) {
  min_clock_ = min_clock;
  participants_ = std::move(participants);
  parked_.clear();
  UpdateMinClock();
}

StalenessGate::Participant* StalenessGate::Find(Rank rank,
                                                Incarnation incarnation) {
  const auto at =
      std::lower_bound(participants_.begin(), participants_.end(), rank,
                       [](const Participant& participant, Rank value) {
                         return participant.rank < value;
                       });
  if (at == participants_.end() || at->rank != rank) return nullptr;
  return at->incarnation == incarnation ? &*at : nullptr;
}

void StalenessGate::Advance(Participant& participant, Clock clock) {
  SL_CHECK(clock >= participant.clock, "a clock went backwards");
  const bool was_slowest =
      participant.clock == min_clock_ && clock > participant.clock;
  participant.clock = clock;
  // Amortised: one pass over the participants per clock, not per push.
  if (was_slowest && --at_min_count_ == 0) UpdateMinClock();
}

void StalenessGate::AdvanceAll(Clock clock) {
  for (Participant& participant : participants_) {
    participant.clock = std::max(participant.clock, clock);
  }
  UpdateMinClock();
}

void StalenessGate::UpdateMinClock() {
  if (participants_.empty()) return;
  min_clock_ = participants_.front().clock;
  for (const Participant& participant : participants_) {
    min_clock_ = std::min(min_clock_, participant.clock);
  }
  at_min_count_ = static_cast<int>(std::count_if(
      participants_.begin(), participants_.end(),
      [&](const Participant& p) { return p.clock == min_clock_; }));
}

const StalenessGate::Participant* StalenessGate::Slowest() const {
  for (const Participant& participant : participants_) {
    if (participant.clock == min_clock_) return &participant;
  }
  return nullptr;
}

bool StalenessGate::Admits(Clock complete, const Pull& pull) const {
  if (min_clock_ < pull.needed || complete < pull.complete) return false;
  const Participant* const puller =
      const_cast<StalenessGate*>(this)->Find(pull.rank, pull.incarnation);
  return puller != nullptr && puller->clock >= pull.own_clock;
}

bool StalenessGate::Park(const Pull& pull) {
  for (Pull& parked : parked_) {
    if (parked.rank != pull.rank) continue;
    const bool repeated = parked.request_id == pull.request_id;
    parked = pull;
    return !repeated;
  }
  parked_.push_back(pull);
  return true;
}

void StalenessGate::Release(Clock complete, std::vector<Pull>* admitted) {
  std::erase_if(parked_, [&](const Pull& pull) {
    if (!Admits(complete, pull)) return false;
    admitted->push_back(pull);
    return true;
  });
}

}  // namespace slackline
