// The programs of Slurm, as this machine has them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/launch/slurm_follower.h"

namespace slackline {

// The job of Slurm in which this program runs, as its environment has it.
struct SlurmAllocation {
  std::string job_id;  // Empty: it runs in none.
  int restarts = 0;    // How often Slurm has begun it again.
};
// Pure functions of the environment; EnvironmentHere() is the one of this
// process.
SlurmAllocation AllocationOf(
    const std::map<std::string, std::string>& environment);
SlurmAllocation AllocationHere();

// The stdout of one of the programs. NotFound: it is not there, with what to
// do. FailedPrecondition: it has ended badly, with what it has said.
// DeadlineExceeded: it does not end.
absl::StatusOr<std::string> RunSlurmTool(const std::vector<std::string>& words);

// Each error names the job.
absl::StatusOr<std::string> SubmitToSlurm(const std::string& script);
absl::StatusOr<std::optional<SlurmJob>> LookAtSlurmJob(const std::string& id);
absl::Status InterruptSlurmJob(const std::string& id);
// All that it runs; `waiting`: only if it waits for its turn.
absl::Status CancelSlurmJob(const std::string& id, bool waiting);

// Has Slurm queue the job of this program again, after it was suspended.
// Returns what people should know: whether it does, or why that is not asked
// for, since Slurm itself has begun to take the job away.
std::string QueueAgain(const SlurmAllocation& allocation);

}  // namespace slackline
