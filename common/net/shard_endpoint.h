// Which of a shard thread's endpoints to connect to.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/host_id.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// What decides whether it reaches endpoints of others within its host.
struct LocalProcess {
  std::string host_id = HostId();
  uint32_t uid = geteuid();
};

// The endpoints of thread `thread`, which the server has, at which the process
// may reach it, the best one first, at least one: shared memory or a Unix
// socket among processes of one user on one host, and tcp, unless `transport`
// says otherwise. InvalidArgument: it asks for what cannot be.
absl::StatusOr<std::vector<std::string>> ShardEndpoints(
    const wire::ServerMember& server, int thread, const LocalProcess& self,
    config::Limits::Transport transport);

// Whether that is through a socket, and not through memory.
bool IsBySocket(const wire::ServerMember& server, int thread,
                const LocalProcess& self, config::Limits::Transport transport);

}  // namespace slackline
