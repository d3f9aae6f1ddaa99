// What the command line changes in a parsed config, remembering which flag
// gave which field.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/block/field_origins.h"
#include "common/config/cluster_config.h"
#include "proto/cluster.pb.h"

namespace slackline {

// All of them, the mode first. InvalidArgument: a flag that does not fit the
// schema, or two flags of which the later undoes the earlier.
absl::Status ApplyOverrides(const ConfigOverrides& overrides,
                            config::ClusterConfig* config,
                            FieldOrigins* origins);

}  // namespace slackline
