// ClientCore: what a worker's side of push and pull decides. Cuts tables into
// shards, batches them per shard thread, keeps the bytes in flight within a
// window, sends again what was lost, follows shards that move or are cut in
// two, and puts pull answers together.
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
// A pull of all shards may go at once, or shard by shard behind the pushes of a
// clock (PullBehindPushes()): then the first new values are on their way back
// while the last gradients are on their way there.
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
// Deterministic state machine: calls and messages go in, effects come out; no
// sockets, threads, clocks or randomness. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/compress/gradient_code.h"
#include "common/message.h"
#include "common/optim/step_options.h"
#include "common/time/round_trip.h"
#include "common/view/shard_map.h"
#include "worker/client/client_counts.h"
#include "worker/client/client_effects.h"
#include "worker/client/client_options.h"
#include "worker/client/message_size.h"
#include "worker/client/pending_pulls.h"
#include "worker/client/pull_result.h"
#include "worker/client/pull_unit.h"
#include "worker/client/push_clock.h"
#include "worker/client/push_sequences.h"
#include "worker/client/push_unit.h"
#include "worker/client/routes.h"
#include "worker/client/shard_split.h"

namespace slackline {

class ClientCore {
 public:
  using Options = ClientOptions;
  using Parked = ParkedTime;
  using ShardValue = slackline::ShardValue;
  using TableValues = slackline::TableValues;
  using PullResult = slackline::PullResult;
  using Brought = BroughtTable;
  using Send = ClientSend;
  using Effects = ClientEffects;

  // `view` is RUNNING and has tables.
  ClientCore(const Options& options, std::shared_ptr<const View> view);

  // A newer view. What is not answered yet goes to the owners in it, cut as the
  // shards are in it.
  void OnView(std::shared_ptr<const View> view, absl::Time now,
              Effects* effects);

  // Pushes the gradient of one table for clock `clock`, to be applied at
  // these options (FaultOf()). Tables come in any
  // order, each once per clock, and clocks without gaps from StartAt() on.
  // `base_versions` (by shard id) are the versions that it was computed from;
  // there may be fewer than shards if some were cut in two since.
  // InvalidArgument: wrong size, clock or repeated table; nothing was sent.
  absl::Status Push(Clock clock, TableId table, const CodedGradient& gradient,
                    const StepOptions& options,
                    absl::Span<const Version> base_versions, absl::Time now,
                    Effects* effects);

  // In place of Push(): this worker has no gradient of the table for `clock`,
  // so the table's shards only learn that it is done with the clock. A clock at
  // which no worker has one leaves values, slots and version as they are.
  // InvalidArgument: wrong clock or repeated table; nothing was sent.
  absl::Status SkipTable(Clock clock, TableId table, absl::Time now,
                         Effects* effects);

  // Asks for all shards. `clock` and `own_clock` as in StalenessGate. The
  // answer comes in Effects::pulled under the id that is returned.
  uint64_t Pull(Clock clock, Clock own_clock, absl::Time now, Effects* effects);
  // The same, for the trained model: of no table are the values rounded.
  uint64_t PullModel(Clock clock, absl::Time now, Effects* effects);
  // The same as Pull(clock, clock) with the clock after the one to be pushed,
  // of which no table is pushed so far; but each shard is asked for right
  // behind its gradient.
  uint64_t PullBehindPushes();
  // Whether PullBehindPushes() may be called.
  bool BetweenClocks() const { return push_clock_.BetweenClocks(); }
  // Nobody waits for the pull any more, which is under way.
  void ForgetPull(uint64_t pull_id, absl::Time now, Effects* effects);
  // The first pull: makes this worker take part at every shard. Its start clock
  // is the largest shard_clock of the result; hand the result to StartAt().
  uint64_t JoinPull(absl::Time now, Effects* effects);
  // Declares the start clock at all shards that lag behind it, and returns it.
  Clock StartAt(const PullResult& joined, absl::Time now, Effects* effects);

  // Whether the pull is under way and no shard of the table is missing; then,
  // what it has brought of it.
  bool HasBrought(uint64_t pull_id, TableId table) const {
    return pulls_.HasBrought(pull_id, table);
  }
  std::optional<TableValues> BroughtBy(uint64_t pull_id, TableId table) const {
    return pulls_.BroughtBy(pull_id, table);
  }

  // Declares at all shards that this worker has done with the clocks before
  // `clock`, which is none that it has pushed. The next push is of `clock`.
  void SkipTo(Clock clock, absl::Time now, Effects* effects);

  // Asks for all shards with their optimizer slots, as they are when every live
  // worker's pushes before `clock` are applied.
  uint64_t PullState(Clock clock, absl::Time now, Effects* effects);
  // Hands `shards` to the servers as they are after all steps before `clock`,
  // which were by all-reduce; the hashes are computed here. The next push is of
  // `clock`. May be called again for that clock, with other shards.
  struct InstalledShard {
    ShardId shard{};
    ShardValue state;
  };
  void Install(Clock clock, std::vector<InstalledShard> shards, absl::Time now,
               Effects* effects);

