// HandOvers: what other shard threads send to this one, and what makes a shard
// change hands: feeds of shards that come here or are followed here, and
// replies to what this thread feeds. docs/protocols/hand-over.md,
// docs/protocols/replicas.md.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include "common/message.h"
#include "proto/hand_over.pb.h"
#include "server/shard/log_feed.h"
#include "server/shard/shard_parts.h"

namespace slackline {

class HandOvers {
 public:
  void OnHandOver(const PeerId& from, const Message& message,
                  const ShardParts& at);
  void OnHandOverReply(const PeerId& from, const Message& message,
                       const ShardParts& at);
  // A view has come that messages may have waited for.
  void HandleEarly(const ShardParts& at);
  // If the shard leaves and its target has all that there is of its log, the
  // target owns it from here on.
  void GoIfCaughtUp(ShardId shard, const ShardParts& at);

 private:
  // A message of a move: this thread is the next owner of the shard, which it
  // becomes with a go.
  void OnMove(const PeerId& from, const Message& message, const ShardParts& at);
  // A message to a follower, which may become the owner in the same way.
  void OnFeed(const PeerId& from, const Message& message, const ShardParts& at);

  // Records from sources whose view is newer than this thread's. So who takes
  // part at an arriving shard is never newer than the view here, which says who
  // has left.
  ShardPlaces::Requests early_;
};

}  // namespace slackline
