// ShardCore: what one shard thread decides. Owns its shards outright: applies
// pushes exactly once and in order, holds the gradients of BSP and BACKUP until
// their clock is complete, drops those that come later in BACKUP, gates pulls,
// answers, and hands shards over as the view orders.
//
// Deterministic state machine: messages and the time go in, effects come out;
// no sockets, threads, clocks or randomness. Thread-compatible. The order of
// effects depends only on the order of events.
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
#include "common/optim/stale_rule.h"
#include "common/sync/staleness_gate.h"
#include "common/view/shard_map.h"
#include "proto/run.pb.h"
#include "server/shard/hand_over.h"
#include "server/shard/shard_state.h"

namespace slackline {

// One step in the life of a shard, for traces and tests.
struct ShardTraceRecord {
  enum class Kind {
    kPullAnswered,
    kPushTakenOver,
    kAdvanced,  // Also by a shard that others have installed already.
    kUpdated,
    kInstalled  // By this worker, at the beginning of this clock.
  };
  Kind kind{};
  ShardId shard{};
  Rank rank{};
  Incarnation incarnation = 0;
  // Of the pull or push; for kUpdated from held gradients, their clock.
  Clock clock = 0;
  Clock min_clock = 0;  // Smallest clock of a participant, at that moment.
  Version version = 0;  // Answered; or computed from; or reached by the update.
  uint64_t request_id = 0;  // Of the pull.
  // Of kUpdated: whose gradients it has, in order, and the number of workers
  // that one clock is divided by.
  std::vector<Rank> ranks;
  int workers = 0;
};

// What a shard gave its thread to do; for measuring load.
struct ShardWork {
  ShardId shard{};
  int pushes = 0;
  int pulls = 0;
  size_t bytes_in = 0;
  size_t bytes_out = 0;
  size_t bytes_applied = 0;  // Gradients that an update read.
};

class ShardCore {
 public:
  struct Options {
    Owner self;
    uint64_t seed = 0;  // Of the initial values.
    bool trace = false;
    HandOverOptions hand_over = {};
    StaleRules stale = {};
    // Requests for a shard on its way that are kept; more are told to RETRY.
    size_t waiting_max = 4096;
    // Messages of hand-overs that wait for a view; more are left to be
    // repeated.
    size_t early_max = 64;
  };
  struct Effects {
    // To workers, and to other shard threads.
    std::vector<Outgoing> sends;
    std::vector<ShardTraceRecord> trace;  // Empty unless Options::trace.
    std::vector<ShardWork> work;
    // Stats().hand_over has news for the coordinator.
    bool report = false;
  };

  ShardCore(const Options& options, Optimizer optimizer,
            config::LearningRateSchedule schedule);

  // The time, for all that follows. Sends again what was not confirmed in time.
  // Call it before a batch of messages, and at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;  // InfiniteFuture if nothing waits.

  // Handles one message from a worker or another shard thread. A message that
  // makes no sense changes nothing; a worker is answered with an ErrorReply
  // that says what is wrong.
  void OnMessage(const PeerId& from, const Message& message, Effects* effects);

  // A newer view: creates its shards when the job starts to run, forgets
  // workers that are gone and answers pulls that this unblocks, splits shards,
  // and begins, ends and gives up moves. An older one is ignored.
  void OnView(std::shared_ptr<const View> view, Effects* effects);

  // Ends a batch of messages: pull answers collected since the last call go
  // out, one message for each request. Call it before waiting for more
  // messages.
  void Flush(Effects* effects);

  run::ServerStats Stats() const;
  // Serves this shard now.
  bool Owns(ShardId shard) const { return shards_.count(shard) > 0; }
  // Entries of worker state over all shards: the dedup windows. At most one for
  // each shard and worker of the view.
  int64_t participant_count() const;
  // For tests: everything about a shard that we serve now; else nullptr.
  const ShardState* StateOf(ShardId shard) const;
  // Shards on their way, to here and from here, those that are gone included.
  size_t moves_count() const { return leaving_.size() + arriving_.size(); }
  // Requests that wait until it is clear who owns a shard.
  size_t waiting_count() const;
  // Bytes of pull answers that wait for Flush().
  size_t pending_reply_bytes() const { return pending_reply_bytes_; }

