// PushLane: the pushes to one shard thread, in three places. A unit is being
// filled (open), waits for room in the window (queued), or was sent and is not
// accepted as a whole (in flight).
//
//                  it is full               window            accepted
//     Add() --> open -----------> queued ----------> in flight ---------> gone
//                 |                                    ^
//                 +------------------------------------+
//                  a clock ends, and few small ones are in flight
//
// In flight a unit is kSent until an answer decides: it is dropped when all of
// it is accepted, and else kMissing (OnProbeReply() shows that it is lost),
// kRefused (an answer says so) or kBehind (an earlier push of its shard is
// missing). Repair() sends these again.
//
// What shares a message. Pushes to one shard thread fill a message until it is
// full, or until the clock is at its end: then it goes at once. Only when
// several messages that are not full are unanswered already does it stay, and
// the pushes of the next clocks join it, until one of them is answered. So a
// stream of small pushes needs few messages, and nothing is delayed on an idle
// link. The shards of one table, which come at once, share larger messages
// where a message costs much and the link is fast.
//
// What goes first. A clock's gradients come with the last table first, as
// backward makes them, and the next step begins with the first table. So
// gradients that the window does not let go yet are overtaken by those of
// earlier tables of their clock.
//
// Owns the units, the bytes of those in flight, and the timers of pushes: when
// a probe is due, and when a refused push is tried again. Bounds: bytes in
// flight are at most ClientOptions::window_bytes, unless one unit is alone;
// what waits is bounded by whoever pushes. Pushes of one shard keep their
// order.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/time/round_trip.h"
#include "worker/client/client_counts.h"
#include "worker/client/client_parts.h"
#include "worker/client/push_unit.h"
#include "worker/client/shard_split.h"
#include "worker/client/strays.h"

namespace slackline {

class PushLane {
 public:
  PushLane(Owner to, const ClientOptions& options)
      : to_(to), options_(options) {}

  // ---- What waits

  // The entry has its number, and is of this table. A message is full with so
  // many bytes.
  void Add(PushEntry entry, TableId table, size_t full_bytes);
  // A clock ends with what was added. True if more may go now than before.
  bool EndClock();
  // Goes behind what is queued.
  void Queue(PushUnit unit) { queued_.push_back(std::move(unit)); }
  // The next unit that may go now, which goes to SendFirst(); it leaves its
  // place. nullopt: none.
  std::optional<PushUnit> TakeNext();

  // ---- What is in flight

  // A unit of TakeNext() goes out, for the first time from here. What of it is
  // accepted stays out of the message.
  void SendFirst(PushUnit unit, const ClientParts& parts);
  // Sends again what is lost, what was only refused since that was missing,
  // and, with `trial`, the first refused push.
  void Repair(bool trial, const ClientParts& parts);
  // A reply to this transmission has come. Returns the unit, if this is the
  // first reply to its last transmission; it is valid until the next call.
  const PushUnit* OnReply(uint64_t request_id);
  // This transmission was refused for the shard. Without effect if it is not
  // the last one of its unit.
  void OnRefused(uint64_t request_id, int32_t shard,
                 const PushSequences& sequences);
  // The reply to this transmission is worked off, if there is one: a trial that
  // was accepted lets the other refused pushes go, with the next Repair().
  void OnReplyEnd(uint64_t request_id, const PushSequences& sequences);
  // Forgets units that are accepted. True if there was one.
  bool DropAccepted(const PushSequences& sequences, ClientCounts& counts,
                    absl::Time now);
  // Whether a transmission before this one, and after `last_probe`, has no
  // answer. Answers come in the order of the questions, so it is lost.
  bool HasOvertaken(uint64_t request_id, uint64_t last_probe) const;
  // The reply to a probe has come: units that were sent before it are missing
  // if a shard that it is of has not accepted them.
  void OnProbeReply(uint64_t probe, const std::set<int32_t>& answered,
                    const ClientParts& parts);
  // Adds the shards of units whose answer is late, oldest first, until there
  // are `max`.
  void AddShardsInDoubt(size_t max, const PushSequences& sequences,
                        std::set<int32_t>* shards) const;
  // The number of the last push in flight to the shard of a clock before
  // `clock`, if that is no installation; 0: there is none.
  uint64_t LastBefore(int32_t shard, Clock clock) const;

  // ---- Timers

  // Sets the timers that are due to be set. To be called when anything above
  // has changed.
  void SetTimers(const RoundTrip& round_trip, bool probe_under_way,
                 const ClientParts& parts);
  // Tries the first refused push again, if it is time to. True if it is time
  // for a probe, which is then due no more.
  bool OnTick(const ClientParts& parts);
  // What was refused under an older view may be tried at `soon`.
  void OnNewView(absl::Time soon);
  absl::Time NextWakeup() const { return std::min(doubt_at_, trial_at_); }

  // ---- Moves and splits

  // Takes what is for shards of other owners out, in the order in which it was
  // made.
  void TakeStrays(const ClientParts& parts, StraysByOwner* strays);
  void Split(const ShardSplit& split, ClientCounts& counts);

  // ---- What it has

  bool idle() const {
    return open_.entries.empty() && queued_.empty() && in_flight_.empty();
  }
  // Messages, queued and in flight; one that is not full counts.
  size_t size() const {
    return queued_.size() + in_flight_.size() + !open_.entries.empty();
  }
  // The unit that has been in flight for longest, or nullptr.
  const PushUnit* oldest() const {
    return in_flight_.empty() ? nullptr : &in_flight_.front();
  }
  // When the pushes in flight have last come nearer to their end: the last
  // progress, or the send that began the wait.
  absl::Time heard() const { return heard_; }

 private:
  bool IsFull(const PushUnit& unit, size_t bytes) const {
    return unit.bytes >= bytes ||
           unit.entries.size() >= options_.message_entries;
  }
  bool FitsWindow(const PushUnit& unit) const {
    return in_flight_.empty() ||
           bytes_in_flight_ + unit.bytes <= options_.window_bytes;
  }
  // The unit whose last transmission this was, or nullptr.
  PushUnit* Find(uint64_t request_id);
  // Queues what is open, before queued units that it overtakes.
  void CloseOpen();
  // Gives the transmission a new number. Leaves out what is accepted; returns
  // the payload bytes of the rest.
  size_t Send(PushUnit& unit, const ClientParts& parts);

  const Owner to_;
  const ClientOptions& options_;
  PushUnit open_;
  bool open_may_go_ = false;  // A clock ends in it.
  std::deque<PushUnit> queued_;
  std::deque<PushUnit> in_flight_;  // Units in the order of their first sends.
  size_t bytes_in_flight_ = 0;
  int small_in_flight_ = 0;  // Units that were not full.
  absl::Time heard_;
  absl::Time doubt_at_ = absl::InfiniteFuture();  // When a probe is due.
  int doubts_ = 0;  // Probes since the last progress that found nothing.
  // When the first refused push goes again.
  absl::Time trial_at_ = absl::InfiniteFuture();
  int trials_ = 0;  // Trials that were refused in a row.
};

}  // namespace slackline
