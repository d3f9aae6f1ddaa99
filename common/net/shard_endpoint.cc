#include "common/net/shard_endpoint.h"

#include "absl/strings/str_cat.h"

namespace slackline {

absl::StatusOr<std::string> ShardEndpoint(const wire::ServerMember& server,
                                          int thread,
                                          const std::string& host_id,
                                          config::Limits::Transport transport) {
  const wire::Endpoints& endpoints = server.thread(thread);
  const bool same_host = server.host_id() == host_id;
  if (transport == config::Limits::IPC &&
      (!same_host || endpoints.ipc().empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("limits { transport: IPC }: server ", server.index(),
                     " is not on this host; use AUTO or TCP"));
  }
  const bool ipc =
      transport != config::Limits::TCP && same_host && !endpoints.ipc().empty();
  return ipc ? endpoints.ipc() : endpoints.tcp();
}

}  // namespace slackline
