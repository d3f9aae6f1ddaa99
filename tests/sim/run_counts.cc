#include "tests/sim/run_counts.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace slackline::sim {

void RunCounts::Visit(
    const std::function<void(const std::string& name, int64_t& count)>& see) {
  see("runs", runs);
  see("events", events);
  see("finished", finished);
  see("failed", failed);
  see("not_judged", not_judged);
  see("coordinator_lost", coordinator_lost);
  see("bsp", bsp);
  see("ssp", ssp);
  see("asp", asp);
  see("allreduce", allreduce);
  see("dssp", dssp);
  see("backup", backup);
  see("delays", delays);
  see("cuts", cuts);
  see("crashes", crashes);
  see("server_crashes", server_crashes);
  see("restarts", restarts);
  see("fenced", fenced);
  see("gave_up", gave_up);
  see("servers_added", servers_added);
  see("servers_drained", servers_drained);
  see("servers_retired", servers_retired);
  see("gos", gos);
  see("records_resent", records_resent);
  see("lost_on_the_way", lost_on_the_way);
  see("lingered", lingered);
  see("stopped", stopped);
  see("stopped_long", stopped_long);
  see("suspended", suspended);
  see("server_0_still", server_0_still);
  see("clocks_apart", clocks_apart);
  see("trainer_stalls", trainer_stalls);
  see("trainer_stalls_for_ever", trainer_stalls_for_ever);
  see("stuck_alone", stuck_alone);
  see("shard_stalls", shard_stalls);
  see("inner_cuts", inner_cuts);
  see("bounded_links", bounded_links);
  see("schedules", schedules);
  see("stale_rules", stale_rules);
  see("own_optimizers", own_optimizers);
  see("rate_factors", rate_factors);
  see("skips_tables", skips_tables);
  see("tries_links", tries_links);
  see("links_missed", links_missed);
  see("replicas", replicas);
  see("rows", rows);
  see("recovers", recovers);
  see("recovered", recovered);
  see("taken over", taken_over);
  see("taken over from one that stands still", taken_over_still);
  see("recovered unkept", recovered_unkept);
  see("recovered untold", recovered_untold);
  see("recovered in move", recovered_in_move);
  see("recovered in change", recovered_in_change);
  see("server_restarts", server_restarts);
  see("stop_rules", stop_rules);
  see("bounds", bounds);
  see("stopped_by_bound", stopped_by_bound);
  see("disk_errors", disk_errors);
  see("slow_files", slow_files);
  see("torn_logs", torn_logs);
  see("lane_operations", lane_operations);
  see("lane_without_server", lane_without_server);
  see("lane_held", lane_held);
  see("suspensions", suspensions);
  see("resumed", resumed);
  see("resumed_same", resumed_same);
  see("resumed_given", resumed_given);
  see("resumed_given_same", resumed_given_same);
  see("given_moves", given_moves);
  see("given_splits", given_splits);
  see("given_failovers", given_failovers);
  see("requests_answered", requests_answered);
  see("gave_up_with_reason", gave_up_with_reason);
  see("removed_with_reason", removed_with_reason);
  see("network.delivered", network.delivered);
  see("network.lost", network.lost);
  see("network.repeated", network.repeated);
  see("network.reordered", network.reordered);
  see("network.slow", network.slow);
  see("network.cut", network.cut);
  see("network.held", network.held);
  see("network.to_nobody", network.to_nobody);
  see("network.of_the_dead", network.of_the_dead);
  see("network.dropped_of_the_dead", network.dropped_of_the_dead);
  see("network.refused", network.refused);
  see("network.queued", network.queued);
  see("network.told_up", network.told_up);
  see("network.told_gone", network.told_gone);
  see("network.while_still", network.while_still);
  see("worker.steps", workers.steps);
  see("worker.pulls_ahead", workers.pulls_ahead);
  see("worker.pulls_behind", workers.pulls_behind);
  see("worker.pulls_forgotten", workers.pulls_forgotten);
  see("worker.begun_by_table", workers.begun_by_table);
  see("worker.uneven_starts", workers.uneven_starts);
  see("worker.late_starts", workers.late_starts);
  see("worker.final_pulls", workers.final_pulls);
  see("worker.retries", workers.retries);
  see("worker.reduced", workers.reduced);
  see("worker.reduced_again", workers.reduced_again);
  see("worker.connects", workers.connects);
  see("worker.regroups", workers.regroups);
  see("worker.helped", workers.helped);
  see("worker.gathered", workers.gathered);
  see("worker.steps_lost", workers.steps_lost);
  see("worker.states_asked", workers.states_asked);
  see("worker.states_asked_in_step", workers.states_asked_in_step);
  see("worker.states_asked_after", workers.states_asked_after);
  see("worker.at_work_after", workers.at_work_after);
  see("worker.states_compared", workers.states_compared);
  see("worker.group_joins", workers.group_joins);
  see("worker.states_taken", workers.states_taken);
  see("worker.states_given", workers.states_given);
  see("worker.shares_again", workers.shares_again);
  see("worker.skips", workers.skips);
  see("worker.uneven_skips", workers.uneven_skips);
  see("worker.skipped", workers.skipped);
  see("worker.conclusions", workers.conclusions);
  see("worker.saves_failed", workers.saves_failed);
  see("worker.ranges", workers.ranges);
  see("worker.empty_steps", workers.empty_steps);
  see("worker.left_out", workers.left_out);
  see("worker.resumed_starts", workers.resumed_starts);
  see("worker.states_kept", workers.states_kept);
  see("worker.programs_kept", workers.programs_kept);
  see("worker.programs_restored", workers.programs_restored);
  see("checker.answers", checker.answers);
  see("checker.gated", checker.gated);
  see("checker.pushes", checker.pushes);
  see("checker.updates", checker.updates);
  see("checker.given_updates", checker.given_updates);
  see("checker.given_answers", checker.given_answers);
  see("checker.joins", checker.joins);
  see("checker.advances", checker.advances);
  see("checker.partial_sums", checker.partial_sums);
  see("checker.dropped", checker.dropped);
  see("checker.without_some", checker.without_some);
  see("checker.beyond_low", checker.beyond_low);
  see("checker.parked", checker.parked);
  see("checker.moves_ordered", checker.moves_ordered);
  see("checker.moves_done", checker.moves_done);
  see("checker.moves_cancelled", checker.moves_cancelled);
  see("checker.splits", checker.splits);
  see("checker.arrivals", checker.arrivals);
  see("checker.arrivals_held", checker.arrivals_held);
  see("checker.parts_compared", checker.parts_compared);
  see("checker.waiting", checker.waiting);
  see("checker.relocations", checker.relocations);
  see("checker.dropped_server", checker.dropped_server);
  see("checker.changes_opened", checker.changes_opened);
  see("checker.changes_dropped", checker.changes_dropped);
  see("checker.phases_entered", checker.phases_entered);
  see("checker.states_taken", checker.states_taken);
  see("checker.steps_reduced", checker.steps_reduced);
  see("checker.steps_of_nobody", checker.steps_of_nobody);
  see("checker.steps_repeated", checker.steps_repeated);
  see("checker.groups", checker.groups);
  see("checker.groups_apart", checker.groups_apart);
  see("checker.installs", checker.installs);
  see("checker.installs_again", checker.installs_again);
  see("checker.bases", checker.bases);
  see("checker.bases_missed", checker.bases_missed);
  see("checker.too_stale", checker.too_stale);
  see("checker.oversized", checker.oversized);
  see("checker.over_running", checker.over_running);
  see("checker.broken_taken", checker.broken_taken);
  see("checker.skipped", checker.skipped);
  see("checker.weakened", checker.weakened);
  see("checker.histograms", checker.histograms);
  see("checker.sizes", checker.sizes);
  see("checker.examples", checker.examples);
  see("checker.examples_again", checker.examples_again);
  see("user.asked", user.asked);
  see("user.accepted", user.accepted);
  see("user.refused", user.refused);
  see("user.drains", user.drains);
  see("user.modes", user.modes);
  see("user.modes_refused", user.modes_refused);
  see("user.modes_after_moves", user.modes_after_moves);
  see("user.early_ends", user.early_ends);
  see("user.early_ends_refused", user.early_ends_refused);
  see("user.suspensions", user.suspensions);
  see("user.checkpoints", user.checkpoints);
  see("user.checkpoints_refused", user.checkpoints_refused);
  see("checker.ended_early", checker.ended_early);
  see("checker.examples_counted", checker.examples_counted);
  see("checker.cuts", checker.cuts);
  see("checker.cuts_of_each", checker.cuts_of_each);
  see("checker.cuts_by_worker", checker.cuts_by_worker);
  see("checker.cuts_dropped", checker.cuts_dropped);
  see("checker.cut_shards", checker.cut_shards);
  see("checker.cut_copies", checker.cut_copies);
  see("checker.cut_late", checker.cut_late);
  see("checker.given_cuts", checker.given_cuts);
  see("checker.cut_waiting", checker.cut_waiting);
  see("checker.cut_kept", checker.cut_kept);
  see("checker.states_kept", checker.states_kept);
  see("checker.programs_kept", checker.programs_kept);
  see("checker.programs_begun", checker.programs_begun);
  see("checker.parts_written", checker.parts_written);
  see("checker.checkpoints", checker.checkpoints);
  see("checker.checkpoints_of_each", checker.checkpoints_of_each);
  see("checker.checkpoints_by_worker", checker.checkpoints_by_worker);
  see("checker.checkpoints_given_up", checker.checkpoints_given_up);
  see("checker.stopped_after_last", checker.stopped_after_last);
  see("checker.checkpoints_failed", checker.checkpoints_failed);
  see("checker.resumed_shards", checker.resumed_shards);
  see("checker.resumed_waiting", checker.resumed_waiting);
  see("checker.followers_ordered", checker.followers_ordered);
  see("checker.followers_in_sync", checker.followers_in_sync);
  see("checker.copies_compared", checker.copies_compared);
  see("checker.answers_confirmed", checker.answers_confirmed);
  see("checker.answers_held", checker.answers_held);
  see("checker.swaps", checker.swaps);
  see("checker.failovers", checker.failovers);
  see("checker.failovers_behind", checker.failovers_behind);
  see("checker.failovers_apart", checker.failovers_apart);
  see("checker.records_lost", checker.records_lost);
  see("checker.deposed", checker.deposed);
  see("checker.copies_restored", checker.copies_restored);
  see("checker.row_answers", checker.row_answers);
  see("checker.row_named", checker.row_named);
  see("checker.row_updates", checker.row_updates);
  see("checker.row_moves", checker.row_moves);
  see("checker.row_splits", checker.row_splits);
  see("checker.row_copies", checker.row_copies);
  see("checker.row_failovers", checker.row_failovers);
  see("checker.row_cut_shards", checker.row_cut_shards);
  see("checker.row_cut_copies", checker.row_cut_copies);
  see("checker.row_resumed", checker.row_resumed);
  see("garbage.sent", garbage.sent);
  see("garbage.unreadable", garbage.unreadable);
  see("garbage.answers", garbage.answers);
  const auto by_step = [&](const std::string& prefix, const auto& name_of,
                           auto& seen, auto& faults, auto& crashes) {
    for (size_t i = 0; i < seen.size(); ++i) {
      const std::string step = absl::StrCat(prefix, name_of(i), ".");
      see(step + "seen", seen[i]);
      see(step + "faults", faults[i]);
      see(step + "crashes", crashes[i]);
    }
  };
  by_step(
      "move.", [](size_t i) { return MoveStepName(static_cast<MoveStep>(i)); },
      steps, step_faults, step_crashes);
  by_step(
      "change.",
      [](size_t i) { return PhaseStepName(static_cast<PhaseStep>(i)); },
      phase_steps, phase_faults, phase_crashes);
}

