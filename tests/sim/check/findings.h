// What the checker has found in a run: what was wrong first, and how much of
// everything was looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace slackline::sim {

enum class Invariant {
  kStaleness,    // A pull was answered before the pushes that it must contain,
                 // or parked though they were there.
  kExactlyOnce,  // A push took effect more than once.
  kLostPush,     // A push was acknowledged and did not take effect.
  kOrder,  // Pushes of one worker took effect in another order, or with a gap.
  kTornRead,      // An answer is no single version of its shard.
  kVersionOrder,  // A worker was given another or an older version than is
                  // right.
  kExamples,      // Elastic sampling: an example was left out, or done twice by
                  // workers that live.
  kSyncSum,    // An update of BSP or BACKUP is not the mean over the gradients
               // of its clock that it has to be.
  kValue,      // Values that no sequence of the pushes gives.
  kMode,       // A worker or a shard is in another phase than its clock.
  kReplica,    // A worker's state by all-reduce is not what it must be.
  kOwnership,  // Two shard threads serve one shard, or the wrong one does.
  kCopies,     // A follower has not what it must have: copies at one place of
               // the log differ, or what somebody was told can be lost.
  kSentAgain,  // Somebody was sent a part of a log that it had, and nothing was
               // lost on the way there.
  kUnread,     // More is under way on one connection than its bound.
  kView,       // A member saw a view that was not published, or an older one.
  kBoundedState,  // A shard keeps state of workers that are gone, or parks too
                  // much.
  kLiveness,      // Somebody still waits long after the last fault.
  kGaveUp,        // A healthy worker gave up, and no fault explains it.
  kGathers,       // A collective gave workers different results, or wrong ones.
  kCheckpoint,    // One has other gradients than those before its cut, or is
                  // not whole; or the job begins otherwise than it says.
  kCoordinator,   // One cannot go on where the one before it was.
  kOutcome,       // The job ended otherwise than it had to.
};
const char* InvariantName(Invariant invariant);

struct Violation {
  Invariant invariant{};
  std::string what;
};

