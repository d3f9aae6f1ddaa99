// ClientCore: what a worker's side of push and pull decides. Cuts tables into
// shards, batches them per shard thread, keeps the bytes in flight within a
// window, sends again what was lost, follows shards that move or are cut in
// two, and puts pull answers together.
//
// Deterministic state machine: calls and messages go in, effects come out; no
// sockets, threads, clocks or randomness. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "common/view/shard_map.h"

namespace slackline {

class ClientCore {
 public:
  struct Options {
    Rank rank{};
    Incarnation incarnation = 0;
    // Payload bytes of pushes, and of pull answers asked for, in flight to one
    // shard thread. One message may exceed it when nothing else is in flight.
    size_t window_bytes = 4 << 20;
    size_t message_bytes = 256 << 10;  // A message is closed at this payload.
    absl::Duration retry_initial = absl::Milliseconds(250);
    absl::Duration retry_max = absl::Seconds(4);  // Doubles up to this.
    absl::Duration refused_delay = absl::Milliseconds(2);  // After Code RETRY.
    int slot_count = 0;  // Of the job's optimizer.
  };
  struct ShardValue {
    Version version = 0;
    Clock shard_clock = 0;
    Payload values;
    std::vector<Payload> slots;  // Of PullState().
  };
  struct PullResult {
    uint64_t pull_id = 0;
    std::vector<ShardValue> shards;    // By shard id.
    std::shared_ptr<const View> view;  // Whose shards these are.
    // The smallest and the largest clock of a shard.
    std::pair<Clock, Clock> ShardClocks() const;
  };
  struct Send {
    Owner to;
    Message message;
  };
  struct Effects {
    std::vector<Send> sends;
    std::vector<PullResult> pulled;
    // The servers no longer know this incarnation: join again, with a new core.
    bool fenced = false;
    // A server refused something as wrong. The core is unusable from here on.
    absl::Status failure;
  };

  // `view` is RUNNING and has tables.
  ClientCore(const Options& options, std::shared_ptr<const View> view);

  // A newer view. What is not answered yet goes to the owners in it, cut as the
  // shards are in it.
  void OnView(std::shared_ptr<const View> view, absl::Time now,
              Effects* effects);

  // Pushes the gradient of one table for clock `clock`. Tables come in any
  // order, each once per clock, and clocks without gaps from StartAt() on.
  // `base_versions` (by shard id) are the versions that it was computed from;
  // there may be fewer than shards if some were cut in two since.
  // InvalidArgument: wrong size, clock or repeated table; nothing was sent.
  absl::Status Push(Clock clock, TableId table, const Payload& gradient,
                    absl::Span<const Version> base_versions, absl::Time now,
                    Effects* effects);

  // Asks for all shards. `clock` and `own_clock` as in StalenessGate. The
  // answer comes in Effects::pulled under the id that is returned.
  uint64_t Pull(Clock clock, Clock own_clock, absl::Time now, Effects* effects);
  // The first pull: makes this worker take part at every shard. Its start clock
  // is the largest shard_clock of the result; hand the result to StartAt().
  uint64_t JoinPull(absl::Time now, Effects* effects);
  // Declares the start clock at all shards that lag behind it, and returns it.
  Clock StartAt(const PullResult& joined, absl::Time now, Effects* effects);

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
  // Sends again what has waited too long. Call it at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;  // InfiniteFuture if nothing waits.

  // Payload bytes pushed and not yet acknowledged, queued ones included.
  size_t unacknowledged_bytes() const { return unacknowledged_bytes_; }
  // What the oldest unanswered request waits for, for a message to people.
  std::string WaitingFor(absl::Time now) const;

  uint64_t bytes_pushed() const { return bytes_pushed_; }
  uint64_t bytes_pulled() const { return bytes_pulled_; }
  uint64_t retries() const { return retries_; }

