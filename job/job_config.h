// The config of a job with all its parts: each block is completed and checked
// by the part of Slackline that it is for. Servers, workers and tools read the
// config through this, so a config that one of them accepts is good for all.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/config/cluster_config.h"

namespace slackline {

// All parts. To add one, add its functions in job_config.cc.
extern const ConfigParts kJobConfigParts;

// As LoadClusterConfig() and ParseClusterConfig(), with all parts.
absl::StatusOr<config::ClusterConfig> LoadJobConfig(
    const std::string& path, const ConfigOverrides& overrides = {});
absl::StatusOr<config::ClusterConfig> ParseJobConfig(
    const std::string& text, const std::string& file_name,
    const ConfigOverrides& overrides = {});

}  // namespace slackline
