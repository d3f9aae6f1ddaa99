#include "tools/cli/experiment/compare.h"

#include <fnmatch.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/shell_line.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "tools/cli/data/find_data.h"
#include "tools/cli/display.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/experiment/experiment_folder.h"
#include "tools/cli/experiment/machine.h"
#include "tools/cli/experiment/replay_command.h"
#include "tools/cli/experiment/report_command.h"
#include "tools/cli/installed.h"
#include "tools/cli/process.h"
#include "tools/cli/run/local_cluster.h"
#include "tools/cli/run/local_hosts.h"
#include "tools/cli/run/logs.h"
#include "tools/cli/signals.h"
#include "tools/cli/text.h"
#include "tools/experiment/estimate.h"
#include "tools/experiment/plan.h"

namespace slackline {
namespace {

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

using State = RunRecord::State;

// The end of a run is a signal, too, and ends the wait earlier.
constexpr absl::Duration kWaitMax = absl::Milliseconds(500);
constexpr int kErrorLines = 20;

std::string RunTitle(const ExperimentPlan& plan, int index) {
  const PlannedRun& run = plan.runs[index];
  return absl::StrCat(plan.variants[run.variant].name, " seed ", run.seed);
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

// What stands in the way of running this plan here, one problem in a line.
absl::Status CheckRunnable(const ExperimentPlan& plan,
                           const CompareOptions& options) {
  std::vector<std::string> problems;
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) problems.push_back(std::string(status.message()));
  };
  bool replays = false;
  for (const PlannedVariant& variant : plan.variants) {
    const std::string prefix = absl::StrCat("variant '", variant.name, "': ");
    if (variant.replay.empty()) {
      note(
          Annotate(LocalCluster::CheckPrograms(options.bin_dir, variant.config),
                   absl::StrCat("variant '", variant.name, "'")));
    } else {
      replays = true;
    }
    const std::vector<std::string> elsewhere = HostsElsewhere(variant.config);
    if (variant.replay.empty() && !elsewhere.empty()) {
      problems.push_back(absl::StrCat(
          prefix, absl::StrJoin(elsewhere, ", "),
          elsewhere.size() == 1 ? " is" : " are",
          " not this machine; an experiment runs on one machine, with hosts "
          "such as 127.0.0.1"));
    }
    for (const config::ServerGroup& server : variant.config.server()) {
      if (plan.experiment.parallel() == 1 || server.port() == 0) continue;
      problems.push_back(absl::StrCat(
          prefix, "server port ", server.port(), " is fixed, and ",
          plan.experiment.parallel(),
          " runs at the same time need ports of their own; leave it out"));
    }
  }
  if (replays) note(CheckInstalled(options.bin_dir, kReplayProgram));
  if (problems.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrJoin(problems, "\n"));
}

// All runs of a plan that are to be done, until they are or the user stops
// them.
class Grid {
 public:
  Grid(const ExperimentPlan& plan, const CompareOptions& options,
       const ExperimentFolder& folder, Display* display)
      : plan_(plan), options_(options), folder_(folder), display_(display) {}

  // Which runs there are, which of them are done, and which are to be done now.
  void Look() {
    records_ = folder_.ReadRecords(plan_);
    for (int i = 0; i < static_cast<int>(plan_.runs.size()); ++i) {
      if (!IsSelected(i)) continue;
      ++selected_;
      const State state = records_[i].state;
      const bool keep = !options_.fresh &&
                        (state == State::kFinished ||
                         (state == State::kFailed && !options_.retry_failed));
      if (!keep) to_do_.push_back(i);
    }
  }
  int selected() const { return selected_; }
  const std::deque<int>& to_do() const { return to_do_; }

  // What --dry-run prints.
  std::string PlanText() const {
    std::vector<std::vector<std::string>> rows;
    const std::vector<int> to_do(to_do_.begin(), to_do_.end());
    for (int i = 0; i < static_cast<int>(plan_.runs.size()); ++i) {
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
        to_do.size(), " of ", selected_, " runs to do",
        to_do.empty()
            ? ""
            : absl::StrCat(", which takes ", EstimateText(Estimate(to_do))),
        "\n");
  }

  // What is reused, and what that means.
  void SayWhatIsThere() const {
    const int kept = selected_ - static_cast<int>(to_do_.size());
    int failed = 0;
    std::string other_commit;
    for (int i = 0; i < static_cast<int>(plan_.runs.size()); ++i) {
      if (!IsSelected(i) || IsToDo(i)) continue;
      if (records_[i].state == State::kFailed) ++failed;
      if (records_[i].commit != BuildCommit())
        other_commit = records_[i].commit;
    }
    if (kept > 0) {
      display_->Print(absl::StrCat(
          kept, " of ", selected_, " runs are done already and are kept",
          failed == 0 ? ""
                      : absl::StrCat("; ", failed,
                                     " of them failed (--retry-failed makes "
                                     "these again)")));
    }
    if (!other_commit.empty()) {
      display_->Print(absl::StrCat("warning: kept runs are of commit ",
                                   other_commit, ", this program is of ",
                                   BuildCommit(),
                                   "; --fresh makes them again"));
    }
    const std::vector<std::string> others = folder_.OtherRuns(plan_);
    if (!others.empty()) {
      display_->Print(absl::StrCat(
          others.size(), " folders in ", folder_.path(),
          "/runs are of other settings and stay as they are, for example ",
          others[0]));
    }
  }

