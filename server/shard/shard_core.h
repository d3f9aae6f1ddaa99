// ShardCore: what one shard thread decides: which pushes its shards accept,
// which pulls wait, what is answered and when, how shards are handed over,
// copied and split as the view orders, and what they are at the cut of a
// checkpoint. It hands each event to one of its parts; shard_parts.h lists
// them.
//
// Deterministic state machine: messages and the time go in, effects come out;
// no sockets, threads, clocks or randomness. Thread-compatible. The order of
// effects depends only on the order of events.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "common/message.h"
#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"
#include "server/shard/feed_sender.h"
#include "server/shard/hand_overs.h"
#include "server/shard/request_desk.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_core_options.h"
#include "server/shard/shard_counts.h"
#include "server/shard/shard_effects.h"
#include "server/shard/shard_maker.h"
#include "server/shard/shard_parts.h"
#include "server/shard/shard_places.h"
#include "server/shard/thread_cut.h"
#include "server/shard/view_changes.h"

namespace slackline {

class ShardCore {
 public:
  using Options = ShardCoreOptions;
  using CutState = ShardCutState;
  using Effects = ShardEffects;

  ShardCore(const Options& options, config::LearningRateSchedule schedule);

  // The time, for all that follows. Sends again what was not confirmed in time.
  // Call it before a batch of messages, and at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  // InfiniteFuture if nothing waits.
  absl::Time NextWakeup() const { return feeds_.NextWakeup(places_); }

  // Handles one message from a worker or another shard thread. A message that
  // makes no sense, or belongs to another run than our view, changes nothing;
  // a worker is answered with an ErrorReply that says what is wrong.
  void OnMessage(const PeerId& from, const Message& message, Effects* effects);

  // A newer view: creates its shards when the job starts to run, forgets
  // workers that are gone and answers pulls that this unblocks, splits shards,
  // begins, ends and gives up moves, and begins a newer cut, which replaces one
  // that is not complete. An older view is ignored.
  void OnView(std::shared_ptr<const View> view, Effects* effects);

  // Ends a batch of messages: pull answers collected since the last call go
  // out, those for one worker in shared messages; so does what is new in the
  // logs of shards that are followed, and what has waited for followers. Call
  // it before waiting for more messages.
  void Flush(Effects* effects);

  // Every gradient that a thread has accepted is in one of the counters
  // applied, held, dropped, nonfinite and oversized
  // (common/metrics/gradient_counts.h). A shard that moves takes those that it
  // holds along: they are then held, and later applied, where it is. A held
  // gradient that is split in two with its shard counts as two from then on.
  run::ServerStats Stats() const;
  // The thread serves this shard now.
  bool Owns(ShardId shard) const { return places_.Owns(shard); }
  // The thread has, or gets, a copy of this shard.
  bool Follows(ShardId shard) const { return places_.Follows(shard); }
  // For tests: entries of worker state over all shards, at most one for
  // each shard and worker of the view.
  int64_t participant_count() const;
  // For tests: what a shard that is served here is and has; nullptr if it is
  // not served here.
  const ShardMachine* MachineOf(ShardId shard) const;
  const StalenessGate* GateOf(ShardId shard) const;
  // For tests: the copy of a shard that is followed here; nullptr if there is
  // none, or it is not whole yet.
  const ShardMachine* CopyOf(ShardId shard) const {
    return places_.WholeCopy(shard);
  }
  // Shards that are followed here.
  size_t copies_count() const { return places_.copies_count(); }
  // For tests: messages to workers that wait for followers.
  size_t answers_held() const { return desk_.held_count(); }
  // For tests: shards on their way, to here and from here, those that are gone
  // included.
  size_t moves_count() const { return places_.moving().size(); }
  // For tests: what is under way to this shard thread; nullptr if nothing ever
  // was.
  const FeedLink* LinkOf(Owner target) const { return feeds_.FindLink(target); }
  // For tests: nullptr if no cut of this shard is under way.
  const ShardCut* CutOf(ShardId shard) const;
  // Requests that wait until it is clear who owns a shard.
  size_t waiting_count() const { return places_.waiting_count(); }
  size_t waiting_bytes() const { return places_.waiting_bytes(); }
  // Bytes of pull answers that wait for Flush().
  size_t pending_reply_bytes() const { return replies_.bytes(); }

 private:
  ShardParts Parts(Effects* effects);

  const Options options_;
  std::shared_ptr<const View> view_;
  absl::Time now_;
  ShardMaker maker_;
  ShardPlaces places_;
  RequestDesk desk_;
  PullReplies replies_;
  FeedSender feeds_;
  HandOvers hand_overs_;
  ViewChanges changes_;
  ThreadCut cut_;
  ShardCounts counts_;
  ServedShard::Effects done_;  // What the last call of a shard has left.
  bool failed_ = false;
};

}  // namespace slackline
