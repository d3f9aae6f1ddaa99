// Everything that one shard is: what an owner has, and hands to the next one.
#pragma once

#include <vector>

#include "common/sync/staleness_gate.h"
#include "server/shard/shard.h"
#include "server/shard/stale_pushes.h"

namespace slackline {

struct ShardState {
  struct Held {  // A BSP gradient that waits for the rest of its clock.
    Rank rank{};
    Incarnation incarnation = 0;
    Payload gradient;
  };

  Shard shard;
  StalenessGate gate;
  Clock bsp_clock = 0;     // Clocks below it are complete and applied.
  std::vector<Held> held;  // Of bsp_clock, sorted by rank, then incarnation.
  StalePushes stale;
};

// Cuts `state` in two, as Shard::Split() does: the other part has the same
// participants, clocks and sequence numbers. Nothing may be parked.
ShardState SplitState(ShardState& state, const ShardRange& kept,
                      const ShardRange& cut);

}  // namespace slackline
