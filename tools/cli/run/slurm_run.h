// `slackline run --on slurm` outside of an allocation: a job that Slurm is to
// begin, followed from the terminal.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/display.h"
#include "tools/cli/run/run_options.h"
#include "tools/cli/signals.h"

namespace slackline {

// The job of Slurm that was submitted for the run in the folder and has not
// ended; nullopt: none.
absl::StatusOr<std::optional<std::string>> SlurmJobOfRun(
    const std::string& out_dir);

// Writes the script into the folder, which is made, and submits it. The job's
// id.
absl::StatusOr<std::string> SubmitRun(const std::string& script,
                                      const std::string& out_dir);

// How to watch it and to end it.
std::string WatchText(const std::string& id, const std::string& out_dir);

// Until the job is over, which is shown as if it ran here, as far as the folder
// shows it. The exit code is the job's. Ctrl-C is as SlurmFollower has it;
// SIGTERM and SIGHUP end the following alone. `from_now`: what the job has said
// before is not shown.
absl::StatusOr<int> FollowRun(const std::string& id, const std::string& out_dir,
                              bool from_now, SignalWatch* signals,
                              Display* display);

// In a job of Slurm: whether it has begun the run in the folder before Slurm
// took it away; and notes that it has begun it.
bool SlurmJobHasBegun(const SlurmAllocation& allocation,
                      const std::string& out_dir);
absl::Status NoteSlurmJobBegins(const SlurmAllocation& allocation,
                                const std::string& out_dir);

}  // namespace slackline
