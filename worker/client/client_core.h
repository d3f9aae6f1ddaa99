// ClientCore: what a worker's side of push and pull decides. Splits tables into
// shards, batches them per shard thread, keeps the bytes in flight within a
// window, sends again what was lost, follows shards that move or are split in
// two, and puts pull answers together.
//
// A pull of all shards may go at once, or shard by shard behind the pushes of a
// clock (PullBehindPushes()): then the first new values are on their way back
// while the last gradients are on their way there.
//
// The core is the interface of its parts, and hands each call and message to
// them; client_parts.h lists them. push_lane.h says what shares a message and
// what goes first, client_link.h what is sent again, and when.
//
// Deterministic state machine: calls and messages go in, effects come out; no
// sockets, threads, clocks or randomness. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/compress/gradient_code.h"
#include "common/message.h"
#include "common/optim/step_options.h"
#include "common/view/shard_map.h"
#include "worker/client/client_counts.h"
#include "worker/client/client_effects.h"
#include "worker/client/client_links.h"
#include "worker/client/client_options.h"
#include "worker/client/client_parts.h"
#include "worker/client/client_waiting.h"
#include "worker/client/pending_pulls.h"
#include "worker/client/pull_result.h"
#include "worker/client/pull_unit.h"
#include "worker/client/push_clock.h"
#include "worker/client/push_sequences.h"
#include "worker/client/push_unit.h"
#include "worker/client/routes.h"

namespace slackline {

class ClientCore {
 public:
  using Options = ClientOptions;
  using Effects = ClientEffects;

  // `view` is RUNNING and has tables.
  ClientCore(const Options& options, std::shared_ptr<const View> view);
  ClientCore(const ClientCore&) = delete;  // Its parts know each other.

  // A newer view. What is not answered yet goes to the owners in it, split as
  // the shards are in it.
  void OnView(std::shared_ptr<const View> view, absl::Time now,
              Effects* effects);

  // Pushes the gradient of one table for clock `clock`, to be applied at
  // these options (FaultOf()). Tables come in any
  // order, each once per clock, and clocks without gaps from StartAt() on.
  // `base_versions` (by shard id) are the versions that it was computed from;
  // there may be fewer than shards if some were split in two since.
  // InvalidArgument: wrong size, clock or repeated table; nothing was sent.
  absl::Status Push(Clock clock, TableId table, const CodedGradient& gradient,
                    const StepOptions& options,
                    absl::Span<const Version> base_versions, absl::Time now,
                    Effects* effects);

  // This worker has no gradient of the table for `clock`, and calls this in
  // place of Push(): the table's shards only learn that it is done with the
  // clock. A clock at which no worker has one leaves values, slots and version
  // as they are.
  // InvalidArgument: wrong clock or repeated table; nothing was sent.
  absl::Status SkipTable(Clock clock, TableId table, absl::Time now,
                         Effects* effects);

  // Asks for all shards. `clock` and `own_clock` as in StalenessGate. The
  // answer comes in Effects::pulled under the id that is returned.
  uint64_t Pull(Clock clock, Clock own_clock, absl::Time now, Effects* effects);
  // Asks as Pull() does, for the trained model: no table's values are rounded.
  uint64_t PullModel(Clock clock, absl::Time now, Effects* effects);
  // Asks as Pull(clock, clock) does, where `clock` is after the one that is to
  // be pushed, of which no table is pushed so far; but each shard is asked for
  // right behind its gradient.
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
  // InfiniteFuture if nothing waits.
  absl::Time NextWakeup() const { return links_.NextWakeup(); }

  // Payload bytes pushed and not yet acknowledged, queued ones included.
  size_t unacknowledged_bytes() const { return counts_.unacknowledged_bytes(); }
  // When all that was pushed until then was acknowledged last.
  absl::Time acknowledged_at() const { return counts_.acknowledged_at(); }
  // What this worker waits for.
  ClientWaiting WaitingFor(absl::Time now) const {
    return slackline::WaitingFor(links_, routes_, now);
  }

  // For tests: how much it keeps, to be compared with what was asked of it.
  struct Sizes {
    size_t links = 0;
    size_t pulls = 0;          // Pull(), JoinPull() and PullState().
    size_t pull_messages = 0;  // The pulls are in so many messages.
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

 private:
  ClientParts Parts(absl::Time now, Effects* effects);
  const View& view() const { return routes_.view(); }
  uint64_t StartPull(std::shared_ptr<const wire::Pull> asked, absl::Time now,
                     Effects* effects);
  // Gives the entry its sequence number and a place in the message that is
  // being filled for its owner.
  void Add(PushEntry entry);
  void AddAdvance(int32_t shard, Clock clock, uint64_t then_pull = 0);
  // The table is pushed for the present clock, which may be the clock's end.
  void EndTable(TableId table, const ClientParts& parts);

  const Options options_;
  Routes routes_;
  PushSequences sequences_;
  PushClock push_clock_;
  PendingPulls pulls_;
  RequestNumbers numbers_;
  ClientCounts counts_;
  ClientLinks links_;
};

}  // namespace slackline
