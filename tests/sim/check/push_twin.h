// Pushes: each that is acknowledged takes effect exactly once, in order, in the
// update that it belongs to.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "server/shard/shard_core.h"
#include "tests/sim/check/cut_twin.h"
#include "tests/sim/check/delay_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

class PushTwin {
 public:
  PushTwin(const Scenario& scenario, ViewTwin& views,
           const ShardArithmetic& arithmetic, ShardTwins& shards,
           DelayTwin& delays, CutTwin& cuts, Findings& findings)
      : scenario_(scenario),
        views_(views),
        arithmetic_(arithmetic),
        shards_(shards),
        delays_(delays),
        cuts_(cuts),
        findings_(findings) {}

  // A worker's client has put this on its way; or was told so.
  void OnSent(const Life& life, const wire::PushRequest& request);
  void OnReply(const Life& life, const wire::PushReply& reply);
  // A worker has the parameters of a table for the step of this clock.
  void OnParameters(Rank rank, Incarnation incarnation, Clock clock,
                    const TableValues& values);
  // What the owner of the shard says that it has done.
  void OnPushAccepted(ShardTwin& twin, const ShardTraceRecord& record,
                      Owner owner);
  void OnAdvanced(ShardTwin& twin, const ShardTraceRecord& record, Owner owner);
  void OnUpdated(ShardTwin& twin, const ShardTraceRecord& record, Owner owner);
  // BACKUP holds no gradients that are enough.
  void CheckHeld(const ShardTwin& twin, Owner owner);
  // The job has finished and every message has arrived.
  void OnFinished();

  // A server has discarded one of its gradients because of the bound.
  bool IsOversized(Rank rank) const { return oversized_.count(rank) > 0; }
  void NoteOversized(Rank rank) { oversized_.insert(rank); }

 private:
  // It was computed from the parameters that its step had.
  void CheckBase(const ShardTwin& twin, const Life& life,
                 const ShardTraceRecord& record, const std::string& who);

  const Scenario& scenario_;
  ViewTwin& views_;
  const ShardArithmetic& arithmetic_;
  ShardTwins& shards_;
  DelayTwin& delays_;
  CutTwin& cuts_;
  Findings& findings_;
  std::set<Rank> oversized_;  // Whose gradients were above the bound.
  // The versions that a step over servers is computed from.
  std::map<std::pair<Life, Clock>, std::map<int32_t, Version>> computed_from_;
};

}  // namespace slackline::sim
