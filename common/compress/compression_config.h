// What the config says about compression, for each table.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"
#include "proto/data.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// Adds what is wrong with an entry of sync.compression.
void CheckCompression(const config::Compression& compression,
                      const ConfigProblems& problems);

// The first entry that fits the table's name, if the table has as many elements
// as it asks for; else nullptr.
const config::Compression* CompressionOf(const config::Sync& sync,
                                         const wire::Table& table);
// Table::pulled_as.
wire::Encoding::Kind PulledAs(const config::Sync& sync,
                              const wire::Table& table);

}  // namespace slackline
