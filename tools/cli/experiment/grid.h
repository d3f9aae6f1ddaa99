// Runs of a plan, some at a time, in the folder of an experiment, until all are
// done or the user stops them.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/compare_options.h"
#include "tools/cli/experiment/experiment_folder.h"
#include "tools/cli/process.h"
#include "tools/cli/signals.h"
#include "tools/experiment/plan.h"

namespace slackline {

// What must outlive it is given by reference. One thread.
class Grid {
 public:
  struct Options {
    std::string nouns;           // What its runs are called: "runs".
    std::vector<bool> selected;  // By index into plan.runs: which it is about.
  };
  // Looks into the folder, which of the runs are there.
  Grid(const ExperimentPlan& plan, Options what, const CompareOptions& options,
       const ExperimentFolder& folder, Display* display);

  int selected() const { return selected_count_; }
  const std::deque<int>& to_do() const { return to_do_; }
  // By index into plan.runs, also of those that are not selected.
  const std::vector<RunRecord>& records() const { return records_; }
  // Selected runs in this state.
  int Count(RunRecord::State state) const;

  // What --dry-run prints: a table, and how long it takes.
  std::string PlanText() const;
  // Prints how many are kept, and what that means.
  void SayWhatIsKept() const;

  // Makes what is to be done, after the training data for it, of configs that
  // are in the folder; `on_change` is called first and after the end of each
  // run. Errors are those of this machine, or of on_change: a run that fails is
  // a result. Aborted: the user has interrupted it. Leaves no process behind.
  absl::Status Run(SignalWatch* signals,
                   const std::function<absl::Status()>& on_change);

 private:
  struct Active {
    int index;
    ChildProcess process;
    absl::Time started;
  };

  bool IsSelected(int index) const {
    return what_.selected[static_cast<size_t>(index)];
  }
  bool IsToDo(int index) const;
  int RunCount() const { return static_cast<int>(plan_.runs.size()); }
  std::string Title(int index) const;
  std::string StateWords(int index) const;
  std::optional<double> Estimate(const std::vector<int>& to_do) const;
  // Finds the training data of all runs that are to be done.
  absl::Status FindAllData();
  // Without the program and, as it may be repeated, without a folder.
  std::vector<std::string> Arguments(int index) const;
  absl::Status Start(int index);
  void OnInterrupt();
  absl::Status OnEnd(const Active& ended, const ExitStatus& exit);
  void ShowProgress();

  const ExperimentPlan& plan_;
  const Options what_;
  const CompareOptions& options_;
  const ExperimentFolder& folder_;
  Display* const display_;
  std::map<std::string, std::string> data_dirs_;  // By serialized config::Data.
  std::vector<RunRecord> records_;                // By index into plan_.runs.
  int selected_count_ = 0;
  std::deque<int> to_do_;
  std::vector<Active> active_;
  int interrupts_ = 0;
};

}  // namespace slackline
