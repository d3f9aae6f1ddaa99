// How a job begins that goes on from a checkpoint.
#pragma once

#include <cstdint>
#include <utility>

#include "server/shard/shard_core.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class ResumeTwin {
 public:
  ResumeTwin(const Scenario& scenario, const ViewTwin& views,
             const ShardComparison& comparison, const TurnPlan& turns,
             Findings& findings)
      : scenario_(scenario),
        views_(views),
        comparison_(comparison),
        turns_(turns),
        findings_(findings) {}

  // Without a checkpoint as well: 0.
  Clock BeginsAt(int32_t rank) const;
  std::pair<Clock, Clock> Beginnings() const;  // The smallest and the largest.
  // The first view in which the job runs.
  void CheckBegin(const wire::View& view);
  void Resume(ShardTwin& twin) const;
  void CheckResumed(const ShardTwin& twin, const ShardCore& core);

 private:
  // If delays are given: how far its turns are, as its workers' clocks say, and
  // which versions they need, as the checkpoint has them.
  void ResumeTurns(const StoredTurns& stored, ShardTwin& twin) const;

  const Scenario& scenario_;
  const ViewTwin& views_;
  const ShardComparison& comparison_;
  const TurnPlan& turns_;
  Findings& findings_;
};

}  // namespace slackline::sim
