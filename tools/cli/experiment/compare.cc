#include "tools/cli/experiment/compare.h"

#include <fnmatch.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/experiment_folder.h"
#include "tools/cli/experiment/grid.h"
#include "tools/cli/experiment/replay_command.h"
#include "tools/cli/experiment/report_command.h"
#include "tools/cli/installed.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/run/track_command.h"
#include "tools/cli/signals.h"
#include "tools/cli/text.h"
#include "tools/experiment/plan.h"
#include "tools/experiment/tune.h"

namespace slackline {
namespace {

using State = RunRecord::State;

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
      note(Annotate(CheckPrograms(options.bin_dir, variant.config),
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

// An experiment that the user has asked for, in its folder: first its tries, if
// it has any, then its runs.
class Comparison {
 public:
  Comparison(const ExperimentSource& source, const CompareOptions& options,
             const ExperimentFolder& folder, Display* display)
      : source_(source),
        options_(options),
        folder_(folder),
        display_(display) {}

  // InvalidArgument: all that is wrong with it.
  absl::Status Expand() {
    SL_ASSIGN_OR_RETURN(plan_, ExpandExperiment(source_));
    if (!source_.experiment.has_tune()) return absl::OkStatus();
    SL_ASSIGN_OR_RETURN(tries_, ExpandTries(source_));
    return absl::OkStatus();
  }
  const ExperimentPlan& plan() const { return plan_; }
  bool SelectsNone() const {
    for (const PlannedVariant& variant : plan_.variants) {
      if (IsSelected(variant)) return false;
    }
    return true;
  }

  // What --dry-run prints.
  absl::StatusOr<std::string> PlanText() {
    SL_RETURN_IF_ERROR(TakeTries());
    std::string text;
    if (tries_.has_value()) absl::StrAppend(&text, TriesGrid().PlanText());
    const Grid runs = RunsGrid();
    if (runs.selected() > 0) absl::StrAppend(&text, runs.PlanText());
    std::vector<std::string> waiting;
    for (const int variant : Untuned()) {
      if (tuning_.variants[variant].left_out.empty()) {
        waiting.push_back(plan_.variants[variant].name);
      } else {
        absl::StrAppend(&text, NotTunedText(variant), "\n");
      }
    }
    if (waiting.empty()) return text;
    absl::StrAppend(
        &text, "then the runs with the values that the tries give: ",
        absl::StrJoin(waiting, ", "),
        "; seeds: ", absl::StrJoin(plan_.experiment.seed(), ", "), "\n");
    return text;
  }

  // Makes what is to be done. Errors as of Grid::Run().
  absl::Status Run() {
    SL_RETURN_IF_ERROR(folder_.WriteInputs(plan_));
    if (tries_.has_value()) {
      SL_RETURN_IF_ERROR(TakeTries());
      SL_RETURN_IF_ERROR(folder_.WriteConfigs(*tries_));
      Grid tries = TriesGrid();
      SL_RETURN_IF_ERROR(RunGrid(*tries_, &tries, [&] {
        ReadTuning();
        return WriteState(folder_.ReadRecords(plan_));
      }));
      SL_RETURN_IF_ERROR(TakeTries());
      SayWhatIsChosen();
    }
    const std::vector<std::string> others = folder_.OtherRuns(
        tries_.has_value()
            ? std::vector<const ExperimentPlan*>{&plan_, &*tries_}
            : std::vector<const ExperimentPlan*>{&plan_});
    if (!others.empty()) {
      display_->Print(absl::StrCat(
          others.size(), " folders in ", folder_.path(),
          "/runs are of other settings and stay as they are, for example ",
          others[0]));
    }
    SL_RETURN_IF_ERROR(folder_.WriteConfigs(plan_));
    Grid runs = RunsGrid();
    return RunGrid(plan_, &runs, [&] { return WriteState(runs.records()); });
  }

  // After Run(), however it ended: of the runs that were asked for, also those
  // of variants that are not tuned.
  struct Counts {
    int selected = 0;
    int finished = 0;
    int failed = 0;
    int without_values = 0;  // Tries are missing, or none was good.
    int tries = 0;
    int tries_done = 0;
  };
  Counts Count() const {
    Counts counts;
    const Grid runs = RunsGrid();
    counts.without_values = static_cast<int>(Untuned().size()) * SeedCount();
    counts.selected = runs.selected() + counts.without_values;
    counts.finished = runs.Count(State::kFinished);
    counts.failed = runs.Count(State::kFailed);
    if (!tries_.has_value()) return counts;
    const Grid tries = TriesGrid();
    counts.tries = tries.selected();
    counts.tries_done =
        tries.Count(State::kFinished) + tries.Count(State::kFailed);
    return counts;
  }

 private:
  bool IsSelected(const PlannedVariant& variant) const {
    const std::string& name = plan_.variants[variant.experiment_variant].name;
    return options_.only.empty() ||
           fnmatch(options_.only.c_str(), name.c_str(), 0) == 0;
  }
  std::vector<bool> SelectedOf(const ExperimentPlan& plan) const {
    std::vector<bool> selected;
    for (const PlannedRun& run : plan.runs)
      selected.push_back(IsSelected(plan.variants[run.variant]));
    return selected;
  }
  Grid TriesGrid() const {
    return Grid(*tries_, {.nouns = "tries", .selected = SelectedOf(*tries_)},
                options_, folder_, display_);
  }
  Grid RunsGrid() const {
    return Grid(plan_, {.nouns = "runs", .selected = SelectedOf(plan_)},
                options_, folder_, display_);
  }
  int SeedCount() const { return plan_.experiment.seed_size(); }
  // Selected variants whose runs have no values.
  std::vector<int> Untuned() const {
    std::vector<int> untuned;
    for (size_t i = 0; tries_.has_value() && i < plan_.variants.size(); ++i) {
      const PlannedVariant& variant = plan_.variants[i];
      if (variant.tuned.empty() && IsSelected(variant))
        untuned.push_back(static_cast<int>(i));
    }
    return untuned;
  }
  std::string NotTunedText(int variant) const {
    return absl::StrCat("not tuned: ", plan_.variants[variant].name,
                        " has no runs: ", tuning_.variants[variant].left_out);
  }

  void ReadTuning() {
    tuning_ = Tune(*tries_, folder_.ReadTries(*tries_),
                   static_cast<int>(plan_.variants.size()));
  }
  // Gives the runs the values that tries in the folder have found.
  absl::Status TakeTries() {
    if (!tries_.has_value()) return absl::OkStatus();
    ReadTuning();
    SL_ASSIGN_OR_RETURN(plan_, ExpandExperiment(source_, tuning_.Chosen()));
    return absl::OkStatus();
  }

  absl::Status WriteState(const std::vector<RunRecord>& records) const {
    return folder_.WriteState(plan_, records, options_.command,
                              tries_.has_value() ? &*tries_ : nullptr,
                              tries_.has_value() ? &tuning_ : nullptr);
  }

  absl::Status RunGrid(const ExperimentPlan& plan, Grid* grid,
                       const std::function<absl::Status()>& write_state) {
    grid->SayWhatIsKept();
    // Also if nothing can run: the folder is this experiment's from now on.
    SL_RETURN_IF_ERROR(write_state());
    if (grid->to_do().empty()) return absl::OkStatus();
    SL_RETURN_IF_ERROR(CheckRunnable(plan, options_));
    if (plan.experiment.parallel() > 1) {
      display_->Print(
          absl::StrCat(plan.experiment.parallel(),
                       " runs at the same time: they share this "
                       "machine, so wall times are not comparable"));
    }
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                        SignalWatch::Create());
    return grid->Run(signals.get(), write_state);
  }

  void SayWhatIsChosen() const {
    for (size_t i = 0; i < plan_.variants.size(); ++i) {
      if (!IsSelected(plan_.variants[i])) continue;
      const std::string& name = plan_.variants[i].name;
      const TunedVariant& tuned = tuning_.variants[i];
      if (!tuned.chosen.has_value()) {
        display_->Print(NotTunedText(static_cast<int>(i)));
        continue;
      }
      const TriedValues& chosen = tuned.tried[*tuned.chosen];
      display_->Print(absl::StrCat(
          "tuned: ", name, ": ",
          absl::StrJoin(chosen.values, ", ", absl::PairFormatter("=")), " (",
          tuning_.by_accuracy
              ? absl::StrCat("accuracy ", PercentText(*chosen.result, 2))
              : absl::StrFormat("test loss %.4f", *chosen.result),
          ")"));
      for (const std::string& edge : EdgeTexts(tuned))
        display_->Print(absl::StrCat("warning: ", name, ": ", edge));
    }
  }

  const ExperimentSource& source_;
  const CompareOptions& options_;
  const ExperimentFolder& folder_;
  Display* const display_;
  // With the values that its tries have given, when it was expanded last.
  ExperimentPlan plan_;
  std::optional<ExperimentPlan> tries_;  // Of an experiment with `tune`.
  Tuning tuning_;                        // Of those, as last read.
};

}  // namespace

int CompareVariants(const ExperimentSource& source,
                    const CompareOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline ", options.subcommand, ": ", text));
  };
  const std::string& name = source.experiment.name();
  ExperimentFolder folder(options.out_dir.empty()
                              ? absl::StrCat("experiments/", name)
                              : options.out_dir);
  Comparison comparison(source, options, folder, &display);
  if (const absl::Status valid = comparison.Expand(); !valid.ok()) {
    complain(valid.message());
    return kExitUsage;
  }
  const ExperimentPlan& plan = comparison.plan();
  if (const absl::Status fits = folder.CheckIsOf(name); !fits.ok()) {
    complain(fits.message());
    return kExitUsage;
  }
  if (!options.dry_run) {
    if (const absl::Status locked = folder.Lock(); !locked.ok()) {
      complain(locked.message());
      return kExitFailed;
    }
  }
  if (comparison.SelectsNone()) {
    complain(absl::StrCat(
        "--only: no variant is like '", options.only, "'; there are ",
        absl::StrJoin(plan.variants, ", ",
                      [](std::string* text, const PlannedVariant& variant) {
                        absl::StrAppend(text, variant.name);
                      })));
    return kExitUsage;
  }
  if (options.dry_run) {
    const absl::StatusOr<std::string> text = comparison.PlanText();
    if (!text.ok()) {
      complain(text.status().message());
      return kExitFailed;
    }
    std::fwrite(text->data(), 1, text->size(), stdout);
    return kExitDone;
  }
  const TrackOptions track =
      TrackOptionsOf(plan.track, options.track, folder.path(), options.bin_dir);
  if (const int usable = CheckTrackers(track, TrackersCheck::kPackages);
      usable != kExitDone) {
    return usable;
  }
  display.Print(absl::StrCat("experiment ", name, ": ", plan.variants.size(),
                             " variants, ", plan.experiment.seed_size(),
                             " seeds\nfolder: ", folder.path()));
  const absl::StatusOr<std::unique_ptr<Tracking>> tracking =
      Tracking::Start(track, &display);
  if (!tracking.ok()) {
    complain(tracking.status().message());
    return kExitFailed;
  }
  const absl::Status done = comparison.Run();
  const Comparison::Counts counts = comparison.Count();
  if (absl::IsAborted(done)) {
    complain(absl::StrCat(
        done.message(), "; ",
        counts.tries == 0 ? ""
                          : absl::StrCat(counts.tries_done, " of ",
                                         counts.tries, " tries and "),
        counts.finished, " of ", counts.selected, " runs are finished, and ",
        options.command, " goes on from here"));
    return kExitFailed;
  }
  if (!done.ok()) {
    complain(done.message());
    return kExitFailed;
  }
  if (options.report && counts.finished > 0 &&
      MakeReport({.folder = folder.path(), .bin_dir = options.bin_dir}) !=
          kExitDone) {
    complain(
        absl::StrCat("the runs are there, but no report; "
                     "`slackline report ",
                     folder.path(), "` makes it"));
  }
  if (counts.finished == counts.selected) return kExitDone;
  if (counts.failed > 0) {
    complain(absl::StrCat(counts.failed, " of ", counts.selected,
                          " runs have failed; run.json in their folders says "
                          "why, --retry-failed makes them again"));
  }
  if (counts.without_values > 0) {
    complain(absl::StrCat(counts.without_values, " of ", counts.selected,
                          " runs were not made: their variants are not tuned"));
  }
  return kExitFailed;
}

}  // namespace slackline
