// ShardCore: what one shard thread decides. Owns its shards outright: applies
// pushes exactly once and in order, holds BSP gradients until the clock is
// complete, gates pulls, and answers.
//
// Deterministic state machine: messages go in, effects come out; no sockets,
// threads, clocks or randomness. Thread-compatible. The order of effects
// depends only on the order of events.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/message.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/sync/staleness_gate.h"
#include "common/view/shard_map.h"
#include "proto/run.pb.h"
#include "server/shard/shard.h"

namespace slackline {

// One step in the life of a shard, for traces and tests.
struct ShardTraceRecord {
  enum class Kind { kPullAnswered, kPushTakenOver, kUpdated };
  Kind kind{};
  ShardId shard{};
  Rank rank{};
  Incarnation incarnation = 0;
  Clock clock =
      0;  // Of the pull or push; for kUpdated of a BSP clock, that clock.
  Clock min_clock = 0;  // Smallest clock of a participant, at that moment.
  Version version = 0;  // Answered; or computed from; or reached by the update.
  uint64_t request_id = 0;  // Of the pull.
};

class ShardCore {
 public:
  struct Options {
    Owner self;
    uint64_t seed = 0;  // Of the initial values.
    bool trace = false;
  };
  struct Effects {
    std::vector<Outgoing> sends;
    std::vector<ShardTraceRecord> trace;  // Empty unless Options::trace.
  };

  ShardCore(const Options& options, Optimizer optimizer,
            config::LearningRateSchedule schedule);

  // Handles one message from a worker. A message that makes no sense changes
  // nothing and is answered with an ErrorReply that says what is wrong.
  void OnMessage(const PeerId& from, const Message& message, Effects* effects);

  // A newer view: takes shards over when the job starts to run, forgets workers
  // that are gone and answers pulls that this unblocks. An older one is
  // ignored.
  void OnView(std::shared_ptr<const View> view, Effects* effects);

  // Ends a batch of messages: pull answers collected since the last call go
  // out, one message for each request. Call it before waiting for more
  // messages.
  void Flush(Effects* effects);

  const run::ServerStats& stats() const { return stats_; }
  // Entries of worker state over all shards: the dedup windows. At most one for
  // each shard and worker of the view.
  int64_t participant_count() const;
  // Bytes of pull answers that wait for Flush().
  size_t pending_reply_bytes() const { return pending_reply_bytes_; }

 private:
  struct Held {  // A BSP gradient that waits for the rest of its clock.
    Rank rank{};
    Incarnation incarnation = 0;
    Payload gradient;
  };
  struct ShardState {
    Shard shard;
    StalenessGate gate;
    Clock bsp_clock = 0;     // BSP clocks applied.
    std::vector<Held> held;  // Of bsp_clock, sorted by rank, then incarnation.
  };
  struct PendingReply {
    PeerId to;
    uint64_t request_id = 0;
    Message message;
  };

  void OnPush(const PeerId& from, const Message& message, Effects* effects);
  void OnPull(const PeerId& from, const Message& message, Effects* effects);
  void Refuse(const PeerId& from, uint64_t request_id, const std::string& error,
              Effects* effects);
  // What to answer to a whole message whose sender is not a member in our view.
  wire::Code CodeForStranger(const Message& message) const;
  ShardState* FindShard(int32_t shard);

  wire::Code TakeOver(ShardState& state, const wire::PushRequest& push,
                      int entry, const Payload& gradient,
                      StalenessGate::Participant& participant,
                      std::string* error, Effects* effects);
  // Applies every BSP clock that is complete.
  void ApplyCompleteClocks(ShardState& state, Effects* effects);
  void Update(ShardState& state, absl::Span<const Payload> gradients,
              int divisor, Clock clock, Effects* effects);
  void ReleaseParked(ShardState& state, Effects* effects);
  void Answer(ShardState& state, const StalenessGate::Pull& pull,
              Clock reported_clock, Effects* effects);
  Message& ReplyTo(const PeerId& to, uint64_t request_id);
  void Trace(ShardTraceRecord::Kind kind, const ShardState& state, Rank rank,
             Incarnation incarnation, Clock clock, Version version,
             Effects* effects, uint64_t request_id = 0) const;

  const Options options_;
  const Optimizer optimizer_;
  const config::LearningRateSchedule schedule_config_;
  std::optional<LearningRateSchedule>
      schedule_;  // Once a view says how long the job is.
  std::shared_ptr<const View> view_;
  std::map<ShardId, ShardState> shards_;
  std::vector<PendingReply> pending_replies_;
  size_t pending_reply_bytes_ = 0;
  run::ServerStats stats_;
};

}  // namespace slackline
