// What a timeline has of the messages between workers and shard threads. Both
// ends give a message the same flow, by what is in it anyhow.
#pragma once

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "common/timeline/recorder.h"

namespace slackline {

enum class MessageEnd { kWorker, kShardThread };

// A message that is sent or taken in at this end, in this time. `worker` is at
// the other end, or at this one; 0 where a message is between two shard
// threads, which has no flow.
TimelineEvent EventOf(const Message& message, MessageEnd end,
                      Incarnation worker, absl::Time begun, absl::Time until);

}  // namespace slackline
