// All-reduce through shared memory, for ranks that train on the CPUs of one
// host as processes of one user.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collective/collective.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

// Each rank has memory to which it alone writes and which all others map, with
// two places for a block of a buffer. A block is summed in the order of the
// ranks: each rank copies its block there, and
//   - a small one, or one of two ranks, every rank sums whole,
//   - of others rank i sums part i in place, and every rank copies all parts.
// Hence the same bits everywhere. A broadcast is a block at a time as well.
// While one place is read, the next block goes to the other.
//
// Whoever waits for another rank sleeps on that one's count of blocks.
//
// Connects as CreateTcpCollective() does, with the same errors; instead of a
// host it needs:
//   FailedPrecondition: a rank, which is named, cannot share memory with this
//     one: it is on another host, of another user, or has none. All ranks get
//     this from the same values in the store, and nobody has connected to
//     anybody.
absl::StatusOr<std::unique_ptr<Collective>> CreateShmCollective(
    const GroupOptions& options);

}  // namespace slackline
