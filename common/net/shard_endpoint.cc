#include "common/net/shard_endpoint.h"

#include "absl/strings/str_cat.h"
#include "common/endpoint.h"

namespace slackline {
namespace {

std::string WhyNot(const wire::ServerMember& server, uint32_t uid,
                   const LocalProcess& self,
                   config::Limits::Transport transport) {
  const bool is_within_host = IsWithinHost(transport);
  if (is_within_host && server.host_id() != self.host_id)
    return " is not on this host";
  if (is_within_host && uid != self.uid) {
    return absl::StrCat(" is of another user (uid ", uid,
                        "; this process is of ", self.uid, ")");
  }
  return " offers none, as its log says";
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ShardEndpoints(
    const wire::ServerMember& server, int thread, const LocalProcess& self,
    config::Limits::Transport transport) {
  const wire::Endpoints& endpoints = server.thread(thread);
  const bool is_near =
      server.host_id() == self.host_id && endpoints.uid() == self.uid;
  std::vector<std::string> best_first;
  for (const EndpointKind& kind : EndpointKinds()) {
    if (!IsAllowed(kind, transport)) continue;
    if (kind.scope != EndpointScope::kNetwork && !is_near) continue;
    std::string endpoint = EndpointOf(endpoints, kind.transport);
    if (!endpoint.empty()) best_first.push_back(std::move(endpoint));
  }
  if (!best_first.empty()) return best_first;
  return absl::InvalidArgumentError(absl::StrCat(
      "limits { transport: ", config::Limits::Transport_Name(transport),
      " }: server ", server.index(),
      WhyNot(server, endpoints.uid(), self, transport), "; use AUTO or TCP"));
}

bool IsBySocket(const wire::ServerMember& server, int thread,
                const LocalProcess& self, config::Limits::Transport transport) {
  const auto endpoints = ShardEndpoints(server, thread, self, transport);
  if (!endpoints.ok()) return false;
  const EndpointKind* const kind = FindEndpointKind(endpoints->front());
  return kind == nullptr || kind->scope != EndpointScope::kMemory;
}

}  // namespace slackline
