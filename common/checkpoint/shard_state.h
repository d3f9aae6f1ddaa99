// What a checkpoint has of a shard, and where those who begin with it get it
// from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/stored_turns.h"
#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "common/payload.h"

namespace slackline {

// Elements [begin, end) of a table. The tensors are references, each of
// end - begin floats.
struct ShardState {
  std::string table;
  int64_t begin = 0;
  int64_t end = 0;
  Version version = 0;
  Payload values;
  std::vector<Payload> slots = {};
  // Of its gradients; none if the job has no bound for them.
  RunningRms running_rms = {};
  // If the job's delays are given.
  std::optional<StoredTurns> turns = {};
};

// The state of all tables. Thread-safe.
class StoredShards {
 public:
  virtual ~StoredShards() = default;
  // Elements [begin, end) of the table, however they were cut when they were
  // stored; of several versions the largest, of several running root mean
  // squares that of all elements, and the smallest count; of several turns as
  // TurnsOfPieces has it. Errors name what is missing or damaged.
  virtual absl::StatusOr<ShardState> Read(const std::string& table,
                                          int64_t begin, int64_t end) const = 0;
};

}  // namespace slackline
