// LocateData() (data_location.h) with the real cache, network and stand-in.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/display.h"

namespace slackline {

// The --data-dir for the workers of a job. `data_dir` is the user's choice;
// empty: none. A config without data gets that choice, even if it is none.
absl::StatusOr<std::string> FindData(const config::ClusterConfig& config,
                                     const std::string& data_dir,
                                     Display* display);

}  // namespace slackline
