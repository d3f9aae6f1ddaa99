// What the config may say about all-reduce.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// `nccl`: all workers train on GPUs, so they all-reduce by NCCL, else among the
// hosts' processors.

// Writes out the size of a bucket if it was left out.
void FillCollective(bool nccl, config::Collective* collective);
// Adds what is wrong with the block.
void CheckCollective(const config::Collective& collective, bool nccl,
                     const ConfigProblems& problems);

}  // namespace slackline
