// Who takes part at one shard, and how far each one is there.
//
// A participant is a worker whose pushes the shard waits for. Its clock counts
// the steps whose push has been accepted. Participants are one sequence, sorted
// by rank, with at most one incarnation of each rank.
//
// Finding one costs the logarithm of their number. Advancing one costs the same
// for any number, amortised: all are looked at only when the last of the
// slowest ones goes on, and each of them has advanced by then.
//
// Plain state: no I/O, threads, time or randomness. Thread-compatible.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace slackline {

struct Participant {
  Rank rank{};
  Incarnation incarnation = 0;
  Clock joined_at = 0;
  Clock clock = 0;
  // The number of its next push; the dedup window of this shard.
  uint64_t next_seq = 1;
};

class Participants {
 public:
  Participants() = default;
  // The participants of a snapshot, sorted by rank. `min_clock` counts if there
  // are none.
  Participants(Clock min_clock, std::vector<Participant> participants);

  // Adds a participant at `clock`, or at the smallest clock of the others if
  // that is larger. A rank that is already there must leave first: fatal.
  Participant& Join(Rank rank, Incarnation incarnation, Clock clock);
  // nullptr if this incarnation of the rank does not take part.
  Participant* Find(Rank rank, Incarnation incarnation);
  const Participant* Find(Rank rank, Incarnation incarnation) const;
  // Whether the rank takes part, whatever its incarnation is.
  bool Has(Rank rank) const;
  // Incarnations that do not take part are ignored.
  void Remove(absl::Span<const Incarnation> incarnations);

  // The participant's clock becomes `clock`, which is not smaller than before.
  void Advance(Participant& participant, Clock clock);
  // Every participant that is behind `clock` gets there.
  void AdvanceAll(Clock clock);

  // The smallest clock of a participant. With none left, the last one known.
  Clock MinClock() const { return min_clock_; }
  // Who has that clock (the lowest rank); nullptr with no participants.
  const Participant* Slowest() const {
    return empty() ? nullptr : &participants_[slowest_];
  }
  // The largest clock of a participant; MinClock() with none left.
  Clock MaxClock() const { return max_clock_; }

  auto begin() const { return participants_.begin(); }
  auto end() const { return participants_.end(); }
  size_t size() const { return participants_.size(); }
  bool empty() const { return participants_.empty(); }

 private:
  // Looks at all of them.
  void UpdateClocks();

  Clock min_clock_ = 0;
  Clock max_clock_ = 0;
  size_t at_min_count_ = 0;  // Participants whose clock is min_clock_,
  size_t slowest_ = 0;       // and the place of the first of them.
  std::vector<Participant> participants_;  // Sorted by rank.
};

}  // namespace slackline
