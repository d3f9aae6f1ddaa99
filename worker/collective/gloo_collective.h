// All-reduce over Gloo's TCP transport, for ranks that train on the CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collective/collective.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

// A ring all-reduce: each of n ranks sends and receives 2 (n - 1) / n of the
// bytes, and only its two neighbours take part in its transfers. Part i of the
// buffer is summed in ring order and ends at rank i, which passes the result
// on; hence the same bits everywhere. A broadcast goes around the same ring
// from its root, in pieces: each rank but the last sends the bytes once.
//
// Has a thread beside those of MeshCollective: Gloo's event loop.
//
// Puts this rank's addresses into the store, waits for those of the others,
// and connects to all at once. After a failure nothing is left of the attempt
// but the keys in the store, so the next one is another group.
//   InvalidArgument: names the option, its value and its bound.
//   DeadlineExceeded: names the ranks whose addresses were not there in time.
//   Unavailable: this rank cannot listen on the host, or has no connection to
//     other ranks, which are named. A rank that gives up closes its
//     connections, so this may be one that noticed a dead rank earlier.
//   Others: what keep_trying or the store returned.
absl::StatusOr<std::unique_ptr<Collective>> CreateGlooCollective(
    const GroupOptions& options);

}  // namespace slackline
