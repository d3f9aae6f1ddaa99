// Everything that one shard is: what an owner has, and hands to the next one.
#pragma once

#include <vector>

#include "common/sync/dssp_controller.h"
#include "common/sync/staleness_gate.h"
#include "server/shard/shard.h"
#include "server/shard/stale_pushes.h"

namespace slackline {

struct ShardState {
  // A gradient of BSP or BACKUP that waits for the rest of its clock.
  struct Held {
    Rank rank{};
    Incarnation incarnation = 0;
    Payload gradient;
  };

  Shard shard;
  StalenessGate gate;
  // Clocks below it are complete and applied. The smallest clock of the gate,
  // or in BACKUP, and after it, perhaps a larger one.
  Clock bsp_clock = 0;
  std::vector<Held> held;  // Of bsp_clock, sorted by rank, then incarnation.
  StalePushes stale;
  DsspController dssp = {};  // Measures anew wherever the shard gets.
};

// Cuts `state` in two, as Shard::Split() does: the other part has the same
// participants, clocks and sequence numbers. Nothing may be parked.
ShardState SplitState(ShardState& state, const ShardRange& kept,
                      const ShardRange& cut);

}  // namespace slackline
