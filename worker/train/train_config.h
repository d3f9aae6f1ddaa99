// What the config may say about the course of a job.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with the block.
void CheckTrain(const config::Train& train, const ConfigProblems& problems);

}  // namespace slackline
