// Who serves which shard: one shard thread at a time, and the one that views
// name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "server/shard/shard_core.h"
#include "tests/sim/check/failover_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/pull_twin.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

// A shard thread did something: what that has changed in whom it serves.
struct ShardEvent {
  bool created = false;      // It has seen for the first time that a job runs.
  std::vector<int32_t> cut;  // Shards split in two, and what was split off.
  std::vector<int32_t> gained;  // It serves them from now on.
  std::set<int32_t> promoted;   // Of these: because it had followed them.
  std::set<int32_t> served;     // Before or after the event.
  std::set<int32_t> deposed;    // It serves them, though by views another does.
};

class ServingTwin {
 public:
  ServingTwin(const Scenario& scenario, const ShardComparison& comparison,
              ShardTwins& shards, PullTwin& pulls, FailoverTwin& failovers,
              Findings& findings)
      : scenario_(scenario),
        comparison_(comparison),
        shards_(shards),
        pulls_(pulls),
        failovers_(failovers),
        findings_(findings) {}

  // `view` is what the thread was handed, if that was a view. nullopt: it has
  // none of a job that runs yet.
  std::optional<ShardEvent> Follow(Owner owner,
                                   const std::shared_ptr<const View>& view,
                                   const ShardCore& core);
  // What it has got by the event is what its twin says.
  void CompareArrivals(Owner owner, const ShardEvent& event,
                       const ShardCore& core);
  void CompareInstalled(const ShardEvent& event, const ShardCore& core,
                        const ShardCore::Effects& effects);

 private:
  void FollowView(Owner owner, const View& view, const ShardCore& core,
                  ShardEvent* event);
  void FollowOwner(Owner owner, int32_t id, bool owns, ShardEvent* event);

  const Scenario& scenario_;
  const ShardComparison& comparison_;
  ShardTwins& shards_;
  PullTwin& pulls_;
  FailoverTwin& failovers_;
  Findings& findings_;
};

}  // namespace slackline::sim
