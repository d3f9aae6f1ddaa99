// If delays are given: which gradient has its turn when, as the scenario's
// trace says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "common/delays/delay_trace.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/job/scenario.h"

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

  // With the gradients of each rank before these clocks, and no others:
  using Clocks = std::map<int32_t, Clock>;
  // How many turns are over.
  size_t OverAt(const ShardTwin& twin, const Clocks& until) const;
  // The gradients that wait for their turns then, with those that a worker
  // skips.
  std::set<std::pair<Clock, Rank>> WaitingAt(const ShardTwin& twin,
                                             const Clocks& until) const;
  // After how many turns the versions are from which the gradients of later
  // clocks are computed, but for the present version and those to come.
  std::set<size_t> KeptAt(const ShardTwin& twin, const Clocks& until) const;
  // All of these gradients are computed from these gradients.
  bool IsClosed(const Clocks& until) const;

 private:
  const DelayTrace::Shard& DelaysOf(const ShardTwin& twin) const;

  const Scenario& scenario_;
};

}  // namespace slackline::sim
