// All-reduce over TCP, for ranks that train on the CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/collective/collective.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

// A ring all-reduce (Patarasu and Yuan, 2009): each of n ranks sends and
// receives 2 (n - 1) / n of the bytes, and only its two neighbours take part in
// its transfers. Part i of the buffer is summed in ring order and ends at rank
// i, which passes the result on; hence the same bits everywhere. A broadcast
// goes around the same ring from its root: each rank but the last sends the
// bytes once. In both a rank passes on what it has at once, without a wait for
// the end of a part.
//
// Connects as ConnectTcp() does, with the same errors, or InvalidArgument for
// an option, with its value and its bound.
absl::StatusOr<std::unique_ptr<Collective>> CreateTcpCollective(
    const GroupOptions& options);

}  // namespace slackline
