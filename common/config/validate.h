// Defaults and checks of a config beyond its grammar.
#pragma once

#include "absl/status/status.h"
#include "common/config/field_origins.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Writes out what was left out, as LoadClusterConfig() describes. What has no
// default stays unset.
void FillDefaults(config::ClusterConfig* config);

// Checks a config after FillDefaults(). InvalidArgument: every problem in a
// line of its own, each beginning with the field's origin and path.
absl::Status ValidateConfig(const config::ClusterConfig& config,
                            const FieldOrigins& origins);

}  // namespace slackline
