// A run that an engine begins: `slackline run --on slurm` outside of an
// allocation.
#pragma once

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// Hands the job to Slurm, and follows it to its end, as of RunJob(); or prints
// its script.
absl::StatusOr<int> RunBySlurm(RunOptions options, const SlurmPlan& plan,
                               const config::ClusterConfig& config,
                               Display* display);

}  // namespace slackline
