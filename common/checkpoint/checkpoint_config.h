// What the config may say about checkpoints.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// What decides, beside the block itself, whether checkpoints can be taken.
struct CheckpointContext {
  bool elastic = false;  // data.sampling is ELASTIC.
  // The job evaluates its model before its end. True if that is not known.
  bool evaluates = true;
};

// Adds what is wrong with the block.
void CheckCheckpoint(const config::Checkpoint& checkpoint,
                     const CheckpointContext& context,
                     const ConfigProblems& problems);

}  // namespace slackline
