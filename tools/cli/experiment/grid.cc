#include "tools/cli/experiment/grid.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/shell_line.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "tools/cli/data/find_data.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/text.h"
#include "tools/experiment/estimate.h"

namespace slackline {
namespace {

using State = RunRecord::State;

// The end of a run is a signal, too, and ends the wait earlier.
constexpr absl::Duration kWaitMax = absl::Milliseconds(500);
constexpr int kErrorLines = 20;

// "accuracy 97.50 %, test loss 0.0812", of what was measured.
std::string FiguresText(const RunOutcome& outcome) {
  std::vector<std::string> figures;
  if (std::isfinite(outcome.test_accuracy)) {
    figures.push_back(
        absl::StrCat("accuracy ", PercentText(outcome.test_accuracy, 2)));
  }
  if (std::isfinite(outcome.test_loss))
    figures.push_back(absl::StrFormat("test loss %.4f", outcome.test_loss));
  return figures.empty() ? "done" : absl::StrJoin(figures, ", ");
}

// Why a run has failed, as its own output says.
std::string ErrorOf(const std::string& log, const ExitStatus& exit) {
  const std::string tail = ReadTail(log);
  const std::vector<std::string> lines = LastLines(tail, kErrorLines);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const size_t colon = line->find(": ");
    if (absl::StartsWith(*line, "slackline") && colon != std::string::npos) {
      return line->substr(colon + 2);
    }
  }
  const std::string error = ErrorLine(tail);
  return error.empty() ? exit.ToString() : error;
}

}  // namespace

Grid::Grid(const ExperimentPlan& plan, Options what,
           const CompareOptions& options, const ExperimentFolder& folder,
           Display* display)
    : plan_(plan),
      what_(std::move(what)),
      options_(options),
      folder_(folder),
      display_(display),
      records_(folder.ReadRecords(plan)) {
  for (int i = 0; i < RunCount(); ++i) {
    if (!IsSelected(i)) continue;
    ++selected_count_;
    const State state = records_[i].state;
    const bool keep = !options_.fresh &&
                      (state == State::kFinished ||
                       (state == State::kFailed && !options_.retry_failed));
    if (!keep) to_do_.push_back(i);
  }
}

int Grid::Count(State state) const {
  int count = 0;
  for (int i = 0; i < RunCount(); ++i) {
    if (IsSelected(i) && records_[i].state == state) ++count;
  }
  return count;
}

std::string Grid::PlanText() const {
  std::vector<std::vector<std::string>> rows;
  const std::vector<int> to_do(to_do_.begin(), to_do_.end());
  for (int i = 0; i < RunCount(); ++i) {
    if (!IsSelected(i)) continue;
    const PlannedVariant& variant = plan_.variants[plan_.runs[i].variant];
    rows.push_back({variant.name, variant.mode,
                    variant.replay.empty() ? "-" : variant.replay,
                    absl::StrCat(plan_.runs[i].seed), StateWords(i)});
  }
  return absl::StrCat(
      TableText({{.title = "variant", .left = true},
                 {.title = "mode", .left = true},
                 {.title = "replay", .left = true},
                 {.title = "seed"},
                 {.title = "state", .left = true}},
                rows),
      to_do.size(), " of ", selected_count_, " ", what_.nouns, " to do",
      to_do.empty()
          ? ""
          : absl::StrCat(", which takes ", EstimateText(Estimate(to_do))),
      "\n");
}

void Grid::SayWhatIsKept() const {
  const int kept = selected_count_ - static_cast<int>(to_do_.size());
  int failed = 0;
  std::string other_commit;
  for (int i = 0; i < RunCount(); ++i) {
    if (!IsSelected(i) || IsToDo(i)) continue;
    if (records_[i].state == State::kFailed) ++failed;
    if (records_[i].commit != BuildCommit()) other_commit = records_[i].commit;
  }
  if (kept > 0) {
    display_->Print(absl::StrCat(
        kept, " of ", selected_count_, " ", what_.nouns,
        " are done already and are kept",
        failed == 0 ? ""
                    : absl::StrCat("; ", failed,
                                   " of them failed (--retry-failed makes "
                                   "these again)")));
  }
  if (!other_commit.empty()) {
    display_->Print(absl::StrCat(
        "warning: kept ", what_.nouns, " are of commit ", other_commit,
        ", this program is of ", BuildCommit(), "; --fresh makes them again"));
  }
}

absl::Status Grid::FindAllData() {
  for (const int index : to_do_) {
    const config::ClusterConfig& config = plan_.runs[index].config;
    const std::string id = config.data().SerializeAsString();
    if (data_dirs_.count(id) > 0) continue;
    SL_ASSIGN_OR_RETURN(data_dirs_[id],
                        FindData(config, options_.data_dir, display_));
  }
  return absl::OkStatus();
}

absl::Status Grid::Run(SignalWatch* signals,
                       const std::function<absl::Status()>& on_change) {
  SL_RETURN_IF_ERROR(FindAllData());
  for (const int index : to_do_) {
    SL_RETURN_IF_ERROR(folder_.RemoveRun(plan_.runs[index]));
    records_[index] = RunRecord();
  }
  SL_RETURN_IF_ERROR(on_change());
  while (!active_.empty() || (!to_do_.empty() && interrupts_ == 0)) {
    while (interrupts_ == 0 && !to_do_.empty() &&
           static_cast<int>(active_.size()) < plan_.experiment.parallel()) {
      SL_RETURN_IF_ERROR(Start(to_do_.front()));
      to_do_.pop_front();
    }
    for (int i = signals->Wait(kWaitMax).all(); i > 0; --i) OnInterrupt();
    for (size_t i = 0; i < active_.size();) {
      const std::optional<ExitStatus> exit = active_[i].process.Poll();
      if (!exit.has_value()) {
        ++i;
        continue;
      }
      const Active ended = std::move(active_[i]);
      active_.erase(active_.begin() + static_cast<int>(i));
      SL_RETURN_IF_ERROR(OnEnd(ended, *exit));
      SL_RETURN_IF_ERROR(on_change());
    }
    ShowProgress();
  }
  display_->Redraw({});
  if (interrupts_ == 0) return absl::OkStatus();
  return absl::AbortedError("interrupted by the user");
}

