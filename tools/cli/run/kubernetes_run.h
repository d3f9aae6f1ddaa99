// `slackline run --on kubernetes`: manifests that are printed, or applied.
#pragma once

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// Of a job for Kubernetes, with the config as it was given, before its hosts
// are known. The exit code: kExitUsage for what was given, after it was said
// what is wrong with it. The job is not followed: nothing of it comes here.
absl::StatusOr<int> RunOnKubernetes(RunOptions options,
                                    const config::ClusterConfig& given,
                                    Display* display);

}  // namespace slackline
