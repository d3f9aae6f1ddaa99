// Which of a shard thread's endpoints to connect to.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// The endpoints of thread `thread`, which the server has, at which a process on
// the host `host_id` (common/net/host_id.h) may reach it, the best one first,
// at least one: shared memory or ipc within a host, else tcp, unless
// `transport` says otherwise. InvalidArgument: it asks for what cannot be.
absl::StatusOr<std::vector<std::string>> ShardEndpoints(
    const wire::ServerMember& server, int thread, const std::string& host_id,
    config::Limits::Transport transport);

}  // namespace slackline
