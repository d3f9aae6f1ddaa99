// Checks of what the config says about the machines on which a job is started,
// and about who is told of it.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Add what is wrong in the blocks of these names. `problems` is the whole
// config.
void CheckLaunch(const config::ClusterConfig& config,
                 const ConfigProblems& problems);
void CheckTrack(const config::ClusterConfig& config,
                const ConfigProblems& problems);

}  // namespace slackline
