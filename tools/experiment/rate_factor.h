// The axis "rate_factor": a config's learning rate times a number, whatever its
// optimizer.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"

namespace slackline {

inline constexpr char kRateFactor[] = "rate_factor";

// As for --set: "optimizer.sgd.learning_rate=0.15" for the factor "0.5" of a
// config with SGD at 0.3. InvalidArgument: the factor is no number above 0, or
// the config has no optimizer.
absl::StatusOr<std::string> RateAssignment(absl::string_view factor,
                                           const config::ClusterConfig& config);

}  // namespace slackline
