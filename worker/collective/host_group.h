// How the ranks that train on CPUs all-reduce: through shared memory where they
// can, else over tcp.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/config/cluster_config.h"
#include "proto/cluster.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

// Whether ranks of one user on one host go through shared memory: the transport
// is AUTO or SHM. A link that is emulated is one over tcp.
bool MaySumInMemory(config::Limits::Transport transport,
                    const std::optional<LinkModel>& link);

// Whether this worker may all-reduce with others over tcp.
bool MaySumOverTcp(const config::ClusterConfig& config,
                   const WorkerProcess& self);

// Connects through shared memory if all ranks are of one user on one host, and
// MaySumInMemory(); else over tcp. All ranks find the same. Errors as of
// CreateTcpCollective(); InvalidArgument: it has to be SHM, and cannot be.
absl::StatusOr<ConnectedGroup> ConnectHostGroup(
    const GroupOptions& options, config::Limits::Transport transport);

}  // namespace slackline
