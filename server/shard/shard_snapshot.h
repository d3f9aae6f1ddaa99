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

// With given delays: a gradient whose turn has not come.
struct WaitingGradient {
  Version base = 0;  // That it was computed from.
  Payload gradient;
  StepOptions options = {};
  double rms = 0;  // As in GradientRecord.
};

// What a shard whose delays are given has beside its values. The tensors are
// references.
struct TurnState {
  // Of the shard that the job began with, in whose turns this one takes part:
  // it is that shard, or was split off from it.
  ShardId plan{};
  int64_t over = 0;  // Turns.
  std::map<std::pair<Clock, Rank>, WaitingGradient> waiting = {};
  std::map<int64_t, ShardVersion> kept = {};  // By the turns before them.
  StaleRule::Memory memory = {};              // Of the table's rule.
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
  // Of complete_clock, sorted by rank, then incarnation.
  std::vector<HeldGradient> held = {};
  int spare = 0;  // Of that clock.
  LogPosition position = {};
  RunningRms running_rms = {};
  // Of a job whose delays are given.
  std::optional<TurnState> turns = {};
};

}  // namespace slackline
