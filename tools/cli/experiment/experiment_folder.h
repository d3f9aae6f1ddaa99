// The folder of an experiment: what is in it already, and what is written
// (docs/manual/experiments.md).
//
//   experiment.textproto, base.textproto   the experiment, complete
//   experiment.json                        the same and the state of its runs,
//                                          for the report
//   configs/RUN.textproto                  the cluster config of each run
//   logs/RUN.log                           what `slackline run` has said
//   runs/RUN/                              what it has left, and run.json
//   experiment.lock                        held while runs are made
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/descriptor.h"
#include "tools/experiment/plan.h"
#include "tools/experiment/tune.h"

namespace slackline {

// run.json: how a run has ended.
struct RunRecord {
  enum class State {
    kToDo,    // Nothing is there.
    kCutOff,  // A folder, but no record of an end: to be done again.
    kFinished,
    kFailed,
  };
  State state = State::kToDo;
  std::string error;  // Of a failed one.
  std::string command;
  std::string commit;
  std::string started;  // UTC, as in 2026-01-02T03:04:05Z.
  double elapsed_seconds = 0;
};

// What a finished run has reached.
struct RunOutcome {
  double test_accuracy = 0;
  double test_loss = 0;
};

// One thread at a time.
class ExperimentFolder {
 public:
  // Without locking or making it: for looking.
  explicit ExperimentFolder(std::string path) : path_(std::move(path)) {}

  // FailedPrecondition if the folder is not empty and holds something else than
  // this experiment.
  absl::Status CheckIsOf(const std::string& experiment) const;
  // Makes the folder and keeps it until the end of this object. Unavailable:
  // somebody else has it.
  absl::Status Lock();

  const std::string& path() const { return path_; }
  std::string RunPath(const PlannedRun& run) const;
  std::string LogPath(const PlannedRun& run) const;
  std::string ConfigPath(const PlannedRun& run) const;

  // By index into plan.runs. A record with another key than the plan's counts
  // as cut off.
  std::vector<RunRecord> ReadRecords(const ExperimentPlan& plan) const;
  // Names of folders of runs that are in none of the plans, sorted.
  std::vector<std::string> OtherRuns(
      absl::Span<const ExperimentPlan* const> plans) const;

  // From summary.json. NotFound: there is none. FailedPrecondition: the job has
  // failed. OutOfRange: the run diverged.
  absl::StatusOr<RunOutcome> ReadOutcome(const PlannedRun& run) const;
  // By index into the runs of a plan of tries.
  std::vector<TryOutcome> ReadTries(const ExperimentPlan& tries) const;

  // experiment.textproto and base.textproto.
  absl::Status WriteInputs(const ExperimentPlan& plan) const;
  // configs/ of its runs.
  absl::Status WriteConfigs(const ExperimentPlan& plan) const;
  // experiment.json. `command` is what repeats the whole. Of an experiment with
  // `tune`: `tries`, and what they have given; otherwise null.
  absl::Status WriteState(const ExperimentPlan& plan,
                          const std::vector<RunRecord>& records,
                          const std::string& command,
                          const ExperimentPlan* tries,
                          const Tuning* tuning) const;
  absl::Status WriteRecord(const ExperimentPlan& plan, const PlannedRun& run,
                           const RunRecord& record) const;
  // Removes the folder and the log of a run.
  absl::Status RemoveRun(const PlannedRun& run) const;

 private:
  std::string path_;
  Descriptor lock_;
};

// "finished", "failed" or "to do".
std::string StateText(RunRecord::State state);

}  // namespace slackline
