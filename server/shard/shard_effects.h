// What comes out of the parts of a shard thread: messages to send, the state of
// its shards at a checkpoint's cut, and what its driver measures and traces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/shard_state.h"
#include "common/ids.h"
#include "common/message.h"

namespace slackline {

// One step in the life of a shard, for traces and tests.
struct ShardTraceRecord {
  enum class Kind {
    kPullAnswered,
    kPushAccepted,
    // A push that was accepted and changes nothing but its sender's clock: the
    // rule for stale gradients drops it, it has a NaN or an infinity, or it is
    // above the bound of gradients.
    kPushDiscarded,
    // The sender's clock went on. This is also the record of a worker that
    // installs a shard which others have installed already.
    kAdvanced,
    kUpdated,
    kInstalled  // This worker installed the shard, and this clock begins.
  };
  Kind kind{};
  ShardId shard{};
  Rank rank{};
  Incarnation incarnation = 0;
  // The clock of the pull or push. An update from held gradients has theirs.
  Clock clock = 0;
  Clock min_clock = 0;  // The smallest clock of a participant at that moment.
  // The version that was answered, that a gradient was computed from, or that
  // an update has reached.
  Version version = 0;
  uint64_t request_id = 0;  // The number of the pull.
  // Whose gradients an update has, in order.
  std::vector<Rank> ranks = {};
  int workers = 0;     // The number that one clock of an update is divided by.
  uint64_t index = 0;  // Where the shard's log was then, as in LogPosition.
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

// What the shards of a thread are at a cut.
struct ShardCutState {
  int32_t number = 0;  // wire::Cut.number.
  // Sorted by table and elements; none if the thread serves none. The tensors
  // are references to versions that do not change any more.
  std::vector<ShardState> shards = {};
  uint64_t run = 0;  // wire::Header.run.
  // Why there is no such state; it names the shard. Empty: there is one.
  std::string error = {};
};

struct ShardEffects {
  // Messages to workers, and to other shard threads.
  std::vector<Outgoing> sends;
  std::vector<ShardTraceRecord> trace;  // Empty unless Options::trace.
  std::vector<ShardWork> work;
  // Stats() has news that the coordinator waits for: of a hand-over, or a
  // gradient that ends the job.
  bool report = false;
  // The present cut is complete in all shards that are served here, or will
  // not be; once for each cut.
  std::optional<ShardCutState> cut;
  // The thread cannot go on: a shard could not be read, or there is no memory
  // for it. Names the shard.
  absl::Status failure;
};

}  // namespace slackline
