// The config of a job with all its parts: each block is completed and checked
// by the part of Slackline that it is for. Servers, workers and tools read the
// config through this, so a config that one of them accepts is good for all.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

// OK if the workers of the job are slackline_worker's. FailedPrecondition, with
// the ways out, if they are programs of their own, so that `who` cannot do
// their work: "slackline_worker".
absl::Status CheckHasModel(const config::ClusterConfig& config,
                           absl::string_view who);

}  // namespace slackline
