// ShardSnapshot: a shard at one position of its log, as a checkpoint, a copy
// and a hand-over have it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/optim/gradient_bound.h"
#include "common/optim/update_rule.h"
#include "common/payload.h"
#include "common/sync/participants.h"
#include "server/shard/accepted_gradients.h"
#include "server/shard/shard.h"

namespace slackline {

// One version of a shard.
struct ShardVersion {
  Version version = 0;
  Payload values;
};

// A gradient whose turn has not come, with given delays.
struct WaitingGradient {
  Version base = 0;  // The gradient was computed from it.
  Payload gradient;
  StepOptions options = {};
  double rms = 0;  // GradientRecord::rms.
};

// What a shard whose delays are given has beside its values. The tensors are
// references.
struct TurnState {
  // The shard that the job began with, in whose turns this one takes part: it
  // is that shard, or was split off from it.
  ShardId plan{};
  int64_t over = 0;  // So many turns are over.
  std::map<std::pair<Clock, Rank>, WaitingGradient> waiting = {};
  std::map<int64_t, ShardVersion> kept = {};  // By the turns before them.
  StaleRule::Memory memory = {};  // What the table's rule remembers.
};

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
  // Gradients held for complete_clock, sorted by rank, then incarnation.
  std::vector<HeldGradient> held = {};
  int spare = 0;  // Their GradientRecord::spare.
  LogPosition position = {};
  RunningRms running_rms = {};
  // A shard has turns if the job's delays are given.
  std::optional<TurnState> turns = {};
};

}  // namespace slackline
