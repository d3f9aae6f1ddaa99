// The twins of all shards, and what each shard thread was handed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/run.pb.h"
#include "server/shard/shard_machine.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/resume_twin.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twin.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

struct ThreadTwin {
  std::shared_ptr<const View> view;  // Handed to it last.
  uint64_t first_view = 0;           // In which the job runs.
  bool created = false;              // Has seen that the job runs.
  size_t waiting = 0;                // Requests, last time.
  bool was_deposed = false;          // It has counted what nobody knows of.
  // How stale gradients and answers were, as the twins have it.
  run::ServerStats staleness;
};

class ShardTwins {
 public:
  ShardTwins(const Scenario& scenario, const ViewTwin& views,
             const ShardArithmetic& arithmetic,
             const ShardComparison& comparison, const ResumeTwin& resume,
             Findings& findings)
      : scenario_(scenario),
        views_(views),
        arithmetic_(arithmetic),
        comparison_(comparison),
        resume_(resume),
        findings_(findings) {}

  std::map<int32_t, ShardTwin>& twins() { return twins_; }
  const std::map<int32_t, ShardTwin>& twins() const { return twins_; }
  std::map<Owner, ThreadTwin>& threads() { return threads_; }
  const std::map<Owner, ThreadTwin>& threads() const { return threads_; }

  void OnServerStarts(int32_t server);
  void OnServerGone(int32_t server);
  void CreateTwins(Owner owner, const View& view);
  void CreateTwin(int32_t id, const View& view);
  // Cuts the twins of what this owner has. Appends the shards that are others
  // now to `*changed`, and to `*parts` what was split off what.
  void SplitTwins(Owner owner, const View& view, std::vector<int32_t>* changed,
                  std::vector<std::pair<int32_t, int32_t>>* parts);
  // Who takes part by now, after a view or a new owner.
  void FollowParticipants(ShardTwin& twin, const View& view,
                          const ShardMachine& machine);
  // By the rule for stale gradients: false if the gradient is not applied.
  bool JudgeStale(ShardTwin& twin, int64_t missed_updates, int workers);
  void AddUpdate(ShardTwin& twin, TwinUpdate update);
  // What an owner has is what it must have.
  void CompareState(const ShardTwin& twin, const ShardMachine& machine,
                    const std::string& when);
  // The view by which a shard thread has to treat requests of that worker. A
  // live one waits until the shard knows the phases that it knows; what is left
  // of a dead one may get there before these.
  const wire::View& ViewFor(const Life& life, Owner owner) const;
  // The same for a gradient that the twin holds, which are of one clock.
  const wire::View& ViewForHeld(const ShardTwin& twin, Owner owner) const;
  // It serves a shard that a view which it has not seen gives to another one.
  bool IsDeposed(int32_t shard, Owner owner) const;

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  const ShardArithmetic& arithmetic_;
  const ShardComparison& comparison_;
  const ResumeTwin& resume_;
  Findings& findings_;
  std::map<int32_t, ShardTwin> twins_;  // By shard.
  std::map<Owner, ThreadTwin> threads_;
};

// Whether a clock of BACKUP of which the twin holds gradients is complete.
bool HasEnough(const ShardTwin& twin, const wire::View& view);

}  // namespace slackline::sim
