// What a checkpoint has of a shard, and where those who begin with it get it
// from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/stored_turns.h"
#include "common/checkpoint/tensor_form.h"
#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "common/payload.h"
#include "common/region.h"

namespace slackline {

// A region of a table. The tensors are references.
struct ShardState {
  std::string table;
  Region region;
  Version version = 0;
  Payload values;
  std::vector<Payload> slots = {};
  // Of its gradients; none if the job has no bound for them.
  RunningRms running_rms = {};
  // If the job's delays are given.
  std::optional<StoredTurns> turns = {};
  bool floats = true;  // As TensorForm::IsFloats() says of the tensors.
};

// The state of all tables. Thread-safe.
class StoredShards {
 public:
  virtual ~StoredShards() = default;
  // That region of the table, whose tensors have this form, however it was
  // split when it was stored; of several versions the largest, of several
  // running root mean squares that of all elements, and the smallest count; of
  // several turns as TurnsOfPieces has it. Errors name what is missing or
  // damaged.
  virtual absl::StatusOr<ShardState> Read(const std::string& table,
                                          const Region& region,
                                          const TensorForm& form) const = 0;
};

}  // namespace slackline
