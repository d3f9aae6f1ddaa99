// ClientLink: what one worker has under way to one shard thread: a lane of
// pushes, a lane of pulls, at most one probe, and what was measured of the link
// between the two.
//
// What is sent again, and when. The transport keeps the order of a connection
// and repeats what the network loses; a message is lost only when its
// connection breaks or a queue is full. So a late answer nearly always means
// that the question, or the answer, still stands in a queue on a slow link, and
// sending a window of gradients again would only make that queue longer. No
// time-out can tell the two apart: the delay grows with the window, with the
// answers to pulls that share the link, and with everybody else's bytes.
// Therefore a time-out sends no gradient. It sends a probe: a question without
// payload, which shards answer with the pushes that they have accepted.
// Question and reply keep their places in the queues, so the reply is certain
// about all that was sent before the question:
//   - A push that it does not acknowledge is lost, and is sent again, once.
//   - An answer to a pull that has not come is not on its way: the pull is
//     parked at the gate, or the question or its answer is lost. The pull is
//     asked again; if it is parked, the shard says for whom it waits.
// If a later push is answered before an earlier one, the probe goes at once.
// A push or pull that is refused (RETRY, MOVED) is not lost. The first of the
// refused pushes is tried again after `refused_delay`, then with doubled
// delays, each counted from the refusal, so at most once in a round trip; when
// the shard accepts it, the others follow. A shard sees each window once and
// refuses at most one message of it per trial. The time-out for a probe is that
// of RoundTrip, measured for each shard thread. Every transmission has a number
// that its answer repeats, so each measurement is certain to be of one
// transmission (Karn's algorithm needs no exception). Queueing is part of the
// measurement and is bounded by the windows.
//
// Owns the lanes, the probe and the measurements. Transitions: Pump() sends
// what the windows allow and what has to be sent again; OnTick(), and what the
// shard thread answers. A reply may say something about shards that are
// elsewhere by now: ClientCore works that off, and calls the link for what is
// its own. Bounds: those of the lanes, and one probe.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/time/round_trip.h"
#include "worker/client/client_parts.h"
#include "worker/client/link_probe.h"
#include "worker/client/message_size.h"
#include "worker/client/pull_lane.h"
#include "worker/client/push_lane.h"
#include "worker/client/strays.h"

namespace slackline {

class ClientLink {
 public:
  // Through a socket, messages of shards that can go at once may be larger.
  ClientLink(Owner to, bool by_socket, const ClientOptions& options);

  Owner to() const { return to_; }
  const PushLane& pushes() const { return pushes_; }
  const PullLane& pulls() const { return pulls_; }
  const RoundTrip& round_trip() const { return round_trip_; }
  // What a message of shards that can go at once takes at present.
  size_t message_bytes() const { return message_size_.bytes(); }
  bool idle() const { return pushes_.idle() && pulls_.idle(); }
  // The next time at which OnTick() has something to do.
  absl::Time NextWakeup() const;

  // What waits from now on. Pump() sends it.
  void Add(PushEntry entry, TableId table) {
    pushes_.Add(std::move(entry), table, message_size_.bytes());
  }
  bool EndClock() { return pushes_.EndClock(); }
  void Queue(PullUnit unit) { pulls_.Queue(std::move(unit)); }
  void ForgetPull(uint64_t pull_id) { pulls_.ForgetPull(pull_id); }

  // Sends what the windows allow and what has to be sent again, and sets the
  // timers. To be called whenever something has changed, but where a function
  // below says that it does so.
  void Pump(const ClientParts& parts);
  // Asks again, tries again and probes what is due. It needs no Pump().
  void OnTick(const ClientParts& parts);

  // A reply to a transmission of pushes has come: measures the link. Then
  // OnPushRefused() for each shard that refuses its push, and
  // OnPushReplyEnd(), which drops what is accepted, probes if an earlier
  // transmission was passed over, and pumps.
  void OnPushReply(uint64_t request_id, const ClientParts& parts);
  void OnPushRefused(uint64_t request_id, int32_t shard,
                     const ClientParts& parts) {
    pushes_.OnRefused(request_id, shard, parts.sequences);
  }
  void OnPushReplyEnd(uint64_t request_id, const ClientParts& parts);

  // A reply to pulls has come: FindPull() for the unit that an answer is of,
  // with what the answer says of it, and OnPullReplyEnd(), which drops what is
  // done and pumps.
  PullUnit* FindPull(uint64_t id) { return pulls_.Find(id); }
  void OnValues(PullUnit& unit, int32_t shard, const ClientParts& parts) {
    pulls_.OnValues(unit, shard, round_trip_, parts);
  }
  void OnPullRefused(PullUnit& unit, const ClientParts& parts) {
    pulls_.OnRefused(unit, parts);
  }
  void OnParked(PullUnit& unit, const wire::PullAnswer::Parked& at,
                const ClientParts& parts) {
    pulls_.OnParked(unit, at, round_trip_, parts);
  }
  void OnPullReplyEnd(const ClientParts& parts);

  // The reply to a probe has come, in which these shards have said what they
  // have accepted. Pumps, unless no such probe was ever sent.
  void OnProbeReply(uint64_t probe, const std::set<int32_t>& answered,
                    const ClientParts& parts);

  // Forgets pushes that are accepted.
  void DropAccepted(const ClientParts& parts) {
    pushes_.DropAccepted(parts.sequences, parts.counts, parts.now);
  }
  // What was refused under an older view may be tried again at `soon`.
  void OnNewView(absl::Time soon);
  // Takes out what is for shards of other owners. Pump() follows.
  void TakeStrays(const ClientParts& parts, StraysByOwner* strays);
  // Takes what other links had. Pump() follows.
  void AddStrays(Strays strays);
  void Split(const ShardSplit& split, ClientCounts& counts);

 private:
  // Asks about what is in doubt, if anything is, in place of the probe that is
  // under way.
  void SendProbe(const ClientParts& parts);

  const Owner to_;
  RoundTrip round_trip_;
  MessageSize message_size_;
  PushLane pushes_;
  PullLane pulls_;
  LinkProbe probe_;
};

}  // namespace slackline
