// Which of a shard thread's endpoints to connect to.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// The endpoint of thread `thread`, which the server has, for a process on the
// host `host_id` (common/net/host_id.h): ipc within a host, else tcp, unless
// `transport` says otherwise. InvalidArgument: it asks for ipc where that
// cannot be.
absl::StatusOr<std::string> ShardEndpoint(const wire::ServerMember& server,
                                          int thread,
                                          const std::string& host_id,
                                          config::Limits::Transport transport);

}  // namespace slackline