  // Finds the training data of all runs that are to be done.
  absl::Status FindAllData() {
    for (const int index : to_do_) {
      const config::ClusterConfig& config = plan_.runs[index].config;
      const std::string id = config.data().SerializeAsString();
      if (data_dirs_.count(id) > 0) continue;
      SL_ASSIGN_OR_RETURN(data_dirs_[id],
                          FindData(config, options_.data_dir, display_));
    }
    return absl::OkStatus();
  }

  // Errors are those of this machine: a run that fails is a result. Aborted:
  // the user has interrupted it.
  absl::Status Run(SignalWatch* signals) {
    for (const int index : to_do_) {
      SL_RETURN_IF_ERROR(folder_.RemoveRun(plan_.runs[index]));
      records_[index] = RunRecord();
    }
    SL_RETURN_IF_ERROR(WriteState());
    while (!active_.empty() || (!to_do_.empty() && interrupts_ == 0)) {
      while (interrupts_ == 0 && !to_do_.empty() &&
             static_cast<int>(active_.size()) < plan_.experiment.parallel()) {
        SL_RETURN_IF_ERROR(Start(to_do_.front()));
        to_do_.pop_front();
      }
      for (int i = signals->Wait(kWaitMax); i > 0; --i) OnInterrupt();
      for (size_t i = 0; i < active_.size();) {
        const std::optional<ExitStatus> exit = active_[i].process.Poll();
        if (!exit.has_value()) {
          ++i;
          continue;
        }
        const Active ended = std::move(active_[i]);
        active_.erase(active_.begin() + static_cast<int>(i));
        SL_RETURN_IF_ERROR(OnEnd(ended, *exit));
      }
      ShowProgress();
    }
    display_->Redraw({});
    if (interrupts_ == 0) return absl::OkStatus();
    return absl::AbortedError("interrupted by the user");
  }

  absl::Status WriteState() const {
    return folder_.WriteState(plan_, records_, options_.command);
  }

  // Selected runs in this state.
  int Count(State state) const {
    int count = 0;
    for (int i = 0; i < static_cast<int>(plan_.runs.size()); ++i) {
      if (IsSelected(i) && records_[i].state == state) ++count;
    }
    return count;
  }

 private:
  struct Active {
    int index;
    ChildProcess process;
    absl::Time started;
  };

  bool IsSelected(int index) const {
    const std::string& name = plan_.variants[plan_.runs[index].variant].name;
    return options_.only.empty() ||
           fnmatch(options_.only.c_str(), name.c_str(), 0) == 0;
  }
  bool IsToDo(int index) const {
    return std::find(to_do_.begin(), to_do_.end(), index) != to_do_.end();
  }

  std::string StateWords(int index) const {
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

  std::optional<double> Estimate(const std::vector<int>& to_do) const {
    std::map<int, double> done;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].state != State::kFinished) continue;
      done[static_cast<int>(i)] = records_[i].elapsed_seconds;
    }
    return EstimateSeconds(plan_, to_do, done);
  }

  // Without the program and, as it may be repeated, without a folder.
  std::vector<std::string> Arguments(int index) const {
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

  absl::Status Start(int index) {
    std::vector<std::string> command = {options_.program};
    for (const std::string& argument : Arguments(index)) {
      command.push_back(argument);
    }
    command.push_back(
        absl::StrCat("--out=", folder_.RunPath(plan_.runs[index])));
    command.push_back(absl::StrCat("--bin-dir=", options_.bin_dir));
    const absl::Time now = TimeSource().Now();
    SL_ASSIGN_OR_RETURN(
        ChildProcess process,
        ChildProcess::Start({.command = command,
                             .log_path = folder_.LogPath(plan_.runs[index])}));
    active_.push_back({index, std::move(process), now});
    return absl::OkStatus();
  }

  void OnInterrupt() {
    ++interrupts_;
    display_->Print(
        interrupts_ == 1
            ? "interrupted: stopping what runs; once more to kill it"
            : "interrupted again: killing what runs");
    // `slackline run` takes the second one as this program does.
    for (Active& run : active_) run.process.Signal(SIGINT);
  }

  absl::Status OnEnd(const Active& ended, const ExitStatus& exit) {
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
    SL_RETURN_IF_ERROR(WriteState());

    const std::string what =
        outcome.ok() ? FiguresText(*outcome)
                     : absl::StrCat("failed: ", record.error,
                                    " (log: ", folder_.LogPath(run), ")");
    std::vector<int> left(to_do_.begin(), to_do_.end());
    for (const Active& active : active_) left.push_back(active.index);
    const std::optional<double> rest = Estimate(left);
    display_->Print(absl::StrCat(
        RunTitle(plan_, ended.index), ": ", what, ", ",
        DurationText(record.elapsed_seconds), "; ",
        selected_ - static_cast<int>(left.size()), " of ", selected_, " done",
        rest.has_value() && !left.empty()
            ? absl::StrCat(", ", EstimateText(rest), " left")
            : ""));
    return absl::OkStatus();
  }

  void ShowProgress() {
    if (!display_->terminal()) return;
    std::vector<std::string> lines;
    for (const Active& run : active_) {
      const std::vector<std::string> last =
          LastLines(ReadTail(folder_.LogPath(plan_.runs[run.index]), 4096), 1);
      lines.push_back(FitToWidth(
          absl::StrCat(RunTitle(plan_, run.index), " (",
                       DurationText(absl::ToDoubleSeconds(TimeSource().Now() -
                                                          run.started)),
                       "): ", last.empty() ? "starting" : last[0]),
          display_->width()));
    }
    display_->Redraw(lines);
  }

  const ExperimentPlan& plan_;
  const CompareOptions& options_;
  const ExperimentFolder& folder_;
  Display* const display_;
  std::map<std::string, std::string> data_dirs_;  // By serialized config::Data.
  std::vector<RunRecord> records_;                // By index into plan_.runs.
  int selected_ = 0;
  std::deque<int> to_do_;
  std::vector<Active> active_;
  int interrupts_ = 0;
};