 private:
  // Requests of one shard each that wait until it is clear who owns it.
  using Waiting = std::vector<Outgoing>;  // `to` is who asked.
  struct Leaving {
    HandOverSource source;
    Waiting waiting;
    bool lost = false;  // Gone to a server that has died.
  };
  struct Arriving {
    HandOverTarget target;
    Waiting waiting;
  };
  class Replayer;
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
  // What to answer about a shard that we do not serve in the range that the
  // sender means; OK if we do. Adds where it is, if that is known.
  wire::Code CodeForShard(
      int32_t shard, uint64_t view_number,
      google::protobuf::RepeatedPtrField<wire::Relocation>* relocations,
      std::string* error) const;
  void AddRelocation(
      int32_t shard,
      google::protobuf::RepeatedPtrField<wire::Relocation>* relocations) const;
  // Where requests for the shard have to wait now, or nullptr.
  Waiting* WaitingFor(ShardId shard);
  // Makes room for one more request there; false if there is none.
  bool MayWait(const Waiting& waiting) const {
    return waiting.size() < options_.waiting_max;
  }
  // Keeps one entry of a push or pull there.
  void Wait(Waiting& waiting, const PeerId& from, const Message& message,
            int entry) const;
  void HandleWaiting(Waiting waiting, Effects* effects);

  void CreateShards();
  void SplitShards(const View& before);
  void RemoveWorkersGone(Effects* effects);
  // Ends the moves that the view no longer lists. Returns who waited for them.
  Waiting EndMoves(Effects* effects);
  void BeginMoves(Effects* effects);
  void OnHandOver(const PeerId& from, const Message& message, Effects* effects);
  void OnHandOverReply(const Message& message, Effects* effects);
  void GoIfCaughtUp(ShardId shard, Leaving& leaving, Effects* effects);
  void Pump(Leaving& leaving, Effects* effects);
  // Answers the parked pulls of a shard with MOVED.
  void TurnParkedAway(ShardState& state);

  wire::Code TakeOver(ShardState& state, const wire::PushRequest& push,
                      int entry, const Payload& gradient,
                      StalenessGate::Participant& participant,
                      std::string* error, Effects* effects);
  // What taking a push over does to the shard. `effects` is nullptr for a copy
  // that nobody is served from: no statistics, no trace.
  void Absorb(ShardState& state, StalenessGate::Participant& participant,
              Clock clock, bool advance, Version base, const Payload& gradient,
              double rate_factor, Effects* effects);
  // The payload frames that belong to one entry of the push.
  size_t FramesPerEntry(const wire::PushRequest& push) const;
  // A worker hands a shard back, after steps by all-reduce. Answers as
  // TakeOver() does.
  wire::Code Install(ShardState& state, const wire::PushRequest& push,
                     int entry, absl::Span<const Payload> frames, Rank rank,
                     Incarnation incarnation, std::string* error,
                     Effects* effects);
  // Workers are about to replace what is there, and some of them may not take
  // part yet.
  bool AwaitsInstall(const ShardState& state) const;
  // The clock at which the shard would be if what is held were applied.
  Clock CompleteClock(const ShardState& state) const;
  // Applies the clock that is held if it is complete by now.
  void ApplyCompleteClocks(ShardState& state, Effects* effects);
  // The gradients of `ranks`, some of the `workers` that take part.
  void Update(ShardState& state, absl::Span<const Payload> gradients,
              std::vector<Rank> ranks, int workers, Clock clock,
              double rate_factor, Effects* effects);
  // How many updates a gradient computed from `base` misses.
  void CountStaleness(const ShardState& state, Version base);
  void ReleaseParked(ShardState& state, Effects* effects);
  // A pull with these clocks, in the phase of its clock.
  StalenessGate::Pull Gated(ShardState& state, const PeerId& from,
                            const wire::PullRequest& pull) const;
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
  bool created_ = false;  // The shards that we own from the start.
  absl::Time now_;
  std::map<ShardId, ShardState> shards_;
  std::map<ShardId, Leaving> leaving_;  // Also gone, while the view lists it.
  std::map<ShardId, Arriving> arriving_;
  // Records from sources whose view is newer than ours. So who takes part at an
  // arriving shard is never newer than our view, which says who has left.
  Waiting early_;
  std::vector<PendingReply> pending_replies_;
  size_t pending_reply_bytes_ = 0;
  run::ServerStats stats_;
};

}  // namespace slackline
