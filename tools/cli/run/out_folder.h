// The folder that a run writes to.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "server/coordinator/beginning.h"

namespace slackline {

// "mnist-mlp-ssp-3-20260102T030405Z": the name of a run's folder. `mode` is a
// ModeText().
std::string RunName(const std::string& job, const std::string& mode,
                    absl::Time now);

// Makes the folder, `out_dir` or, if that is empty, a new runs/RunName().
// AlreadyExists: `out_dir` is there, and HasNothingBegun() is not true of it.
absl::StatusOr<std::string> MakeOutFolder(const std::string& out_dir,
                                          const std::string& job,
                                          const std::string& mode);

// Whether `out_dir` is the folder of the run that has written the checkpoint:
// then a job that goes on from it may have it, too. FailedPrecondition says why
// not: it is another run's. Unavailable: its job may run still. Else as
// RunInFolder::unknown.
absl::StatusOr<std::string> CheckFolderOfRun(const std::string& out_dir,
                                             const std::string& checkpoint);

// What becomes of a run whose folder has a run already, as of the same command
// before: HowToBegin(), of a job whose processes are all gone as far as is
// known.
struct RunInFolder {
  Beginning how = Beginning::kNewRun;
  std::string checkpoints;  // To be gone on from; empty: there are none.
  std::string instead;      // Of one that is over: what else can be done.
  // What is seen of hosts that do not say whether its coordinator is there;
  // empty: all of them say that it is not, or the folder says that it has
  // ended.
  std::string unknown;
};
// nullopt: the folder is not there, is empty, or has no run.
// FailedPrecondition: as of HowToBegin(). Unavailable: the run's processes may
// run still.
// flags.from_checkpoint is found out here.
absl::StatusOr<std::optional<RunInFolder>> FindRunIn(
    const std::string& out_dir, const config::ClusterConfig& config,
    BeginningFlags flags);

// There is no such folder, or it has nothing but what a submission to Slurm has
// left for the run that it will begin.
bool HasNothingBegun(const std::string& out_dir);

// The run in `out_dir` goes on there: copies what it says of itself so far into
// earlier-1, or the first such folder that is free, so that it is there
// whatever becomes of the run; and removes its summary and its failure.txt,
// which would say that it has ended. Its recording is moved there.
absl::Status KeepEarlier(const std::string& out_dir);

// What the servers of a run have recorded (train.trace) in `from` is in `to`
// then: servers that begin overwrite it, each its own file.
absl::Status MoveRecording(const std::string& from, const std::string& to);

}  // namespace slackline
