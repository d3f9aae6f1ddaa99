// A run on hosts that are known: from its folder to its last process.
#pragma once

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// Everything after the checks of what the user asked for. Returns the exit code
// of a job that has finished, whose result goes to stdout, or is suspended.
absl::StatusOr<int> RunJob(RunOptions options, config::ClusterConfig config,
                           Display* display);

}  // namespace slackline
