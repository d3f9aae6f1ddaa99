// On which hosts a run is to be, and who starts it there.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// Where a job of Slurm is begun, and on what.
struct SlurmPlan {
  bool is_slurm = false;
  bool submits = false;         // By a batch script, from outside.
  bool on_named_hosts = false;  // Not on whatever nodes Slurm gives.
};

// Origin of the hosts that Slurm or Ray gives.
inline constexpr char kOnSlurm[] = "--on slurm";
inline constexpr char kOnRay[] = "--on ray";

// Takes the flags of Slurm. InvalidArgument: they are where they do not belong.
absl::StatusOr<SlurmPlan> PlanSlurm(RunOptions* options);

// Reads --hosts or --hostfile, or asks Slurm; of a job that is to be submitted,
// or for which Ray has to give nodes, the hosts are stand-ins.
absl::Status SetHosts(const SlurmPlan& plan, RunOptions* options);

// The hosts of a job that is looked at now, not submitted. FailedPrecondition:
// Slurm gives them, and this program does not run in an allocation.
absl::Status SetKnownHosts(RunOptions* options);

// The hosts are not known before Slurm or Ray has given them.
bool HasStandIns(const config::ClusterConfig& config);

}  // namespace slackline