bool Grid::IsToDo(int index) const {
  return std::find(to_do_.begin(), to_do_.end(), index) != to_do_.end();
}

std::string Grid::Title(int index) const {
  const PlannedRun& run = plan_.runs[index];
  return absl::StrCat(plan_.variants[run.variant].name, " seed ", run.seed);
}

std::string Grid::StateWords(int index) const {
  const RunRecord& record = records_[index];
  const std::string again = IsToDo(index) ? ", to do again" : "";
  switch (record.state) {
    case State::kFinished:
      return absl::StrCat("done in ", DurationText(record.elapsed_seconds),
                          again);
    case State::kFailed:
      return absl::StrCat("failed: ", record.error, again);
    case State::kCutOff:
      return "cut off, to do again";
    default:
      return "to do";
  }
}

std::optional<double> Grid::Estimate(const std::vector<int>& to_do) const {
  std::map<int, double> done;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].state != State::kFinished) continue;
    done[static_cast<int>(i)] = records_[i].elapsed_seconds;
  }
  return EstimateSeconds(plan_, to_do, done);
}

std::vector<std::string> Grid::Arguments(int index) const {
  const PlannedRun& run = plan_.runs[index];
  const std::string& replay = plan_.variants[run.variant].replay;
  std::vector<std::string> arguments = {replay.empty() ? "run" : "replay",
                                        folder_.ConfigPath(run)};
  if (!replay.empty()) arguments.push_back(absl::StrCat("--delays=", replay));
  const std::string& data_dir =
      data_dirs_.at(run.config.data().SerializeAsString());
  if (!data_dir.empty()) {
    arguments.push_back(absl::StrCat("--data-dir=", data_dir));
  }
  return arguments;
}

absl::Status Grid::Start(int index) {
  std::vector<std::string> command = {options_.program};
  for (const std::string& argument : Arguments(index)) {
    command.push_back(argument);
  }
  command.push_back(absl::StrCat("--out=", folder_.RunPath(plan_.runs[index])));
  command.push_back(absl::StrCat("--bin-dir=", options_.bin_dir));
  const absl::Time now = TimeSource().Now();
  SL_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start({.command = command,
                           .log_path = folder_.LogPath(plan_.runs[index])}));
  active_.push_back({index, std::move(process), now});
  return absl::OkStatus();
}

void Grid::OnInterrupt() {
  ++interrupts_;
  display_->Print(interrupts_ == 1
                      ? "interrupted: stopping what runs; once more to kill it"
                      : "interrupted again: killing what runs");
  // `slackline run` stops at the first, without a model, and kills at the
  // second. SIGTERM would have it take a checkpoint, and the run is done anew.
  for (Active& run : active_) run.process.Signal(SIGQUIT);
}

absl::Status Grid::OnEnd(const Active& ended, const ExitStatus& exit) {
  // What the user has stopped says nothing about the run; it stays cut off.
  if (interrupts_ > 0 && !exit.ok()) return absl::OkStatus();
  const PlannedRun& run = plan_.runs[ended.index];
  RunRecord& record = records_[ended.index];
  std::vector<std::string> words = Arguments(ended.index);
  words.insert(words.begin(), "slackline");
  record.command = ShellLine(words);
  record.commit = BuildCommit();
  record.started = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", ended.started,
                                    absl::UTCTimeZone());
  record.elapsed_seconds =
      absl::ToDoubleSeconds(TimeSource().Now() - ended.started);
  absl::StatusOr<RunOutcome> outcome =
      exit.ok() ? folder_.ReadOutcome(run)
                : absl::UnknownError(ErrorOf(folder_.LogPath(run), exit));
  record.state = outcome.ok() ? State::kFinished : State::kFailed;
  if (!outcome.ok()) record.error = std::string(outcome.status().message());
  SL_RETURN_IF_ERROR(folder_.WriteRecord(plan_, run, record));

  const std::string what =
      outcome.ok() ? FiguresText(*outcome)
                   : absl::StrCat("failed: ", record.error,
                                  " (log: ", folder_.LogPath(run), ")");
  std::vector<int> left(to_do_.begin(), to_do_.end());
  for (const Active& active : active_) left.push_back(active.index);
  const std::optional<double> rest = Estimate(left);
  display_->Print(
      absl::StrCat(Title(ended.index), ": ", what, ", ",
                   DurationText(record.elapsed_seconds), "; ",
                   selected_count_ - static_cast<int>(left.size()), " of ",
                   selected_count_, " ", what_.nouns, " done",
                   rest.has_value() && !left.empty()
                       ? absl::StrCat(", ", EstimateText(rest), " left")
                       : ""));
  return absl::OkStatus();
}

void Grid::ShowProgress() {
  if (!display_->terminal()) return;
  std::vector<std::string> lines;
  for (const Active& run : active_) {
    const std::vector<std::string> last =
        LastLines(ReadTail(folder_.LogPath(plan_.runs[run.index]), 4096), 1);
    lines.push_back(FitToWidth(
        absl::StrCat(Title(run.index), " (",
                     DurationText(absl::ToDoubleSeconds(TimeSource().Now() -
                                                        run.started)),
                     "): ", last.empty() ? "starting" : last[0]),
        display_->width()));
  }
  display_->Redraw(lines);
}

}  // namespace slackline
