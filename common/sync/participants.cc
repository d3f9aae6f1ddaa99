#include "common/sync/participants.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/status.h"

namespace slackline {
namespace {

auto LowerBound(auto& participants, Rank rank) {
  return std::lower_bound(participants.begin(), participants.end(), rank,
                          [](const Participant& participant, Rank value) {
                            return participant.rank < value;
                          });
}

}  // namespace

Participants::Participants(Clock min_clock,
                           std::vector<Participant> participants)
    : min_clock_(min_clock),
      max_clock_(min_clock),
      participants_(std::move(participants)) {
  UpdateClocks();
}

Participant& Participants::Join(Rank rank, Incarnation incarnation,
                                Clock clock) {
  SL_CHECK(!Has(rank), "a rank joined a shard twice");
  const Clock start = std::max(clock, min_clock_);
  const bool only_one = empty();
  const auto inserted = participants_.insert(LowerBound(participants_, rank),
                                             {.rank = rank,
                                              .incarnation = incarnation,
                                              .joined_at = start,
                                              .clock = start});
  if (only_one) {
    UpdateClocks();
    return *inserted;
  }
  max_clock_ = std::max(max_clock_, start);
  const auto place =
      static_cast<size_t>(std::distance(participants_.begin(), inserted));
  if (place <= slowest_) ++slowest_;
  if (start == min_clock_) {
    ++at_min_count_;
    slowest_ = std::min(slowest_, place);
  }
  return *inserted;
}

Participant* Participants::Find(Rank rank, Incarnation incarnation) {
  const auto at = LowerBound(participants_, rank);
  const bool found = at != participants_.end() && at->rank == rank &&
                     at->incarnation == incarnation;
  return found ? &*at : nullptr;
}

const Participant* Participants::Find(Rank rank,
                                      Incarnation incarnation) const {
  return const_cast<Participants*>(this)->Find(rank, incarnation);
}

bool Participants::Has(Rank rank) const {
  const auto at = LowerBound(participants_, rank);
  return at != participants_.end() && at->rank == rank;
}

void Participants::Remove(absl::Span<const Incarnation> incarnations) {
  std::vector<Incarnation> gone(incarnations.begin(), incarnations.end());
  std::sort(gone.begin(), gone.end());
  std::erase_if(participants_, [&](const Participant& participant) {
    return std::binary_search(gone.begin(), gone.end(),
                              participant.incarnation);
  });
  UpdateClocks();
}

void Participants::Advance(Participant& participant, Clock clock) {
  SL_CHECK(clock >= participant.clock, "a clock went backwards");
  const bool was_slowest =
      participant.clock == min_clock_ && clock > participant.clock;
  participant.clock = clock;
  max_clock_ = std::max(max_clock_, clock);
  if (!was_slowest) return;
  if (--at_min_count_ == 0) return UpdateClocks();
  while (participants_[slowest_].clock != min_clock_) ++slowest_;
}

void Participants::AdvanceAll(Clock clock) {
  for (Participant& participant : participants_) {
    participant.clock = std::max(participant.clock, clock);
  }
  UpdateClocks();
}

void Participants::UpdateClocks() {
  if (participants_.empty()) {
    max_clock_ = min_clock_;
    return;
  }
  min_clock_ = max_clock_ = participants_.front().clock;
  at_min_count_ = slowest_ = 0;
  for (size_t i = 0; i < participants_.size(); ++i) {
    const Clock clock = participants_[i].clock;
    max_clock_ = std::max(max_clock_, clock);
    if (clock < min_clock_) {
      min_clock_ = clock;
      slowest_ = i;
      at_min_count_ = 0;
    }
    at_min_count_ += clock == min_clock_;
  }
}

}  // namespace slackline