 private:
  struct PushEntry {
    int32_t shard = 0;
    uint64_t seq = 0;
    Version base_version = 0;
    Payload gradient;            // Of an installation: the values.
    std::vector<Payload> slots;  // Of an installation.
    uint64_t hash = 0;           // Likewise.
    size_t bytes() const { return gradient.size() * (1 + slots.size()); }
  };
  struct PushUnit {  // One message.
    Clock clock = 0;
    bool advance = false;
    bool install = false;
    bool SameKind(const PushUnit& other) const {
      return clock == other.clock && advance == other.advance &&
             install == other.install;
    }
    std::vector<PushEntry> entries;
    size_t bytes = 0;
  };
  struct PullUnit {  // One message.
    uint64_t request_id = 0;
    uint64_t pull_id = 0;
    Clock clock = 0;
    Clock own_clock = 0;
    bool join = false;
    bool state = false;
    std::vector<int32_t> shards;  // Still unanswered.
    size_t bytes = 0;             // Of the shards still unanswered.
    absl::Time sent;
    absl::Time resend_at;
    absl::Duration backoff;
    int unanswered_sends = 0;   // Repetitions since the last sign of life.
    int32_t waiting_rank = -1;  // Known after a PARKED answer.
    Clock waiting_clock = 0;
  };
  struct Link {     // To one shard thread.
    PushUnit open;  // Being filled; same clock throughout.
    std::deque<PushUnit> queued;
    std::deque<PushUnit> in_flight;  // Go-back-N: sent again all, in order.
    size_t push_bytes_in_flight = 0;
    absl::Time
        push_heard;  // Of the last progress, or the send that began the wait.
    absl::Time push_resend_at = absl::InfiniteFuture();
    absl::Duration push_backoff;
    std::deque<PullUnit> pulls_queued;
    std::deque<PullUnit> pulls_in_flight;
    size_t pull_bytes_in_flight = 0;
  };
  struct PendingPull {
    PullResult result;
    int32_t missing = 0;
  };

  enum class PullKind { kStep, kJoin, kState };
  uint64_t StartPull(PullKind kind, Clock clock, Clock own_clock,
                     absl::Time now, Effects* effects);
  // Payload bytes of the shard in an answer.
  size_t AnswerBytes(int32_t shard, bool state) const {
    return view_->shard(ShardId{shard}).bytes() *
           (state ? 1 + static_cast<size_t>(options_.slot_count) : 1);
  }
  // Adds the shard to the advance push that is being filled.
  void AddAdvance(int32_t shard, Clock clock);
  void CloseOpenUnits(absl::Time now, Effects* effects);
  void CloseOpenUnit(Link& link);
  // Cuts what waits for the shard as the view's `split`-th split does.
  void ApplySplit(const wire::Split& split, int32_t new_shard,
                  size_t kept_bytes);
  // Where the shard is, if that is newer than what we know.
  void OnRelocations(
      const google::protobuf::RepeatedPtrField<wire::Relocation>& relocations,
      absl::Time now, Effects* effects);
  // Moves what waits for the shards to their owners' links.
  void Reroute(const std::vector<int32_t>& shards, absl::Time now,
               Effects* effects);
  void PumpAll(absl::Time now, Effects* effects);
  // Forgets messages from the front whose pushes are all acknowledged. True if
  // there was one.
  bool DropAcknowledged(Link& link, absl::Time now);
  Owner OwnerOf(int32_t shard) const { return routes_[shard].owner; }
  void Pump(Owner to, Link& link, absl::Time now, Effects* effects);
  void SendPush(Owner to, const PushUnit& unit, Effects* effects) const;
  void SendPull(Owner to, const PullUnit& unit, Effects* effects) const;
  void OnPushReply(Owner from, const wire::PushReply& reply, absl::Time now,
                   Effects* effects);
  void OnPullReply(Owner from, const Message& message, absl::Time now,
                   Effects* effects);

  const Options options_;
  // Who owns a shard, and how new that knowledge is: see wire.proto,
  // Relocation.
  struct Route {
    Owner owner;
    uint64_t as_of = 0;
  };
  Route RouteIn(const View& view, int32_t shard) const;

  std::shared_ptr<const View> view_;
  std::vector<Route> routes_;  // By shard.
  std::map<Owner, Link> links_;
  std::vector<uint64_t> next_seq_;   // By shard.
  std::vector<uint64_t> acked_seq_;  // By shard.
  std::vector<bool> table_pushed_;   // In the clock being pushed.
  int tables_pushed_ = 0;
  Clock push_clock_ = 0;
  uint64_t next_pull_id_ = 1;
  uint64_t next_request_id_ = 1;
  std::map<uint64_t, PendingPull> pending_pulls_;
  size_t unacknowledged_bytes_ = 0;
  uint64_t bytes_pushed_ = 0;
  uint64_t bytes_pulled_ = 0;
  uint64_t retries_ = 0;
};

}  // namespace slackline
