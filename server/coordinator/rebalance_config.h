// What the config may say about moving shards.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with the block.
void CheckRebalance(const config::Rebalance& rebalance,
                    const ConfigProblems& problems);

}  // namespace slackline