void RunCounts::Add(const RunCounts& other) {
  // Both visits see the same counts in the same order.
  std::vector<int64_t> more;
  RunCounts copy = other;
  copy.Visit(
      [&](const std::string&, int64_t& count) { more.push_back(count); });
  size_t next = 0;
  Visit([&](const std::string&, int64_t& count) { count += more[next++]; });
}

std::string RunCounts::ToString() const {
  std::string text = absl::StrCat(runs, " runs");
  std::string group;
  RunCounts copy = *this;
  copy.Visit([&](const std::string& name, int64_t& count) {
    if (count == 0) return;
    const size_t dot = name.find('.');
    const std::string prefix =
        dot == std::string::npos ? "" : name.substr(0, dot);
    if (prefix != group) absl::StrAppend(&text, "\n ", prefix, ":");
    group = prefix;
    absl::StrAppend(&text, " ",
                    dot == std::string::npos ? name : name.substr(dot + 1), " ",
                    count);
  });
  return text;
}

std::string RunCounts::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  RunCounts copy = *this;
  copy.Visit(
      [&](const std::string& name, int64_t& count) { json[name] = count; });
  return json.dump();
}

bool RunCounts::FromJson(const std::string& text) {
  const nlohmann::json json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  bool good = true;
  Visit([&](const std::string& name, int64_t& count) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number_integer()) {
      good = false;
    } else {
      count = found->get<int64_t>();
    }
  });
  return good;
}

}  // namespace slackline::sim
