#include "worker/core/worker_counts.h"

namespace slackline {

void WorkerCounts::Add(const WorkerCounts& other) {
  steps += other.steps;
  reduced += other.reduced;
  reduced_again += other.reduced_again;
  pulls_ahead += other.pulls_ahead;
  pulls_behind += other.pulls_behind;
  pulls_forgotten += other.pulls_forgotten;
  begun_by_table += other.begun_by_table;
  late_starts += other.late_starts;
  resumed_starts += other.resumed_starts;
  uneven_starts += other.uneven_starts;
  skips += other.skips;
  uneven_skips += other.uneven_skips;
  skipped += other.skipped;
  connects += other.connects;
  regroups += other.regroups;
  group_joins += other.group_joins;
  states_taken += other.states_taken;
  states_given += other.states_given;
  shares_again += other.shares_again;
  conclusions += other.conclusions;
  saves_failed += other.saves_failed;
  ranges += other.ranges;
  empty_steps += other.empty_steps;
  left_out += other.left_out;
  states_kept += other.states_kept;
  programs_kept += other.programs_kept;
}

}  // namespace slackline
