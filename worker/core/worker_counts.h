// What a WorkerCore counts, for tests and benchmarks.
#pragma once

#include <cstdint>

namespace slackline {

struct WorkerCounts {
  int64_t steps = 0;
  int64_t reduced = 0;        // Steps by all-reduce.
  int64_t reduced_again = 0;  // Sums of gradients that were there already.
  int64_t pulls_ahead = 0;
  int64_t pulls_behind = 0;  // Shard by shard behind their pushes.
  int64_t pulls_forgotten =
      0;  // Pulls behind pushes, for a question for the state.
  int64_t begun_by_table = 0;  // Steps begun before all parameters came.
  int64_t late_starts = 0;     // Joined while the job ran, above clock 0.
  int64_t resumed_starts = 0;  // Founders of a job that goes on.
  int64_t uneven_starts = 0;   // Some shard lagged behind the start clock.
  int64_t skips = 0;           // To the others' clock.
  int64_t uneven_skips = 0;    // Skips where some shard lagged behind.
  int64_t skipped = 0;         // Clocks that were skipped.
  int64_t connects = 0;        // Those that succeeded.
  int64_t regroups = 0;        // Calls for another group.
  int64_t group_joins = 0;     // Started in a group, while the job ran.
  int64_t states_taken = 0;
  int64_t states_given = 0;
  int64_t shares_again = 0;  // Installed somebody else's part, too.
  int64_t conclusions = 0;   // As the chief.
  int64_t saves_failed = 0;
  int64_t ranges = 0;         // Steps that were done with a range of examples.
  int64_t empty_steps = 0;    // Steps by all-reduce without examples.
  int64_t left_out = 0;       // Clocks over servers without examples.
  int64_t states_kept = 0;    // States for checkpoints.
  int64_t programs_kept = 0;  // States of the program, for checkpoints.

  void Add(const WorkerCounts& other);
};

}  // namespace slackline
