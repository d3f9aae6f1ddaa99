#include "tests/sim/floors.h"

#include <cstdint>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/status.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {
namespace {

struct Floor {
  SeedRuns runs;
  // As RunCounts::Visit() names it. "move.*", "copy.*" and "change.*" stand for
  // every step of a move, of a copy or a failover, and of a change of the mode.
  absl::string_view count;
  int64_t more_than;
};

constexpr int64_t AtLeast(uint64_t least) {
  return static_cast<int64_t>(least) - 1;
}

constexpr Floor kFloors[] = {
    {SeedRuns::kBlock, "finished", AtLeast(kSeedsPerPlainBlock * 6 / 10)},
    {SeedRuns::kBlock, "failed", 0},
    {SeedRuns::kBlock, "bsp", AtLeast(kSeedsPerPlainBlock / 12)},
    {SeedRuns::kBlock, "ssp", AtLeast(kSeedsPerPlainBlock / 12)},
    {SeedRuns::kBlock, "asp", AtLeast(kSeedsPerPlainBlock / 12)},
    {SeedRuns::kBlock, "dssp", AtLeast(kSeedsPerPlainBlock / 12)},
    {SeedRuns::kBlock, "backup", AtLeast(kSeedsPerPlainBlock / 12)},
    {SeedRuns::kBlock, "delays", AtLeast(kSeedsPerPlainBlock / 25)},
    {SeedRuns::kBlock, "checker.given_updates", 1000},
    {SeedRuns::kBlock, "checker.given_answers", 100},
    {SeedRuns::kBlock, "given_moves", 50},
    {SeedRuns::kBlock, "given_splits", 20},
    {SeedRuns::kBlock, "given_failovers", 0},
    {SeedRuns::kBlock, "network.lost", 1000},
    {SeedRuns::kBlock, "network.repeated", 1000},
    {SeedRuns::kBlock, "network.reordered", 1000},
    {SeedRuns::kBlock, "network.slow", 1000},
    {SeedRuns::kBlock, "network.cut", 500},
    {SeedRuns::kBlock, "network.held", 500},
    {SeedRuns::kBlock, "network.of_the_dead", 100},
    {SeedRuns::kBlock, "network.dropped_of_the_dead", 10},
    {SeedRuns::kBlock, "cuts", 100},
    {SeedRuns::kBlock, "crashes", 100},
    {SeedRuns::kBlock, "server_crashes", 0},
    {SeedRuns::kBlock, "recovered", 50},
    {SeedRuns::kBlock, "recovered unkept", 10},
    {SeedRuns::kBlock, "recovered untold", 10},
    {SeedRuns::kBlock, "restarts", 50},
    {SeedRuns::kBlock, "fenced", 0},
    {SeedRuns::kBlock, "worker.retries", 1000},
    {SeedRuns::kBlock, "worker.pulls_ahead", 500},
    {SeedRuns::kBlock, "worker.begun_by_table", 1000},
    {SeedRuns::kBlock, "worker.late_starts", 20},
    {SeedRuns::kBlock, "worker.uneven_starts", 0},
    {SeedRuns::kBlock, "checker.joins", 20},
    {SeedRuns::kBlock, "checker.advances", 0},
    {SeedRuns::kBlock, "checker.gated", 10000},
    {SeedRuns::kBlock, "checker.partial_sums", 100},
    {SeedRuns::kBlock, "checker.parked", 100000},
    {SeedRuns::kBlock, "checker.beyond_low", 1000},
    {SeedRuns::kBlock, "checker.dropped", 1000},
    {SeedRuns::kBlock, "checker.without_some", 1000},
    {SeedRuns::kBlock, "worker.skips", 100},
    {SeedRuns::kBlock, "worker.uneven_skips", 30},
    {SeedRuns::kBlock, "checker.moves_ordered", 1000},
    {SeedRuns::kBlock, "checker.moves_done", 1000},
    {SeedRuns::kBlock, "gos", 1000},
    {SeedRuns::kBlock, "checker.splits", 200},
    {SeedRuns::kBlock, "checker.arrivals", 1000},
    {SeedRuns::kBlock, "checker.arrivals_held", 100},
    {SeedRuns::kBlock, "checker.parts_compared", 400},
    {SeedRuns::kBlock, "checker.waiting", 100},
    {SeedRuns::kBlock, "checker.relocations", 1000},
    {SeedRuns::kBlock, "checker.dropped_server", 10},
    {SeedRuns::kBlock, "records_resent", 500},
    {SeedRuns::kBlock, "user.accepted", 500},
    {SeedRuns::kBlock, "user.refused", 50},
    {SeedRuns::kBlock, "servers_added", 100},
    {SeedRuns::kBlock, "servers_drained", 20},
    {SeedRuns::kBlock, "lingered", 50},
    {SeedRuns::kBlock, "user.early_ends", 5},
    {SeedRuns::kBlock, "checker.ended_early", 5},
    {SeedRuns::kBlock, "stopped", 30},
    {SeedRuns::kBlock, "stopped_long", 20},
    {SeedRuns::kBlock, "suspended", 25},
    {SeedRuns::kBlock, "server_0_still", 50},
    {SeedRuns::kBlock, "network.while_still", 1500},
    {SeedRuns::kBlock, "network.told_up", 1000},
    {SeedRuns::kBlock, "network.told_gone", 50},
    {SeedRuns::kBlock, "gave_up_with_reason", 60},
    {SeedRuns::kBlock, "removed_with_reason", 0},
    {SeedRuns::kBlock, "clocks_apart", 100},
    {SeedRuns::kBlock, "trainer_stalls", 10},
    {SeedRuns::kBlock, "trainer_stalls_for_ever", 1},
    {SeedRuns::kBlock, "shard_stalls", 40},
    {SeedRuns::kBlock, "inner_cuts", 8},
    {SeedRuns::kBlock, "bounded_links", 50},
    {SeedRuns::kBlock, "network.queued", 1000},
    {SeedRuns::kBlock, "network.refused", 0},
    {SeedRuns::kBlock, "schedules", 20},
    {SeedRuns::kBlock, "stale_rules", 20},
    {SeedRuns::kBlock, "own_optimizers", 50},
    {SeedRuns::kBlock, "rate_factors", 50},
    {SeedRuns::kBlock, "skips_tables", 50},
    {SeedRuns::kBlock, "tries_links", 100},
    {SeedRuns::kBlock, "links_missed", 1000},
    {SeedRuns::kBlock, "stop_rules", 5},
    {SeedRuns::kBlock, "garbage.sent", 1000},
    {SeedRuns::kBlock, "garbage.answers", 500},
    {SeedRuns::kBlock, "requests_answered", 50000},
    {SeedRuns::kBlock, "checker.bases", 10000},
    {SeedRuns::kBlock, "checker.bases_missed", 5000},
    {SeedRuns::kBlock, "checker.too_stale", 20},
    {SeedRuns::kBlock, "checker.skipped", 5000},
    {SeedRuns::kBlock, "checker.weakened", 500},
    {SeedRuns::kBlock, "bounds", 30},
    {SeedRuns::kBlock, "stopped_by_bound", 3},
    {SeedRuns::kBlock, "checker.oversized", 100},
    {SeedRuns::kBlock, "checker.over_running", 50},
    {SeedRuns::kBlock, "checker.broken_taken", 10},
    {SeedRuns::kBlock, "checker.histograms", 5000},
    {SeedRuns::kBlock, "checker.sizes", 50000},
    {SeedRuns::kBlock, "checker.checkpoints_of_each", 30},
    {SeedRuns::kBlock, "checker.cut_copies", 80},
    {SeedRuns::kBlock, "checker.cut_late", 80},
    {SeedRuns::kBlock, "checker.given_cuts", 5},
    {SeedRuns::kBlock, "checker.cut_waiting", 50},
    {SeedRuns::kBlock, "checker.cut_kept", 50},
    {SeedRuns::kBlock, "checker.cuts", 70},
    {SeedRuns::kBlock, "checker.cuts_dropped", 2},
    {SeedRuns::kBlock, "checker.cut_shards", 210},
    {SeedRuns::kBlock, "checker.parts_written", 140},
    {SeedRuns::kBlock, "checker.checkpoints", 56},
    {SeedRuns::kBlock, "checker.checkpoints_given_up", 2},
    {SeedRuns::kBlock, "user.checkpoints", 35},
    {SeedRuns::kBlock, "user.checkpoints_refused", 35},
    {SeedRuns::kBlock, "slow_files", 3},
    {SeedRuns::kBlock, "suspensions", 0},
    {SeedRuns::kBlock, "rows", 100},
    {SeedRuns::kBlock, "checker.row_answers", 10000},
    {SeedRuns::kBlock, "checker.row_named", 3000},
    {SeedRuns::kBlock, "checker.row_updates", 8000},
    {SeedRuns::kBlock, "checker.row_moves", 250},
    {SeedRuns::kBlock, "checker.row_splits", 60},
    {SeedRuns::kBlock, "checker.row_copies", 2500},
    {SeedRuns::kBlock, "checker.row_failovers", 5},
    {SeedRuns::kBlock, "checker.row_cut_shards", 50},
    {SeedRuns::kBlock, "checker.row_cut_copies", 15},
    {SeedRuns::kBlock, "move.*.seen", 500},
    {SeedRuns::kBlock, "move.*.faults", 1},
    {SeedRuns::kModesBlock, "finished", AtLeast(kSeedsPerModesBlock * 6 / 10)},
    {SeedRuns::kModesBlock, "failed", 0},
    {SeedRuns::kModesBlock, "bsp", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "ssp", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "asp", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "allreduce", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "dssp", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "backup", AtLeast(kSeedsPerModesBlock / 25)},
    {SeedRuns::kModesBlock, "fenced", 0},
    {SeedRuns::kModesBlock, "own_optimizers", 50},
    {SeedRuns::kModesBlock, "rate_factors", 50},
    {SeedRuns::kModesBlock, "skips_tables", 50},
    {SeedRuns::kModesBlock, "tries_links", 100},
    {SeedRuns::kModesBlock, "links_missed", 1000},
    {SeedRuns::kModesBlock, "user.modes", 200},
    {SeedRuns::kModesBlock, "user.modes_refused", 200},
    {SeedRuns::kModesBlock, "user.modes_after_moves", 0},
    {SeedRuns::kModesBlock, "checker.changes_opened", 200},
    {SeedRuns::kModesBlock, "checker.changes_dropped", 10},
    {SeedRuns::kModesBlock, "checker.ended_early", 15},
    {SeedRuns::kModesBlock, "checker.examples_counted", 30},
    {SeedRuns::kModesBlock, "checker.phases_entered", 300},
    {SeedRuns::kModesBlock, "checker.states_taken", 100},
    {SeedRuns::kModesBlock, "checker.steps_reduced", 1000},
    {SeedRuns::kModesBlock, "checker.groups", 300},
    {SeedRuns::kModesBlock, "checker.groups_apart", 50},
    {SeedRuns::kModesBlock, "lane_operations", 500},
    {SeedRuns::kModesBlock, "lane_held", 20},
    {SeedRuns::kModesBlock, "checker.installs", 500},
    {SeedRuns::kModesBlock, "checker.moves_done", 100},
    {SeedRuns::kModesBlock, "worker.regroups", 100},
    {SeedRuns::kModesBlock, "worker.helped", 50},
    {SeedRuns::kModesBlock, "worker.gathered", 200},
    {SeedRuns::kModesBlock, "worker.steps_lost", 0},
    {SeedRuns::kModesBlock, "worker.states_asked", 50},
    {SeedRuns::kModesBlock, "worker.states_asked_in_step", 20},
    {SeedRuns::kModesBlock, "worker.states_asked_after", 50},
    {SeedRuns::kModesBlock, "worker.at_work_after", 100},
    {SeedRuns::kModesBlock, "worker.pulls_behind", 1000},
    {SeedRuns::kModesBlock, "worker.pulls_forgotten", 10},
    {SeedRuns::kModesBlock, "worker.states_compared", 10},
    {SeedRuns::kModesBlock, "worker.reduced_again", 50},
    {SeedRuns::kModesBlock, "worker.group_joins", 20},
    {SeedRuns::kModesBlock, "worker.pulls_ahead", 500},
    {SeedRuns::kModesBlock, "worker.begun_by_table", 200},
    {SeedRuns::kModesBlock, "worker.skips", 50},
    {SeedRuns::kModesBlock, "checker.beyond_low", 300},
    {SeedRuns::kModesBlock, "checker.dropped", 1000},
    {SeedRuns::kModesBlock, "checker.checkpoints_by_worker", 25},
    {SeedRuns::kModesBlock, "checker.states_kept", 25},
    {SeedRuns::kModesBlock, "checker.cuts", 80},
    {SeedRuns::kModesBlock, "checker.cuts_dropped", 2},
    {SeedRuns::kModesBlock, "checker.cut_shards", 240},
    {SeedRuns::kModesBlock, "checker.parts_written", 160},
    {SeedRuns::kModesBlock, "checker.checkpoints", 64},
    {SeedRuns::kModesBlock, "checker.checkpoints_given_up", 2},
    {SeedRuns::kModesBlock, "user.checkpoints", 40},
    {SeedRuns::kModesBlock, "user.checkpoints_refused", 40},
    {SeedRuns::kModesBlock, "slow_files", 3},
    {SeedRuns::kModesBlock, "suspensions", 0},
    {SeedRuns::kModesBlock, "change.*.seen", 300},
    {SeedRuns::kResumeBlock, "finished", AtLeast(kSeedsPerBlock * 6 / 10)},
    {SeedRuns::kResumeBlock, "resumed", 250},
    {SeedRuns::kResumeBlock, "resumed_same", 70},
    {SeedRuns::kResumeBlock, "resumed_given", 15},
    {SeedRuns::kResumeBlock, "resumed_given_same", 5},
    {SeedRuns::kResumeBlock, "checker.resumed_waiting", 50},
    {SeedRuns::kResumeBlock, "checker.resumed_shards", 1000},
    {SeedRuns::kResumeBlock, "checker.row_resumed", 20},
    {SeedRuns::kResumeBlock, "worker.resumed_starts", 500},
    {SeedRuns::kDeathsInChanges, "checker.installs_again", 10},
    {SeedRuns::kDeathsInChanges, "checker.steps_repeated", 0},
    {SeedRuns::kDeathsInChanges, "worker.shares_again", 5},
    {SeedRuns::kDeathsInChanges, "change.*.faults", 5},
    {SeedRuns::kDeathsInChanges, "change.*.crashes", 2},
    {SeedRuns::kDeathsInMoves, "disk_errors", 10},
    {SeedRuns::kDeathsInMoves, "worker.saves_failed", 10},
    {SeedRuns::kDeathsInMoves, "stuck_alone", 0},
    {SeedRuns::kDeathsInMoves, "checker.moves_cancelled", 10},
    {SeedRuns::kDeathsInMoves, "lost_on_the_way", 0},
    {SeedRuns::kDeathsInMoves, "move.*.crashes", 2},
    {SeedRuns::kDeathsInCopies, "replicas", 500},
    {SeedRuns::kDeathsInCopies, "server_restarts", 100},
    {SeedRuns::kDeathsInCopies, "checker.followers_ordered", 500},
    {SeedRuns::kDeathsInCopies, "checker.followers_in_sync", 500},
    {SeedRuns::kDeathsInCopies, "checker.copies_compared", 50000},
    {SeedRuns::kDeathsInCopies, "checker.answers_confirmed", 50000},
    {SeedRuns::kDeathsInCopies, "checker.swaps", 200},
    {SeedRuns::kDeathsInCopies, "checker.failovers", 500},
    {SeedRuns::kDeathsInCopies, "checker.failovers_behind", 10},
    {SeedRuns::kDeathsInCopies, "checker.deposed", 10},
    {SeedRuns::kDeathsInCopies, "checker.copies_restored", 50},
    {SeedRuns::kDeathsInCopies, "copy.*.seen", 50},
    {SeedRuns::kDeathsInCopies, "copy.*.faults", 3},
    {SeedRuns::kDeathsInCopies, "copy.*.crashes", 0},
    {SeedRuns::kCoordinatorInMoves, "recovered", 1000},
    {SeedRuns::kCoordinatorInMoves, "recovered unkept", 50},
    {SeedRuns::kCoordinatorInMoves, "torn_logs", 50},
    {SeedRuns::kCoordinatorInMoves, "recovered untold", 50},
    {SeedRuns::kCoordinatorInMoves, "recovered in move", 100},
    {SeedRuns::kCoordinatorInMoves, "finished", 1000},
    {SeedRuns::kCoordinatorInChanges, "recovered", 1000},
    {SeedRuns::kCoordinatorInChanges, "recovered in change", 200},
    {SeedRuns::kCoordinatorInChanges, "finished", 1000},
    {SeedRuns::kTakeOvers, "taken over", 100},
    {SeedRuns::kTakeOvers, "taken over from one that stands still", 15},
    {SeedRuns::kTakeOvers, "recovered in move", 20},
    {SeedRuns::kTakeOvers, "finished", 150},
};

// The counts that the floor is for.
std::vector<std::string> NamesOf(const Floor& floor) {
  std::vector<std::string> names;
  const auto add = [&](absl::string_view pattern, absl::string_view prefix,
                       const char* step) {
    const std::string name = absl::StrCat(prefix, step);
    names.push_back(absl::StrReplaceAll(floor.count, {{pattern, name}}));
  };
  const auto is = [&](absl::string_view pattern) {
    return absl::StartsWith(floor.count, pattern);
  };
  // All messages of shards are counted as steps of moves.
  for (int step = 0; step < kMoveSteps && is("move.*"); ++step)
    add("move.*", "move.", MoveStepName(static_cast<MoveStep>(step)));
  for (int step = kMoveSteps; step < kShardSteps && is("copy.*"); ++step)
    add("copy.*", "move.", MoveStepName(static_cast<MoveStep>(step)));
  for (int step = 0; step < kPhaseSteps && is("change.*"); ++step)
    add("change.*", "change.", PhaseStepName(static_cast<PhaseStep>(step)));
  if (names.empty()) names.push_back(std::string(floor.count));
  return names;
}

}  // namespace

std::vector<std::string> BelowFloors(SeedRuns runs, RunCounts counts) {
  std::map<std::string, int64_t> counted;
  counts.Visit(
      [&](const std::string& name, int64_t& count) { counted[name] = count; });
  std::vector<std::string> below;
  for (const Floor& floor : kFloors) {
    // Also of the others: a floor of nothing is a mistake in the table.
    for (const std::string& name : NamesOf(floor)) {
      const auto count = counted.find(name);
      SL_CHECK(count != counted.end(), absl::StrCat("nothing counts ", name));
      if (floor.runs != runs || count->second > floor.more_than) continue;
      below.push_back(absl::StrCat(name, " is ", count->second,
                                   ", and has to be more than ",
                                   floor.more_than));
    }
  }
  return below;
}

}  // namespace slackline::sim
