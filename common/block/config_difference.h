// Where two configs differ.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"

namespace slackline {

// The first field, in the order of the schema, in which the configs differ, as
// "train.seed: its value is 2, the coordinator's is 1", with the values of
// `own` and `other`, each shortened to a few words. `whose`: what `other` is
// called. Empty if they are equal, also if only unknown fields differ.
std::string FirstDifference(const config::ClusterConfig& own,
                            const config::ClusterConfig& other,
                            absl::string_view whose = "the coordinator's");

}  // namespace slackline
