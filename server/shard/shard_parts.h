// ShardParts: the parts of a ShardCore as they know each other, for the length
// of one call into it, and the few things that several of them do.
//
// | part | has |
// | --- | --- |
// | ShardMaker | what shards begin as |
// | ShardPlaces | where each shard is here, and the shards themselves |
// | RequestDesk | requests of workers, and answers that wait for followers |
// | PullReplies | answers to pulls, until they share a message |
// | FeedSender | what is under way to other shard threads |
// | HandOvers | what comes from other shard threads |
// | ViewChanges | what a newer view does to the shards |
// | ThreadCut | the state of the shards at a checkpoint's cut |
// | ShardCounts | what was counted |
//
// Thread-compatible.
#pragma once

#include "absl/time/time.h"
#include "common/message.h"
#include "common/view/shard_map.h"
#include "proto/wire.pb.h"
#include "server/shard/pull_replies.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_core_options.h"
#include "server/shard/shard_counts.h"
#include "server/shard/shard_effects.h"
#include "server/shard/shard_places.h"

namespace slackline {

class FeedSender;
class HandOvers;
class RequestDesk;
class ShardMaker;
class ThreadCut;

struct ShardParts {
  const ShardCoreOptions& options;
  const View* view;  // nullptr: none has come yet.
  absl::Time now;
  ShardMaker& maker;
  ShardPlaces& places;
  RequestDesk& desk;
  PullReplies& replies;
  FeedSender& feeds;
  HandOvers& hand_overs;
  ThreadCut& cut;
  ShardCounts& counts;
  ServedShard::Effects& done;  // CallShard() alone uses it.
  ShardEffects& effects;
  bool& failed;  // The thread cannot go on.

  // The thread cannot go on: it cannot `what` this shard.
  void Fail(absl::string_view what, ShardId shard,
            const absl::Status& why) const;

  // A message of this thread says as of which view it speaks.
  void Sign(wire::Header* header) const;
  // The view's entry for this thread among the shard's followers, or nullptr.
  const wire::Follower* ListedHere(ShardId shard) const;
  // All that the shard of this range can ever have had.
  Region MostOf(const ShardRange& range) const {
    return RegionOf(view->table(range.table))
        .SplitAt(range.region.begin())
        .second;
  }
};

// The term of an owner by the view of this number; the next term is that of an
// owner by a move in it. Smaller terms are of copies that no owner's log has
// reached: what a shard was at first, to threads that began with views of
// different workers.
inline uint64_t TermOf(uint64_t view_number) { return view_number << 32; }

inline size_t PayloadBytes(const Message& message) {
  size_t bytes = 0;
  for (const Payload& payload : message.payloads) bytes += payload.size();
  return bytes;
}

}  // namespace slackline
