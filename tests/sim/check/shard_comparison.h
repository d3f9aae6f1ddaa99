// Whether what a shard is, or what it answers, is what its twin says; and if it
// is not, which invariant that breaks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/shard/shard_machine.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class ShardComparison {
 public:
  ShardComparison(const Scenario& scenario, const ShardArithmetic& arithmetic,
                  const TurnPlan& turns)
      : scenario_(scenario), arithmetic_(arithmetic), turns_(turns) {}

  std::optional<Violation> Difference(const ShardTwin& twin,
                                      const ShardMachine& machine) const {
    return Difference(twin, twin, twin.versions.size() - 1, machine);
  }
  // The same for what it was.
  std::optional<Violation> Difference(const ShardTwin& twin,
                                      const TwinState& state, Version version,
                                      const ShardMachine& machine) const;
  // An answer's bytes are not the twin's.
  Violation Explain(const ShardTwin& twin, Version version,
                    const std::vector<float>& actual) const;

 private:
  // Of what waits for its turn, and of what is kept until then.
  std::optional<Violation> TurnsDifference(const ShardTwin& twin,
                                           const TwinState& state,
                                           const ShardMachine& machine) const;
  std::optional<Violation> ExplainAsOtherPushes(
      const ShardTwin& twin, Version version,
      const std::vector<float>& actual) const;

  const Scenario& scenario_;
  const ShardArithmetic& arithmetic_;
  const TurnPlan& turns_;
};

}  // namespace slackline::sim
