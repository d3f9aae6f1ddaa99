#include "common/net/shard_endpoint.h"

#include "absl/strings/str_cat.h"

namespace slackline {

absl::StatusOr<std::vector<std::string>> ShardEndpoints(
    const wire::ServerMember& server, int thread, const LocalProcess& self,
    config::Limits::Transport transport) {
  const wire::Endpoints& endpoints = server.thread(thread);
  const bool same_host = server.host_id() == self.host_id;
  const bool same_user = endpoints.uid() == self.uid;
  const auto local = [&](const std::string& endpoint)
      -> absl::StatusOr<std::vector<std::string>> {
    if (same_host && same_user && !endpoint.empty())
      return std::vector{endpoint};
    return absl::InvalidArgumentError(absl::StrCat(
        "limits { transport: ", config::Limits::Transport_Name(transport),
        " }: server ", server.index(),
        !same_host ? " is not on this host"
        : !same_user
            ? absl::StrCat(" is of another user (uid ", endpoints.uid(),
                           "; this process is of ", self.uid, ")")
            : " offers none, as its log says",
        "; use AUTO or TCP"));
  };
  if (transport == config::Limits::SHM) return local(endpoints.shm());
  if (transport == config::Limits::IPC) return local(endpoints.ipc());
  std::vector<std::string> best_first;
  if (transport != config::Limits::TCP && same_host && same_user) {
    if (!endpoints.shm().empty()) best_first.push_back(endpoints.shm());
    if (!endpoints.ipc().empty()) best_first.push_back(endpoints.ipc());
  }
  best_first.push_back(endpoints.tcp());
  return best_first;
}

bool IsBySocket(const wire::ServerMember& server, int thread,
                const LocalProcess& self, config::Limits::Transport transport) {
  const auto endpoints = ShardEndpoints(server, thread, self, transport);
  return endpoints.ok() && endpoints->front() != server.thread(thread).shm();
}

}  // namespace slackline
