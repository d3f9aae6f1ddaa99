// What processes keep, which has bounds, and what they count.
#pragma once

#include "common/membership/member_core.h"
#include "proto/run.pb.h"
#include "server/coordinator/coordinator_core.h"
#include "server/shard/shard_core.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/move_twin.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

class FigureTwin {
 public:
  FigureTwin(const Scenario& scenario, const ViewTwin& views,
             ShardTwins& shards, const MoveTwin& moves, Findings& findings)
      : scenario_(scenario),
        views_(views),
        shards_(shards),
        moves_(moves),
        findings_(findings) {}

  // What the coordinator and a worker's client keep, after an event.
  void OnCoordinator(const CoordinatorCore::Sizes& sizes);
  void OnClient(Rank rank, Incarnation incarnation, const ClientCore& client,
                const MemberCore& member, const View& view);
  // What a shard thread keeps: of participants, and of shards on their way.
  void OnShardFlush(Owner owner, const ShardCore& core);
  void OnShardEvent(Owner owner, const ShardCore& core);
  // The thread's figures, as they go into a heartbeat.
  void OnShardStats(Owner owner, const run::ServerStats& stats);

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  ShardTwins& shards_;
  const MoveTwin& moves_;
  Findings& findings_;
};

}  // namespace slackline::sim
