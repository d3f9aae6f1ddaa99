// Bounded-staleness admission of pulls to one shard.
//
// A participant is a worker whose pushes the shard waits for. Its clock counts
// the steps whose push has been taken over. A pull made for clock c is admitted
// when every participant has a clock of at least c minus the staleness bound
// (Ho et al., "More effective distributed ML via a stale synchronous parallel
// parameter server", 2013; NeededClock() in phases.h) and the puller itself at
// least own_clock, so that it sees its own pushes. In BACKUP clocks can be
// complete before every participant has pushed them; then the pull waits for
// the shard's clock, which the caller knows. Pulls that are not admitted are
// parked, at most one for each participant.
//
// Pure state machine: no I/O, threads, time or randomness. Thread-compatible;
// the thread that owns the shard is its only caller.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace slackline {

// Clocks are below this, so that a bound can be added and subtracted.
inline constexpr Clock kClockMax = Clock{1} << 60;

class StalenessGate {
 public:
  struct Participant {
    Rank rank{};
    Incarnation incarnation = 0;
    Clock joined_at = 0;
    Clock clock = 0;
    uint64_t next_seq = 1;  // Of its pushes; the dedup window of this shard.
  };
  struct Pull {
    Rank rank{};
    Incarnation incarnation = 0;
    uint64_t request_id = 0;
    Clock clock = 0;
    Clock own_clock = 0;
    Clock needed = 0;    // Of every participant.
    Clock complete = 0;  // Of the shard: clocks below it are complete.
    bool state = false;  // Optimizer slots, too.
  };

  // Adds a participant at `clock`, or at the smallest clock of the others if
  // that is larger. A rank that is already there must leave first: fatal.
  Participant& Join(Rank rank, Incarnation incarnation, Clock clock);
  // Becomes what another gate was: for a shard that has moved. `participants`
  // are sorted by rank; nothing is parked.
  void Restore(Clock min_clock, std::vector<Participant> participants);
  // nullptr if this incarnation of the rank does not take part.
  Participant* Find(Rank rank, Incarnation incarnation);
  // Removes the participants that `keep` refuses
  // and their parked pulls. What this unblocks comes out of Release().
  template <typename Keep>
  void RemoveUnless(const Keep& keep) {
    std::erase_if(participants_,
                  [&](const Participant& p) { return !keep(p); });
    std::erase_if(parked_, [&](const Pull& pull) {
      return Find(pull.rank, pull.incarnation) == nullptr;
    });
    UpdateMinClock();
  }

  // Every participant that is behind `clock` gets there.
  void AdvanceAll(Clock clock);
  // The participant's clock becomes `clock`, which is not smaller than before.
  void Advance(Participant& participant, Clock clock);

  // The smallest clock of a participant. With none left, the last one known.
  Clock MinClock() const { return min_clock_; }
  // Who has that clock (the lowest rank); nullptr with no participants.
  const Participant* Slowest() const;
  const std::vector<Participant>& participants() const { return participants_; }

  // `complete`: the shard's clock.
  bool Admits(Clock complete, const Pull& pull) const;
  // Parks a pull; an older one of the same participant is replaced. False if
  // exactly this request was parked already.
  bool Park(const Pull& pull);
  // Appends to `*admitted` every parked pull that may go now, in parking order.
  void Release(Clock complete, std::vector<Pull>* admitted);
  const std::vector<Pull>& parked() const { return parked_; }
  size_t parked_count() const { return parked_.size(); }
  // Parks nothing any more; returns what was parked.
  std::vector<Pull> TakeParked() { return std::exchange(parked_, {}); }

 private:
  void UpdateMinClock();

  Clock min_clock_ = 0;
  int at_min_count_ = 0;  // Participants whose clock is min_clock_.
  std::vector<Participant> participants_;  // Sorted by rank.
  std::vector<Pull> parked_;
};

}  // namespace slackline
