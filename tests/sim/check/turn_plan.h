// If delays are given: which gradient has its turn when, as the scenario's
// trace says.
#pragma once

#include <cstddef>

#include "common/delays/delay_trace.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/scenario.h"

namespace slackline::sim {

class TurnPlan {
 public:
  explicit TurnPlan(const Scenario& scenario) : scenario_(scenario) {}

  // How many turns there are before that gradient is computed.
  size_t TurnsBefore(const ShardTwin& twin, Rank rank, Clock clock) const;
  Clock CompleteAfter(const ShardTwin& twin, size_t turns) const;
  // nullptr: no turn is left, or a gradient of it is missing.
  const DelayTrace::Update* ReadyTurn(const ShardTwin& twin) const;
  // Whether the given delays use that gradient.
  bool HasTurn(const ShardTwin& twin, Rank rank, Clock clock) const;

 private:
  const DelayTrace::Shard& DelaysOf(const ShardTwin& twin) const;

  const Scenario& scenario_;
};

}  // namespace slackline::sim
