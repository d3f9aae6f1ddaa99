// What happened in runs of the simulation, fault by fault and check by check.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/sim/checker.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_stranger.h"
#include "tests/sim/sim_user.h"
#include "tests/sim/sim_worker.h"

namespace slackline::sim {

// What happened, to be summed over runs: a simulation in which nothing goes
// wrong any more must be noticed.
struct RunCounts {
  NetworkStats network;
  CheckerStats checker;
  SimWorker::Counts workers;
  int64_t runs = 0;
  int64_t events = 0;
  int64_t finished = 0;
  int64_t failed = 0;      // The job failed, and had to.
  int64_t not_judged = 0;  // To the end: see Checker::judges_no_more().
  int64_t coordinator_lost =
      0;  // Server 0 died or was cut off from all others.
  // At first.
  int64_t bsp = 0, ssp = 0, asp = 0, allreduce = 0, dssp = 0, backup = 0,
          delays = 0;
  int64_t cuts = 0;
  int64_t crashes = 0;
  int64_t server_crashes = 0;
  int64_t restarts = 0;
  int64_t fenced = 0;   // Lives that were told to join again.
  int64_t gave_up = 0;  // Lives that ended with an error of their own.
  SimUser::Counts user;
  int64_t servers_added = 0;    // Those that have joined.
  int64_t servers_drained = 0;  // Those that have left.
  int64_t servers_retired = 0;  // Of them: because their time was over.
  int64_t gos = 0;              // Moves whose source has said go.
  int64_t records_resent = 0;   // Messages.
  int64_t lost_on_the_way = 0;  // Jobs that failed because of that.
  int64_t lingered = 0;         // All moves came to their end in the job.
  std::array<int64_t, kShardSteps> steps = {};         // Messages seen.
  std::array<int64_t, kShardSteps> step_faults = {};   // Injected just then.
  std::array<int64_t, kShardSteps> step_crashes = {};  // Of those: crashes.

  // Likewise, by step of a change of the mode.
  std::array<int64_t, kPhaseSteps> phase_steps = {};
  std::array<int64_t, kPhaseSteps> phase_faults = {};
  std::array<int64_t, kPhaseSteps> phase_crashes = {};

  // What reality has beyond that: how often it happened, not how often a run
  // was meant to have it.
  int64_t stopped = 0;         // Processes, for less than a lease.
  int64_t stopped_long = 0;    // For longer.
  int64_t suspended = 0;       // Machines.
  int64_t server_0_still = 0;  // Of all these: the coordinator's.
  int64_t clocks_apart = 0;    // Runs in which no two machines' clocks agree.
  int64_t trainer_stalls = 0;
  int64_t trainer_stalls_for_ever = 0;  // Of those.
  int64_t stuck_alone = 0;              // Ended by a user.
  int64_t shard_stalls = 0;
  int64_t inner_cuts = 0;
  int64_t bounded_links = 0;  // Runs.
  int64_t schedules = 0;      // Likewise.
  int64_t stale_rules = 0;
  int64_t own_optimizers = 0;  // Of tables.
  int64_t rate_factors = 0;
  int64_t skips_tables = 0;
  int64_t tries_links = 0;
  int64_t links_missed = 0;      // Looks at which some were not there.
  int64_t replicas = 0;          // Runs in which shards have followers.
  int64_t server_restarts = 0;   // In them.
  int64_t rows = 0;              // Runs in which some tables are by rows.
  int64_t recovers = 0;          // Runs whose coordinator may come back.
  int64_t recovered = 0;         // It has,
  int64_t taken_over = 0;        // of these, in another server;
  int64_t taken_over_still = 0;  // of these, while its old process stood still,
  int64_t recovered_unkept = 0;  // from before what was on its way to be kept,
  int64_t recovered_untold = 0;  // or from what nobody had heard of;
  int64_t recovered_in_move = 0;    // while shards moved,
  int64_t recovered_in_change = 0;  // the mode changed, or a cut was made.
  int64_t stop_rules = 0;
  int64_t bounds = 0;            // Jobs with a bound of gradients,
  int64_t stopped_by_bound = 0;  // and those that one has ended.
  int64_t disk_errors = 0;       // Attempts to write that failed.
  int64_t slow_files = 0;        // Of checkpoints.
  int64_t torn_logs = 0;         // Of the coordinator's state.
  // By all-reduce with servers that sum.
  int64_t lane_operations = 0;
  int64_t lane_without_server = 0;
  int64_t lane_held = 0;
  int64_t suspensions = 0;   // Jobs that ended after one.
  int64_t resumed = 0;       // Jobs that went on from a checkpoint,
  int64_t resumed_same = 0;  // and those that ended as if nothing had happened.
  // Of these, those whose delays are given.
  int64_t resumed_given = 0;
  int64_t resumed_given_same = 0;
  // In jobs whose delays are given: as in the checker's counts.
  int64_t given_moves = 0;
  int64_t given_splits = 0;
  int64_t given_failovers = 0;
  SimStranger::Counts garbage;
  int64_t requests_answered = 0;    // Pulls by shard, pushes, calls, joins.
  int64_t gave_up_with_reason = 0;  // Workers that a fault made give up.
  int64_t removed_with_reason = 0;  // Workers that a fault made hold others up.

  // Every count, by its name.
  void Visit(
      const std::function<void(const std::string& name, int64_t& count)>& see);
  void Add(const RunCounts& other);
  // For people: what is not zero.
  std::string ToString() const;
  // One object of numbers by name; and back. False: it is none.
  std::string ToJson() const;
  bool FromJson(const std::string& text);
};

}  // namespace slackline::sim
