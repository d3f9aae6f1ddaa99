// Where two configs differ.
#pragma once

#include <string>

#include "proto/cluster.pb.h"

namespace slackline {

// The first field, in the order of the schema, in which the configs differ, as
// "train.seed: its value is 2, the coordinator's is 1", with the values of
// `own` and `coordinators`, each cut to a few words. Empty if they are equal,
// also if only unknown fields differ.
std::string FirstDifference(const config::ClusterConfig& own,
                            const config::ClusterConfig& coordinators);

}  // namespace slackline
