// What the config may say about the conditions of a group of workers.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// What decides, beside the conditions themselves, which of them can be.
struct ConditionsContext {
  int stall_timeout_ms = 0;  // As in config::Limits.
  bool cuda = false;         // The group trains on GPUs.
  bool nccl = false;         // The job may all-reduce by NCCL.
};

// Adds what is wrong with them.
void CheckConditions(const config::Conditions& conditions,
                     const ConditionsContext& context,
                     const ConfigProblems& problems);

}  // namespace slackline
