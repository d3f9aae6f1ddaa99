// PullLane: the pulls from one shard thread, in two places: a unit waits for
// room in the window (queued), or was asked and has shards that have not
// answered (in flight).
//
//                 window               answer of each shard
//     Queue() ----------> in flight -----------------------> gone
//                            |  ^
//        late: a probe; lost |  | asked again
//        refused: a delay    +--+
//
// A unit whose answer is late is doubted: it waits for the reply to a probe. If
// the answer is not there by then, the unit is asked again. A parked unit asks
// that way now and then for whom it waits.
//
// Owns the units and their timers. Bounds: the answers that units in flight ask
// for have at most ClientOptions::window_bytes together, unless one unit is
// alone; what waits is bounded by whoever pulls.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/time/round_trip.h"
#include "proto/data.pb.h"
#include "worker/client/client_parts.h"
#include "worker/client/pull_unit.h"
#include "worker/client/push_unit.h"
#include "worker/client/shard_split.h"
#include "worker/client/strays.h"

namespace slackline {

class PullLane {
 public:
  explicit PullLane(Owner to) : to_(to) {}

  // ---- What waits

  // Goes behind what is queued.
  void Queue(PullUnit unit) { queued_.push_back(std::move(unit)); }
  // These go before what is queued: somebody waits for them.
  void QueueFirst(std::vector<PullUnit> units);
  // Queues what is asked for behind the entries of this unit, which is about to
  // be sent for the first time. A pull that is not under way is not asked for.
  void QueueBehind(PushUnit* pushes, const ClientParts& parts);
  // Asks what the window allows.
  void SendWhatFits(const RoundTrip& round_trip, const ClientParts& parts);

  // ---- What is in flight

  // The unit in flight of this wire::Pull.id, or nullptr. Valid until a unit
  // comes or goes.
  PullUnit* Find(uint64_t id);
  // The shard, which the unit wants, has answered with its values.
  void OnValues(PullUnit& unit, int32_t shard, const RoundTrip& round_trip,
                const ClientParts& parts);
  // A shard was refused, for now, or has answered what is of no use any more:
  // the unit is asked again after a while.
  void OnRefused(PullUnit& unit, const ClientParts& parts) const;
  // The pull waits for this worker.
  void OnParked(PullUnit& unit, const wire::PullAnswer::Parked& at,
                const RoundTrip& round_trip, const ClientParts& parts) const;
  // Forgets units of which all shards have answered.
  void DropAnswered();
  // Nobody waits for this pull any more.
  void ForgetPull(uint64_t pull_id);
  // The reply to a probe has come: a unit that is in doubt since before the
  // probe is asked again. True if there is one that a later probe decides.
  bool OnProbeReply(uint64_t probe, const RoundTrip& round_trip,
                    const ClientParts& parts);
  // A shard of the first unit that is in doubt; nullptr: there is none.
  const int32_t* ShardInDoubt() const;

  // ---- Timers

  // Asks again what was refused, if it is time to. True if it is time for a
  // probe, which will decide about the units that are in doubt from now on.
  bool OnTick(const RoundTrip& round_trip, const ClientParts& parts);
  // What was refused under an older view may be asked again at `soon`.
  void OnNewView(absl::Time soon);
  // Looks at all units in flight.
  absl::Time NextWakeup() const;

  // ---- Moves and splits

  // Takes what is for shards of other owners out, each shard in a unit of its
  // pull for its owner.
  void TakeStrays(const ClientParts& parts, StraysByOwner* strays);
  void Split(const ShardSplit& split);

  // ---- What it has

  bool idle() const { return queued_.empty() && in_flight_.empty(); }
  // Messages, queued and in flight.
  size_t size() const { return queued_.size() + in_flight_.size(); }
  const std::deque<PullUnit>& in_flight() const { return in_flight_; }
  // When the last part of an answer came.
  absl::Time heard() const { return heard_; }

 private:
  // Gives the transmission a new number.
  void Send(PullUnit& unit, const RoundTrip& round_trip,
            const ClientParts& parts) const;
  void AskAgain(PullUnit& unit, const RoundTrip& round_trip,
                const ClientParts& parts) const;

  const Owner to_;
  std::deque<PullUnit> queued_;
  std::deque<PullUnit> in_flight_;
  size_t bytes_in_flight_ = 0;
  absl::Time heard_ = absl::InfinitePast();
};

}  // namespace slackline