// Everything after the checks of what the user asked for.
absl::Status RunGrid(const ExperimentPlan& plan, const CompareOptions& options,
                     const ExperimentFolder& folder, Grid* grid,
                     Display* display) {
  grid->SayWhatIsThere();
  SL_RETURN_IF_ERROR(folder.WriteInputs(plan));
  if (grid->to_do().empty()) return grid->WriteState();
  SL_RETURN_IF_ERROR(CheckRunnable(plan, options));
  SL_RETURN_IF_ERROR(grid->FindAllData());
  if (plan.experiment.parallel() > 1) {
    display->Print(absl::StrCat(plan.experiment.parallel(),
                                " runs at the same time: they share this "
                                "machine, so wall times are not comparable"));
  }
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  return grid->Run(signals.get());
}

}  // namespace

int CompareVariants(const ExperimentSource& source,
                    const CompareOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline ", options.subcommand, ": ", text));
  };
  const absl::StatusOr<ExperimentPlan> plan = ExpandExperiment(source);
  if (!plan.ok()) {
    complain(plan.status().message());
    return kExitUsage;
  }
  ExperimentFolder folder(
      options.out_dir.empty()
          ? absl::StrCat("experiments/", plan->experiment.name())
          : options.out_dir);
  if (const absl::Status fits = folder.CheckIsOf(plan->experiment.name());
      !fits.ok()) {
    complain(fits.message());
    return kExitUsage;
  }
  if (!options.dry_run) {
    if (const absl::Status locked = folder.Lock(); !locked.ok()) {
      complain(locked.message());
      return kExitFailed;
    }
  }
  Grid grid(*plan, options, folder, &display);
  grid.Look();
  if (grid.selected() == 0) {
    complain(absl::StrCat(
        "--only: no variant is like '", options.only, "'; there are ",
        absl::StrJoin(plan->variants, ", ",
                      [](std::string* text, const PlannedVariant& variant) {
                        absl::StrAppend(text, variant.name);
                      })));
    return kExitUsage;
  }
  if (options.dry_run) {
    const std::string text = grid.PlanText();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitDone;
  }
  display.Print(absl::StrCat("experiment ", plan->experiment.name(), ": ",
                             plan->variants.size(), " variants, ",
                             plan->experiment.seed_size(),
                             " seeds\nfolder: ", folder.path()));
  const absl::Status done = RunGrid(*plan, options, folder, &grid, &display);
  const int finished = grid.Count(State::kFinished);
  if (absl::IsAborted(done)) {
    complain(absl::StrCat(done.message(), "; ", finished, " of ",
                          grid.selected(), " runs are finished, and ",
                          options.command, " goes on from here"));
    return kExitFailed;
  }
  if (!done.ok()) {
    complain(done.message());
    return kExitFailed;
  }
  if (options.report && finished > 0 &&
      MakeReport({.folder = folder.path(), .bin_dir = options.bin_dir}) !=
          kExitDone) {
    complain(
        absl::StrCat("the runs are there, but no report; "
                     "`slackline report ",
                     folder.path(), "` makes it"));
  }
  if (finished == grid.selected()) return kExitDone;
  complain(absl::StrCat(grid.Count(State::kFailed), " of ", grid.selected(),
                        " runs have failed; run.json in their folders says "
                        "why, --retry-failed makes them again"));
  return kExitFailed;
}

}  // namespace slackline
