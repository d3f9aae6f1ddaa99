// FeedSender: sends what one shard thread feeds others, to followers of its
// shards and to the targets of moves, and knows what is under way to each of
// these threads (FeedLink).
//
// Deterministic state machine: the time comes with ShardParts.
// Thread-compatible.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "server/shard/feed_link.h"
#include "server/shard/shard_parts.h"

namespace slackline {

class FeedSender {
 public:
  // Sends again what was not confirmed in time, and asks threads from which
  // nothing has been heard in time what they have.
  void OnTick(const ShardParts& at);
  absl::Time NextWakeup(const ShardPlaces& places) const;
  // Forgets what was under way to servers that are gone or live anew.
  void OnView(const ShardParts& at);

  // Sends what there is of the feed of a move.
  void Pump(LogFeed& feed, const ShardParts& at);
  // Sends what has waited for room, and what there is for followers.
  void PumpAll(const ShardParts& at);
  // Signs the message.
  static void Send(Owner target, Message message, const ShardParts& at);

  // nullptr if nothing ever was under way to this thread.
  FeedLink* FindLink(Owner target);
  const FeedLink* FindLink(Owner target) const;

 private:
  struct LinkToThread {
    Incarnation server = 0;  // The life of the server whose thread it is.
    FeedLink link;
  };
  FeedLink& LinkTo(Owner target, const ShardParts& at);
  // Sends what there is for followers of the shard, if it is served.
  void PumpFollowersOf(ShardId shard, const ShardParts& at);

  std::map<Owner, LinkToThread> links_;
  // When to look at the latest at shards whose followers lack something.
  absl::Time due_ = absl::InfiniteFuture();
};

}  // namespace slackline
