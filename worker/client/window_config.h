// The sizes in the config's limits: how tables are split, and how much is in
// flight.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with the fields that end in _kib.
void CheckWindow(const config::Limits& limits, const ConfigProblems& problems);

}  // namespace slackline
