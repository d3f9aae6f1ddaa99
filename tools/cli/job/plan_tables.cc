#include "tools/cli/job/plan_tables.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

std::string PlaceText(int server, int thread) {
  return absl::StrCat(server, ".", thread);
}

// The beginning of each row about a planned move.
std::vector<std::string> PlannedCells(const run::PlannedMove& move) {
  return {absl::StrCat(move.shard()),
          move.name(),
          PlaceText(move.from_server(), move.from_thread()),
          PlaceText(move.to_server(), move.to_thread()),
          BytesText(static_cast<double>(move.bytes())),
          PercentText(move.load(), 1)};
}

std::vector<Column> PlannedColumns(const std::string& last) {
  return {{"shard"}, {"name", /*left=*/true}, {"from"}, {"to"}, {"size"},
          {"busy"},  {last, /*left=*/true}};
}

// "81 %, 1.62 times the mean"
std::string WorstText(double worst, double mean) {
  std::string text = PercentText(worst, 0);
  if (mean > 0) {
    absl::StrAppend(&text,
                    absl::StrFormat(", %.2f times the mean", worst / mean));
  }
  return text;
}

}  // namespace

std::string PlanText(const run::Plan& plan) {
  std::string text;
  for (const run::PlannedSplit& split : plan.split()) {
    absl::StrAppend(&text, "shard ", split.shard(), " is split at element ",
                    split.at(), ", the rest becomes shard ", split.new_shard(),
                    ": ", split.reason(), "\n");
  }
  if (plan.move_size() > 0) {
    std::vector<std::vector<std::string>> rows;
    for (const run::PlannedMove& move : plan.move()) {
      rows.push_back(PlannedCells(move));
      rows.back().push_back(move.reason());
    }
    absl::StrAppend(&text, TableText(PlannedColumns("reason"), rows),
                    BytesText(static_cast<double>(plan.bytes())), " to move\n");
  }
  if (plan.worst_before() > 0) {
    absl::StrAppend(&text, "busiest shard thread now: ",
                    WorstText(plan.worst_before(), plan.mean()), "\n");
    if (plan.move_size() > 0) {
      absl::StrAppend(&text, "predicted after the moves: ",
                      WorstText(plan.worst_after(), plan.mean()), "\n");
    }
  }
  if (!plan.summary().empty()) absl::StrAppend(&text, plan.summary(), "\n");
  return text;
}

std::string PendingMovesText(const run::Plan& plan, int max) {
  if (plan.move_size() == 0) return "";
  std::vector<std::vector<std::string>> rows;
  // Those under way first.
  for (const bool ordered : {true, false}) {
    for (const run::PlannedMove& move : plan.move()) {
      if (move.ordered() != ordered || static_cast<int>(rows.size()) == max) {
        continue;
      }
      rows.push_back(PlannedCells(move));
      rows.back().push_back(ordered ? "under way" : "queued");
    }
  }
  std::string text = TableText(PlannedColumns("move"), rows);
  const int more = plan.move_size() - static_cast<int>(rows.size());
  if (more > 0) absl::StrAppend(&text, "and ", more, " more moves\n");
  return text;
}

std::string MovesTable(const std::vector<run::MoveRecord>& moves) {
  std::vector<std::vector<std::string>> rows;
  for (const run::MoveRecord& move : moves) {
    rows.push_back({DurationText(move.seconds()), absl::StrCat(move.shard()),
                    move.name(),
                    PlaceText(move.from_server(), move.from_thread()),
                    PlaceText(move.to_server(), move.to_thread()),
                    BytesText(static_cast<double>(move.shard_bytes())),
                    BytesText(static_cast<double>(move.bytes())),
                    MillisecondsText(move.copy_micros()),
                    MillisecondsText(move.pause_micros())});
  }
  return TableText({{"moved at"},
                    {"shard"},
                    {"name", /*left=*/true},
                    {"from"},
                    {"to"},
                    {"size"},
                    {"sent"},
                    {"copying"},
                    {"pause"}},
                   rows);
}

std::string MovesTotal(const std::vector<run::MoveRecord>& moves) {
  if (moves.empty()) return "no shard moved";
  double bytes = 0;
  std::vector<int64_t> pauses;
  for (const run::MoveRecord& move : moves) {
    bytes += static_cast<double>(move.bytes());
    pauses.push_back(move.pause_micros());
  }
  std::sort(pauses.begin(), pauses.end());
  return absl::StrCat(moves.size(),
                      moves.size() == 1 ? " shard moved, " : " shards moved, ",
                      BytesText(bytes), " sent; pause p50 ",
                      MillisecondsText(pauses[(pauses.size() - 1) / 2]),
                      ", longest ", MillisecondsText(pauses.back()));
}

}  // namespace slackline
