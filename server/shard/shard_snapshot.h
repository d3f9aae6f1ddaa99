// ShardSnapshot: a shard at one position of its log, as a checkpoint, a copy
// and a hand-over have it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/optim/gradient_bound.h"
#include "common/sync/participants.h"
#include "server/shard/accepted_gradients.h"
#include "server/shard/given_turns.h"
#include "server/shard/shard.h"

namespace slackline {

// Where a copy of a shard is in the shard's log. Two copies at one position are
// equal.
struct LogPosition {
  // Grows whenever the shard gets another owner, whose log it is from there on.
  uint64_t term = 0;
  uint64_t index = 0;  // Records that were applied since the job began.
  bool operator==(const LogPosition&) const = default;
};

// Everything that a shard is, but its range. The tensors are references.
struct ShardSnapshot {
  Version version = 0;
  Payload values;
  std::vector<Payload> slots = {};
  Clock min_clock = 0;
  std::vector<Participant> participants = {};  // Sorted by rank.
  Clock complete_clock = 0;
  // Of complete_clock, sorted by rank, then incarnation.
  std::vector<HeldGradient> held = {};
  int spare = 0;  // Of that clock.
  LogPosition position = {};
  RunningRms running_rms = {};
  // Of a job whose delays are given.
  std::optional<TurnState> turns = {};
};

}  // namespace slackline
