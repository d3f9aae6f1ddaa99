#include "tools/cli/job/summary_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "proto/view.pb.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

// Enough to tell models apart at a glance; summary.json has the whole hash.
constexpr size_t kHashDigits = 12;

std::string NameOf(const RunResult& run) {
  return absl::StrCat(run.summary.job(), " ", run.summary.mode());
}

// Of a traceback, indented.
std::string LastLines(const std::string& text) {
  constexpr size_t kLinesMax = 6;
  std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.size() > kLinesMax)
    lines.erase(lines.begin(), lines.end() - kLinesMax);
  std::string last;
  for (const std::string& line : lines)
    absl::StrAppend(&last, "  ", line, "\n");
  return last;
}

std::string SummaryPath(const std::string& folder) {
  return (std::filesystem::path(folder) / "summary.json").string();
}

absl::StatusOr<std::string> ReadSummary(const std::string& path) {
  // A summary has some KiB; a file that somebody else has put there may not.
  constexpr std::streamoff kBytesMax = 64 << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not there; a run writes it when the job has ended"));
  }
  const std::streamoff size = file.tellg();
  if (size < 0 || size > kBytesMax) {
    return absl::DataLossError(absl::StrCat(path, " is no run summary: it has ",
                                            size, " bytes, at most ", kBytesMax,
                                            " are read"));
  }
  file.seekg(0);
  std::string text(static_cast<size_t>(size), '\0');
  file.read(text.data(), size);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<run::Summary> ParseSummary(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const std::string text, ReadSummary(path));
  run::Summary summary;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer version's.
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(text, &summary, options);
  if (!parsed.ok()) {
    return absl::DataLossError(
        absl::StrCat(path, " is no run summary: ", parsed.ToString()));
  }
  return summary;
}

// Without a summary nobody knows how far an earlier run came, or where it
// began.
void PutEarlier(RunResult* run) {
  bool known = false;
  int64_t came_to = 0;
  const auto follow = [&](const run::Summary& next) {
    const int64_t from = next.resumed_from().clock();
    if (known) run->steps_anew += std::max<int64_t>(0, came_to - from);
    known = true;
    came_to = next.steps();
  };
  std::error_code error;
  while (true) {
    const std::string folder =
        absl::StrCat(run->folder, "/earlier-", run->earlier + 1);
    if (!std::filesystem::is_directory(folder, error)) break;
    ++run->earlier;
    const auto summary = ParseSummary(SummaryPath(folder));
    if (summary.ok()) {
      follow(*summary);
    } else {
      known = false;
    }
  }
  follow(run->summary);
}

std::string LossText(bool measured, double loss) {
  return measured ? absl::StrFormat("%.4f", loss) : "-";
}

// Columns that only some tables need.
struct Shown {
  bool job = false;
  bool changes = false;
};

std::vector<std::string> Row(const RunResult& run, const Shown& shown) {
  const run::Summary& summary = run.summary;
  const run::Percentiles& staleness = summary.missed_clocks();
  std::vector<std::string> row;
  if (shown.job) row.push_back(summary.job());
  row.push_back(summary.mode());
  if (shown.changes) row.push_back(absl::StrCat(summary.mode_changes()));
  row.insert(
      row.end(),
      {absl::StrCat(summary.steps()), DurationText(summary.wall_seconds()),
       CountText(summary.examples_per_second()),
       LossText(summary.has_train_loss(), summary.train_loss()),
       LossText(summary.has_test_loss(), summary.test_loss()),
       summary.has_test_accuracy() ? PercentText(summary.test_accuracy(), 2)
                                   : "-",
       // An older version's run has another measure.
       summary.mode() == "allreduce" || !summary.has_missed_clocks()
           ? "-"
           : absl::StrCat(staleness.p50(), "/", staleness.p99(), "/",
                          staleness.max()),
       BytesText(static_cast<double>(summary.bytes_pushed() +
                                     summary.bytes_pulled())),
       absl::StrCat(summary.retries()),
       BytesText(static_cast<double>(summary.bytes_resent())),
       summary.model_sha256().substr(0, kHashDigits), run.folder});
  return row;
}

}  // namespace

absl::StatusOr<RunResult> ReadRunResult(const std::string& folder) {
  RunResult run;
  run.folder = folder;
  SL_ASSIGN_OR_RETURN(run.summary, ParseSummary(SummaryPath(folder)));
  PutEarlier(&run);
  return run;
}