  void OnMessage(Owner from, const Message& message, absl::Time now,
                 Effects* effects);
  // Probes where an answer is late. Call it at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;  // InfiniteFuture if nothing waits.

  // Payload bytes pushed and not yet acknowledged, queued ones included.
  size_t unacknowledged_bytes() const { return counts_.unacknowledged_bytes(); }
  // When all that was pushed until then was acknowledged last.
  absl::Time acknowledged_at() const { return counts_.acknowledged_at(); }
  // What this worker waits for. A parked pull makes it kWorkers, unless a shard
  // thread has left something else unanswered for several time-outs: then
  // whoever holds up that server may hold up the others as well.
  struct Waiting {
    enum class Kind {
      kNothing,
      kWorkers,  // Steps of `rank`, as a shard has said.
      kServer,   // An answer of `server`.
    };
    Kind kind = Kind::kNothing;
    std::optional<Rank> rank;
    std::optional<int32_t> server;
    // kWorkers: the clock that the shard has seen of `rank`. kServer: the clock
    // of the pull or push. 0 with kNothing.
    Clock clock = 0;
    // How long ago the thing waited for has last come nearer.
    absl::Duration since_progress;
    std::string text = "nothing";  // Completes "waits for ...: ", for people.
  };
  Waiting WaitingFor(absl::Time now) const;

  // How much it keeps, to be compared with what was asked of it.
  struct Sizes {
    size_t links = 0;
    size_t pulls = 0;          // Pull(), JoinPull() and PullState().
    size_t pull_messages = 0;  // Of those.
    size_t push_messages = 0;
  };
  Sizes sizes() const;

  // Payload bytes of pushes: each counts once, when it is first sent.
  uint64_t bytes_pushed() const { return counts_.bytes_pushed(); }
  // Payload bytes of pushes that were sent again. The share of useful bytes is
  // bytes_pushed() / (bytes_pushed() + bytes_resent()).
  uint64_t bytes_resent() const { return counts_.bytes_resent(); }
  uint64_t bytes_pulled() const { return counts_.bytes_pulled(); }
  // Pushes and pulls that were sent again. Probes are none, nor are questions
  // of a pull that turns out to be parked.
  uint64_t retries() const { return counts_.retries(); }
  // How long servers have taken to answer pushes, by their indices.
  using AnswerTimes = ClientCounts::AnswerTimes;
  const std::map<int32_t, AnswerTimes>& answers() const {
    return counts_.answers();
  }
  // How many shard threads it keeps a state for.
  size_t links() const { return links_.size(); }

 private:
  struct Link {  // To one shard thread.
    Link(const RoundTrip::Options& round_trip,
         const MessageSize::Options& message_size)
        : round_trip(round_trip), message_size(message_size) {}
    RoundTrip round_trip;
    MessageSize message_size;
    PushUnit open;             // Being filled.
    bool open_may_go = false;  // A clock ends in it.
    std::deque<PushUnit> queued;
    std::deque<PushUnit> in_flight;  // In the order of their first sends.
    size_t push_bytes_in_flight = 0;
    int small_in_flight = 0;
    // Of the last progress, or the send that began the wait.
    absl::Time push_heard;
    absl::Time push_doubt_at = absl::InfiniteFuture();  // A probe is due.
    int push_doubts = 0;  // Probes since the last progress that found nothing.
    absl::Time trial_at = absl::InfiniteFuture();  // Of the first refused push.
    int trials = 0;                                // Refused in a row.
    std::deque<PullUnit> pulls_queued;
    std::deque<PullUnit> pulls_in_flight;
    size_t pull_bytes_in_flight = 0;
    absl::Time pull_heard = absl::InfinitePast();  // Last part of an answer.
    // The probe under way.
    uint64_t probe = 0;       // 0: there is none.
    uint64_t last_probe = 0;  // Of those sent. It may be answered already.
    absl::Time probe_sent;
    absl::Time probe_again_at = absl::InfiniteFuture();
    int probes_unanswered = 0;

    bool touched = false;                        // In touched_.
    absl::Time wakeup = absl::InfiniteFuture();  // In wakeups_, if finite.

