// Pushes and updates of a job whose delays are given: each gradient takes
// effect in its turn.
#pragma once

#include <string>

#include "server/shard/given_turns.h"
#include "server/shard/shard_core.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class DelayTwin {
 public:
  DelayTwin(const Scenario& scenario, const TurnPlan& turns, ShardTwins& shards,
            Findings& findings)
      : scenario_(scenario),
        turns_(turns),
        shards_(shards),
        findings_(findings) {}

  void OnGivenPush(ShardTwin& twin, const Life& life,
                   TwinParticipant& participant, const ShardTraceRecord& record,
                   const std::string& who, Owner owner);
  void OnGivenUpdate(ShardTwin& twin, const ShardTraceRecord& record,
                     Owner owner);
  // It has no gradient of its clock; its turn is over when it comes.
  void OnGivenSkip(ShardTwin& twin, const Contribution& skipped);
  void PassTurnsWithoutEffect(ShardTwin& twin, Owner owner);
  // A turn of which all gradients are there is over.
  void CheckReady(const ShardTwin& twin);
  // What a shard keeps for delays, no more than what is needed.
  void CheckKept(const ShardTwin& twin, const TurnState& kept);

 private:
  // Counts the delay of each gradient of the next turn; false if a rule drops
  // the only one.
  bool JudgeTurn(ShardTwin& twin, const DelayTrace::Update& turn, Owner owner);

  const Scenario& scenario_;
  const TurnPlan& turns_;
  ShardTwins& shards_;
  Findings& findings_;
};

}  // namespace slackline::sim