struct CheckerStats {
  int64_t answers = 0;  // Shard answers compared with the twin.
  int64_t gated = 0;    // Of those: where the bound had something to say.
  int64_t pushes = 0;   // Shard pushes accepted.
  int64_t updates = 0;
  int64_t given_updates = 0;  // Of those: in the turn that delays give.
  int64_t given_answers = 0;  // With an earlier version than the present one.
  int64_t joins = 0;          // To a shard, after the start of the job.
  int64_t advances = 0;
  int64_t skipped = 0;       // Steps without a gradient of the table.
  int64_t partial_sums = 0;  // BSP updates without a worker that had died.
  int64_t dropped = 0;       // Late gradients of BACKUP.
  int64_t without_some = 0;  // BACKUP updates that did not wait for all.
  int64_t beyond_low = 0;    // Answers beyond the smallest bound of DSSP.
  int64_t parked = 0;        // Parked pulls that had to wait.
  int64_t moves_ordered = 0;
  int64_t moves_done = 0;
  int64_t moves_cancelled = 0;  // The target had died.
  int64_t splits = 0;
  int64_t arrivals = 0;          // Compared with the twin.
  int64_t arrivals_held = 0;     // Of those: with gradients that were held.
  int64_t parts_compared = 0;    // After a split.
  int64_t waiting = 0;           // Requests that waited for a move.
  int64_t relocations = 0;       // That workers were told.
  int64_t dropped_server = 0;    // Views without a server that just died.
  int64_t changes_opened = 0;    // Without a clock at first.
  int64_t changes_dropped = 0;   // They never had one.
  int64_t ended_early = 0;       // Jobs that were given an earlier last clock.
  int64_t phases_entered = 0;    // By all.
  int64_t states_taken = 0;      // Compared with the twins.
  int64_t steps_reduced = 0;     // By all-reduce: in the job's model.
  int64_t steps_of_nobody = 0;   // Of them, without examples for anybody.
  int64_t steps_repeated = 0;    // Done anew by those who are left.
  int64_t groups = 0;            // That came to one clock.
  int64_t groups_apart = 0;      // Of those: some members were behind.
  int64_t installs = 0;          // Compared with the workers' state.
  int64_t installs_again = 0;    // Of shards that had it already.
  int64_t bases = 0;             // Versions of pushes that were compared.
  int64_t bases_missed = 0;      // Of those: there were newer ones already.
  int64_t too_stale = 0;         // Gradients that a rule did not let in.
  int64_t oversized = 0;         // Gradients that a bound did not let in.
  int64_t over_running = 0;      // Of those: that of the running size.
  int64_t broken_taken = 0;      // While no bound held yet.
  int64_t weakened = 0;          // Gradients or rates that a rule changed.
  int64_t histograms = 0;        // Compared.
  int64_t sizes = 0;             // Of coordinators and clients, compared.
  int64_t examples = 0;          // Of elastic jobs, found where they belong.
  int64_t examples_again = 0;    // Of those: of a worker that had died, too.
  int64_t examples_counted = 0;  // Jobs whose coordinator's count was compared.
  int64_t cuts = 0;              // In views.
  int64_t cuts_of_each = 0;      // Of those: of each worker's own clock,
  int64_t cuts_by_worker = 0;    // or of the workers' state.
  int64_t cuts_dropped = 0;      // Opened, and not for this job any more.
  int64_t cut_shards = 0;        // Compared with the twin.
  int64_t cut_copies = 0;        // Shards that went on beside their cut.
  int64_t cut_late = 0;     // Shards with updates before the cut behind others.
  int64_t given_cuts = 0;   // Of jobs with given delays; and at shards of them
  int64_t cut_waiting = 0;  // gradients that wait for their turn, and
  int64_t cut_kept = 0;     // earlier versions.
  int64_t states_kept = 0;  // By all-reduce, compared.
  int64_t programs_kept = 0;   // In checkpoints, compared,
  int64_t programs_begun = 0;  // and with those that jobs go on from.
  int64_t parts_written = 0;
  int64_t checkpoints = 0;  // Completed.
  int64_t checkpoints_of_each = 0;
  int64_t checkpoints_by_worker = 0;
  int64_t checkpoints_given_up = 0;
  int64_t stopped_after_last =
      0;  // Jobs to be suspended, while scripts worked.
  int64_t checkpoints_failed = 0;  // All parts were there.
  int64_t resumed_shards = 0;      // Compared.
  int64_t resumed_waiting = 0;     // Gradients that wait for their turns there.
  int64_t followers_ordered = 0;
  int64_t followers_in_sync = 0;  // Of those.
  int64_t copies_compared = 0;
  int64_t answers_confirmed = 0;  // That had to wait for followers.
  int64_t answers_held = 0;       // The most at one time.
  int64_t swaps = 0;              // Moves to a follower.
  int64_t failovers = 0;         // Of shards, that somebody has begun to serve.
  int64_t failovers_behind = 0;  // Of those: some of the log was lost.
  int64_t failovers_apart = 0;   // Or was another one than that of the last.
  int64_t records_lost = 0;
  int64_t deposed = 0;          // Events of owners that do not know it yet.
  int64_t copies_restored = 0;  // Jobs in which none was missing any more.
  // Of shards that are kept by rows: of each of these counts that without rows.
  int64_t row_answers = 0;
  int64_t row_named = 0;  // Answers to pulls of some rows.
  int64_t row_updates = 0;
  int64_t row_moves = 0;  // That were no swaps.
  int64_t row_splits = 0;
  int64_t row_copies = 0;
  int64_t row_failovers = 0;
  int64_t row_cut_shards = 0;
  int64_t row_cut_copies = 0;
  int64_t row_resumed = 0;
};

class Findings {
 public:
  // Only the first one counts.
  void Report(Invariant invariant, const std::string& what) {
    if (!violation_.has_value() && !judges_no_more_)
      violation_ = Violation{.invariant = invariant, .what = what};
  }
  // What happens from now on cannot be judged.
  void JudgeNoMore() { judges_no_more_ = true; }

  const std::optional<Violation>& violation() const { return violation_; }
  bool judges_no_more() const { return judges_no_more_; }
  CheckerStats& stats() { return stats_; }
  const CheckerStats& stats() const { return stats_; }

 private:
  std::optional<Violation> violation_;
  bool judges_no_more_ = false;
  CheckerStats stats_;
};

}  // namespace slackline::sim
