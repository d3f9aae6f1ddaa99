// The state of workers by all-reduce: the job has one history of steps, and
// whoever is at a clock of it has the state of that clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/shard/shard_core.h"
#include "tests/sim/check/example_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_replica.h"
#include "tests/sim/job/sim_share.h"

namespace slackline::sim {

// What workers have by all-reduce, at one clock of the job's one history.
struct JobModel {
  Clock clock = 0;
  SimReplica state;
  std::shared_ptr<const JobModel> before;  // One step less.
  std::vector<Life> group;                 // Whose gradients led here.
  uint64_t group_number = 0;
};
using JobModelPtr = std::shared_ptr<const JobModel>;

class AllReduceTwin {
 public:
  AllReduceTwin(const Scenario& scenario, const ViewTwin& views,
                const ShardArithmetic& arithmetic, ShardTwins& shards,
                const ExampleTwin& examples, Findings& findings)
      : scenario_(scenario),
        views_(views),
        arithmetic_(arithmetic),
        shards_(shards),
        examples_(examples),
        findings_(findings) {}

  // A worker has the initial state; or that of the servers at `clock`; or
  // shares it with its group, which is about to find its clock from these
  // shares, and then has one; or it has done a step and is at `clock`.
  void OnInitial(Rank rank, Incarnation incarnation, const SimReplica& state);
  void OnTookState(Rank rank, Incarnation incarnation, Clock clock,
                   const SimReplica& state);
  void OnShared(Rank rank, Incarnation incarnation, uint64_t group);
  void OnExchange(uint64_t group, const std::vector<SimShare>& shares);
  void OnCaughtUp(Rank rank, Incarnation incarnation, uint64_t group,
                  Clock clock, const SimReplica& state);
  void OnReduced(Rank rank, Incarnation incarnation, uint64_t group,
                 const std::vector<SimShare>& shares, Clock clock,
                 const SimReplica& state);
  // A worker's state has become a shard's.
  void OnInstalled(ShardTwin& twin, const ShardTraceRecord& record,
                   const View& view);

  // The worker's state, or nullptr after a report.
  JobModelPtr ModelOf(const Life& life, const std::string& what);
  void CompareReplica(const Life& life, const JobModel& model,
                      const SimReplica& state, const std::string& when);
  // Every live worker has its part in every step that led to `last`.
  void CheckHistory(const JobModelPtr& last);

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  const ShardArithmetic& arithmetic_;
  ShardTwins& shards_;
  const ExampleTwin& examples_;
  Findings& findings_;
  std::map<Rank, JobModelPtr> initial_;
  std::map<Clock, JobModelPtr> taken_;      // From the servers.
  std::map<Clock, JobModelPtr> installed_;  // And given back.
  std::map<uint64_t, JobModelPtr> bases_;   // Of groups: where they began.
  std::map<std::pair<uint64_t, Clock>, JobModelPtr> reduced_;  // By group.
  std::map<Life, JobModelPtr> replicas_;
  std::map<std::pair<uint64_t, Life>, JobModelPtr> shared_;  // With a group.
};

}  // namespace slackline::sim
