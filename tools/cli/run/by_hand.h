// What to start by hand when the job needs more machines than this one.
#pragma once

#include <string>
#include <vector>

#include "proto/cluster.pb.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// `elsewhere`: the hosts that are not this machine.
std::string ByHandText(const RunOptions& options,
                       const config::ClusterConfig& config,
                       const std::vector<std::string>& elsewhere);

}  // namespace slackline