absl::StatusOr<nlohmann::ordered_json> ReadRunJson(const std::string& folder) {
  const std::string path = SummaryPath(folder);
  SL_ASSIGN_OR_RETURN(const std::string text, ReadSummary(path));
  nlohmann::ordered_json summary =
      nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) {
    return absl::DataLossError(
        absl::StrCat(path, " is no run summary: it is no JSON object"));
  }
  return nlohmann::ordered_json(
      {{"folder", folder}, {"summary", std::move(summary)}});
}

std::string EndText(const run::Summary& summary) {
  std::string state = absl::AsciiStrToLower(summary.state());
  if (summary.cause() == wire::JobEnd::Cause_Name(wire::JobEnd::SUSPENDED))
    state = "suspended";
  const bool as_planned =
      summary.cause() == wire::JobEnd::Cause_Name(wire::JobEnd::COMPLETED);
  if (state.empty() || as_planned || summary.reason().empty())
    return state.empty() ? "finished" : state;  // Older versions' have none.
  return absl::StrCat(state, ": ", summary.reason());
}

std::string BestCheckpointText(const run::BestCheckpoint& best) {
  return absl::StrFormat("step %d is in %s (%s %.4f at step %d)", best.clock(),
                         best.folder(), best.measure(), best.value(),
                         best.evaluated_at());
}

std::string SummaryTable(const std::vector<RunResult>& runs) {
  std::set<std::string> jobs, data;
  Shown shown;
  for (const RunResult& run : runs) {
    jobs.insert(run.summary.job());
    data.insert(run.summary.data());
    if (run.summary.mode_changes() > 0) shown.changes = true;
  }
  shown.job = jobs.size() > 1;
  std::vector<Column> columns;
  if (shown.job) columns.push_back({.title = "job", .left = true});
  columns.push_back({.title = "mode", .left = true});
  if (shown.changes) columns.push_back({.title = "changes"});
  columns.insert(columns.end(), {{.title = "steps"},
                                 {.title = "time"},
                                 {.title = "examples/s"},
                                 {.title = "train loss"},
                                 {.title = "test loss"},
                                 {.title = "accuracy"},
                                 {.title = "staleness"},
                                 {.title = "traffic"},
                                 {.title = "retries"},
                                 {.title = "resent"},
                                 {.title = "model", .left = true},
                                 {.title = "folder", .left = true}});
  std::vector<std::vector<std::string>> rows;
  for (const RunResult& run : runs) rows.push_back(Row(run, shown));
  std::string text = TableText(columns, rows);
  absl::StrAppend(
      &text,
      "staleness: p50/p99/max of the clocks that a gradient missed; "
      "traffic: payload bytes pushed and pulled; resent: of pushes",
      shown.changes ? "; changes: of the mode, while it ran" : "", "\n");
  for (const RunResult& run : runs) {
    if (run.summary.state() == wire::JobState_Name(wire::FAILED)) {
      absl::StrAppend(&text, "failed ", NameOf(run), ": ", run.summary.cause(),
                      ": ", run.summary.reason(), "\n");
    }
    for (const std::string& lost : run.summary.workers_lost()) {
      absl::StrAppend(&text, "lost in ", NameOf(run), ": ", lost, "\n");
    }
    for (const std::string& lost : run.summary.servers_lost()) {
      absl::StrAppend(&text, "lost in ", NameOf(run), ": ", lost, "\n");
    }
    for (const run::Traceback& traceback : run.summary.traceback()) {
      absl::StrAppend(&text, "where worker ", traceback.rank(), " of ",
                      NameOf(run), " failed (the end of it; ", run.folder,
                      "/summary.json has all):\n", LastLines(traceback.text()));
    }
    if (!run.summary.files_incomplete().empty()) {
      absl::StrAppend(&text, "incomplete in ", NameOf(run), ": ",
                      run.summary.files_incomplete(), "\n");
    }
    if (!run.summary.stopped().empty()) {
      absl::StrAppend(&text, "stopped ", NameOf(run), ": ",
                      run.summary.stopped(), "\n");
    }
    if (run.earlier > 0) {
      absl::StrAppend(
          &text, "went on ", NameOf(run), ": ",
          run.earlier == 1 ? "once" : absl::StrCat(run.earlier, " times"),
          ", from a checkpoint or anew; steps done anew: ", run.steps_anew,
          "\n");
    }
    if (run.summary.has_best_checkpoint()) {
      absl::StrAppend(&text, "best checkpoint of ", NameOf(run), ": ",
                      BestCheckpointText(run.summary.best_checkpoint()), "\n");
    }
  }
  data.erase("");
  for (const std::string& source : data) {
    absl::StrAppend(&text, "data: ", source, "\n");
  }
  return text;
}

}  // namespace slackline
