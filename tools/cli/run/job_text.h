// A job in a line.
#pragma once

#include <string>

#include "proto/cluster.pb.h"

namespace slackline {

// "job mnist-mlp: mode ssp:3, seed 1, 5 epochs, 2 servers, 4 workers".
std::string JobText(const config::ClusterConfig& config);

// "\nprogram of workers: ./train --fast", one for each group that has one.
std::string OwnProgramsText(const config::ClusterConfig& config);

}  // namespace slackline
