// What the config may say about the compression of gradients.
#pragma once

#include "common/config/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with an entry of sync.compression.
void CheckCompression(const config::Compression& compression,
                      const ConfigProblems& problems);

}  // namespace slackline
