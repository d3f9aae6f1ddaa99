// The timeouts in the config's limits: how long who is waited for.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Writes out those whose defaults follow from others: half as long as others
// wait, or the schema's if that is less; and never below what is required.
void FillTimeouts(config::Limits* limits);

// Adds what is wrong with the fields that end in _ms.
void CheckTimeouts(const config::Limits& limits,
                   const ConfigProblems& problems);

}  // namespace slackline