    bool idle() const {
      return open.entries.empty() && queued.empty() && in_flight.empty() &&
             pulls_queued.empty() && pulls_in_flight.empty();
    }
  };
  using Links = std::map<Owner, Link>;
  uint64_t StartPull(PullKind kind, Clock clock, Clock own_clock,
                     absl::Time now, Effects* effects);
  void AddAdvance(int32_t shard, Clock clock, uint64_t then_pull = 0);
  // The table is pushed for the present clock, which may be the clock's end.
  void EndTable(TableId table, absl::Time now, Effects* effects);
  // Gives the entry its sequence number and a place in the message that is
  // being filled.
  void Add(PushEntry entry);
  // What is being filled anywhere may go now.
  void EndClock(absl::Time now, Effects* effects);
  void CloseOpenUnit(Link& link);
  bool IsFull(const PushUnit& unit, size_t bytes) const {
    return unit.bytes >= bytes ||
           unit.entries.size() >= options_.message_entries;
  }
  // Cuts what waits for the shard.
  void ApplySplit(const ShardSplit& split);
  // Learns what all refusals of a reply say of moves; moves what waits.
  template <typename Answers>
  void FollowRefusals(const Answers& answers, absl::Time now, Effects* effects);
  // Moves what waits for shards that have moved to their owners' links.
  void Reroute(absl::Time now, Effects* effects);
  // Ends the work of the core for good if the refusal says so; else false.
  bool EndsHere(Owner from, int32_t shard, const char* what,
                const wire::Refusal& refusal, Effects* effects);
  // Something at the link has changed.
  void Touch(Links::value_type& link);
  void PumpTouched(absl::Time now, Effects* effects);
  // The pushes to the shard up to `seq` are accepted. Whoever calls it drops
  // them from the link to `from`.
  void OnAcknowledged(Owner from, int32_t shard, uint64_t seq, absl::Time now,
                      Effects* effects);
  // The shard has answered a pull of a worker that is at `own_clock`, so the
  // gradients of earlier clocks are accepted, though their replies may be lost.
  void OnPulledAt(Owner from, const Link& link, int32_t shard, Clock own_clock,
                  absl::Time now, Effects* effects);
  // Forgets pushes that are acknowledged. True if there was one.
  bool DropAcknowledged(Link& link, absl::Time now);
  const View& view() const { return routes_.view(); }
  Links::value_type& LinkTo(Owner owner);
  bool FitsWindow(const Link& link, const PushUnit& unit) const;
  void SendFirst(Owner to, Link& link, PushUnit unit, absl::Time now,
                 Effects* effects);
  // What is asked for behind the entries of the unit, which is about to be
  // sent.
  void QueuePullsBehind(Link& link, PushUnit& unit);
  void SendPulls(Owner to, Link& link, absl::Time now, Effects* effects);
  // Sends what the windows allow and what has to be sent again, and sets the
  // timers. To be called whenever something at the link has changed.
  void Pump(Owner to, Link& link, absl::Time now, Effects* effects);
  // Sends again what is lost, what was only refused since that was missing,
  // and, with `trial`, the first refused push.
  void Repair(Owner to, Link& link, bool trial, absl::Time now,
              Effects* effects);
  void SetPushTimers(Link& link, absl::Time now);
  // Keeps wakeups_ up to date.
  void SetWakeup(Owner owner, Link& link);
  // Gives the transmission a new number, as all of these do. Leaves out what is
  // acknowledged; returns the payload bytes of the rest.
  size_t SendPush(Owner to, PushUnit& unit, absl::Time now, Effects* effects);
  void SendPull(Owner to, Link& link, PullUnit& unit, absl::Time now,
                Effects* effects);
  void AskAgain(Owner to, Link& link, PullUnit& unit, absl::Time now,
                Effects* effects);
  void SendProbe(Owner to, Link& link, absl::Time now, Effects* effects);
  Send NewSend(Owner to) const;
  absl::Duration RefusedDelay(int refusals) const;
  void OnPushReply(Owner from, const wire::PushReply& reply, absl::Time now,
                   Effects* effects);
  void OnPullReply(Owner from, const Message& message, absl::Time now,
                   Effects* effects);
  // The values of a shard have come. False if they make no sense.
  bool TakeValues(Owner from, Link& link, PullUnit& unit,
                  const wire::PullAnswer& answer,
                  absl::Span<const Payload> frames, uint64_t view_number,
                  absl::Time now, Effects* effects);
  // A shard of it was refused, for now.
  void SetResend(PullUnit& unit, absl::Time now);
  void OnParked(Link& link, PullUnit& unit, const wire::PullAnswer::Parked& at,
                absl::Time now);
  void OnProbeReply(Owner from, const wire::ProbeReply& reply, absl::Time now,
                    Effects* effects);
  void ForgetServersGone();

  const Options options_;
  Routes routes_;
  Links links_;
  std::vector<Links::value_type*> touched_;         // To be pumped.
  std::set<std::pair<absl::Time, Owner>> wakeups_;  // One for each link.
  PushSequences sequences_;
  PushClock push_clock_;
  PendingPulls pulls_;
  uint64_t next_request_id_ = 1;
  ClientCounts counts_;
};

}  // namespace slackline
