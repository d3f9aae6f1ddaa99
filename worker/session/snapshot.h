// All parameters of a model at one moment.
#pragma once

#include <vector>

#include "common/payload.h"
#include "worker/client/client_core.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

// For each table, its bytes in one or more pieces in element order. Sharing
// pieces with others costs nothing.
using Snapshot = std::vector<std::vector<Payload>>;

// The snapshot of what was pulled.
Snapshot SnapshotOf(const PullResult& pulled);
// The snapshot of values by shard id, as `view` splits the tables.
Snapshot SnapshotOf(const View& view, absl::Span<const Payload> values);

// Replaces the parameters, first table first. Sizes that differ are fatal.
void LoadSnapshot(const Snapshot& snapshot, ParameterMemory* parameters);
// Copies the parameters. A GPU that cannot be read any more is fatal.
Snapshot TakeSnapshot(ParameterMemory& parameters);

}  // namespace slackline
