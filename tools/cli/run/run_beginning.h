// From what, and in which folder, a run begins: anew, from a checkpoint, or as
// what is left of a run whose command was given before.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// The checkpoint that the job goes on from. Says which one, and what is other
// than it was.
absl::StatusOr<run::CheckpointRecord> ReadCheckpointOf(
    const RunOptions& options, const config::ClusterConfig& config,
    Display* display);

// Says what a recording (train.trace) of a job that goes on from this
// checkpoint will lack, if it has a folder.
void WarnOfRecording(const config::ClusterConfig& config,
                     const run::CheckpointRecord& from, Display* display);

// The same command may have been given before. Changes what is asked for to
// what is left of it; `*over`: nothing is, and the exit code. `*has_run`: the
// folder of --out has a run, and may be taken.
absl::Status LookAtRunInFolder(const config::ClusterConfig& config,
                               RunOptions* options, bool* has_run,
                               std::optional<int>* over, Display* display);

// The folder of the run, which is there then; see MakeOutFolder() and
// CheckFolderOfRun(). `resume`: the checkpoint that it begins with, or empty.
// Says so where nobody knows whether the run that was there runs still.
absl::StatusOr<std::string> ChooseOutFolder(const RunOptions& options,
                                            const config::ClusterConfig& config,
                                            const std::string& resume,
                                            bool has_run, Display* display);

}  // namespace slackline
