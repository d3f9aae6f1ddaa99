// What a user has given of a job's config: file and flags, before what was left
// out is filled in.
#pragma once

#include <optional>

#include "proto/cluster.pb.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// Lines of a config that was written here, which say that nobody has chosen its
// port, or its hosts: whoever reads the config forgets them.
inline constexpr char kAnyPort[] =
    "# coordinator.port was any free one, and is again when this is run.\n";
inline constexpr char kAnyHosts[] =
    "# hosts were those that Slurm or Ray gave, and are whatever it gives when "
    "this is run.\n";

// nullopt: there is something wrong with it, which is said by those who read it
// in earnest.
std::optional<config::ClusterConfig> WhatIsGiven(const RunOptions& options);

// Whether file or flags name the coordinator's port, or leave it to us.
bool PortIsGiven(const RunOptions& options);

void ForgetHosts(config::ClusterConfig* config);

}  // namespace slackline
