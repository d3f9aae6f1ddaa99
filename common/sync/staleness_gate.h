// Bounded-staleness admission of pulls to one shard.
//
// A pull made for clock c is admitted when every participant has a clock of at
// least c minus the staleness bound (Ho et al., "More effective distributed ML
// via a stale synchronous parallel parameter server", 2013; NeedsAt() in
// phases.h) and the puller itself at least own_clock, so that it sees its own
// pushes. In BACKUP clocks can be complete before every participant has pushed
// them; then the pull waits for the shard's clock. Pulls that are not admitted
// are parked, at most one for each participant.
//
// What it costs to park a pull and to let it go grows with the logarithm of the
// number of parked pulls, amortised: only pulls for which something has come
// true are looked at.
//
// Pure state machine: no I/O, threads, time or randomness; the time that a pull
// carries means nothing here, nor does what it asks for. Thread-compatible;
// the thread that owns the shard is its only caller.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/sync/participants.h"
#include "proto/data.pb.h"

namespace slackline {

struct GatedPull {
  Rank rank{};
  Incarnation incarnation = 0;
  uint64_t request_id = 0;
  Clock clock = 0;
  Clock own_clock = 0;
  Clock needed = 0;    // Every participant has to reach it.
  Clock complete = 0;  // The shard's clocks below it have to be complete.
  // Both are carried for whoever answers it: what it asks of each of its
  // shards, which are not listed, and when that was asked for first.
  std::shared_ptr<const wire::Pull> asked = nullptr;
  absl::Time since = absl::InfiniteFuture();
};

// A parked pull, and its place in the parking order.
struct ParkedPull {
  GatedPull pull;
  uint64_t place = 0;
};

class StalenessGate {
 public:
  using Pull = GatedPull;

  // Whether the pull may go, of a shard with these participants whose clocks
  // below `complete` are complete. A puller that does not take part may not.
  static bool Admits(const Participants& participants, Clock complete,
                     const Pull& pull);
  // Parks a pull; an older one of the same rank is replaced, and the new one
  // has its place in the order. False if exactly this request was parked
  // already.
  bool Park(const Pull& pull);
  // Appends to `*admitted` every parked pull that may go now, in parking order.
  // Call it whenever something has changed at the shard. `changed` is the
  // participant whose own clock it was; nullopt: it may have been everybody's.
  void Release(const Participants& participants, Clock complete,
               std::optional<Rank> changed, std::vector<Pull>* admitted);
  // Forgets the pulls of those who do not take part.
  void ForgetStrangers(const Participants& participants);
  size_t parked_count() const { return parked_.size(); }
  // The parked pulls, in parking order.
  std::vector<Pull> Parked() const;
  // Parks nothing any more; returns what was parked, in parking order.
  std::vector<Pull> TakeParked();

 private:
  // The pull of this rank waits for this clock.
  struct Wait {
    Clock clock = 0;
    uint64_t place = 0;
    Rank rank{};
    // Heaps have the largest in front: this is the one that ends first.
    bool operator<(const Wait& other) const {
      return std::tie(clock, place) > std::tie(other.clock, other.place);
    }
  };
  // A heap. There are no more than twice as many as parked pulls: whose pull is
  // gone, or waits for another clock by now, is only left there for a while.
  using Waits = std::vector<Wait>;
  void AddWait(Clock GatedPull::*clock, const ParkedPull& parked,
               Waits* waits) const;
  std::vector<ParkedPull> InOrder() const;

  absl::flat_hash_map<Rank, ParkedPull> parked_;
  Waits for_all_;       // Waits for every participant: Pull::needed.
  Waits for_complete_;  // Waits for the shard: Pull::complete.
  uint64_t next_place_ = 0;
};

}  // namespace slackline
