// Defaults and checks of what the config says about the cluster as a whole:
// the job's name, processes, addresses, ports and GPUs.
#pragma once

#include "common/block/config_problems.h"
#include "common/block/field_origins.h"
#include "common/config/cluster_config.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Writes out what was left out, as LoadClusterConfig() describes. What has no
// default stays unset.
void FillDefaults(config::ClusterConfig* config, const ConfigParts& parts);

// Adds what is wrong, after FillDefaults(). `problems` is the whole config.
void CheckCluster(const config::ClusterConfig& config,
                  const FieldOrigins& origins, const ConfigProblems& problems);

}  // namespace slackline
