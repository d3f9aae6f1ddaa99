// How the ranks that train on CPUs all-reduce: through shared memory where they
// can, else over tcp.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

// Connects through shared memory if all ranks are of one user on one host, and
// the transport is AUTO or SHM; a link that is emulated is one over tcp. All
// ranks find the same. Errors as of CreateTcpCollective(); InvalidArgument: it
// has to be SHM, and cannot be.
absl::StatusOr<ConnectedGroup> ConnectHostGroup(
    const GroupOptions& options, config::Limits::Transport transport);

}  // namespace slackline
