// Calls of the shards that are served on a thread, and what they lead to.
#pragma once

#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_parts.h"

namespace slackline {

// Lets `act` call the shard, which is served here, and does what the call has
// led to.
void CallShard(
    ShardId shard, const ShardParts& at,
    absl::FunctionRef<void(ServedShard&, const ServedShard::Call&)> act);

// Workers that the view does not have take part in the shard, which has just
// become this thread's, no more.
void RemoveStrangers(ShardId shard, const ShardParts& at);

}  // namespace slackline
