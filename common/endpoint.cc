#include "common/endpoint.h"

#include <array>

#include "absl/strings/match.h"

namespace slackline {
namespace {

constexpr std::array<EndpointKind, 3> kKinds = {{
    {"shm://@", "shared memory", EndpointScope::kMemory, config::Limits::SHM},
    {"ipc://", "Unix socket", EndpointScope::kHost, config::Limits::IPC},
    {"tcp://", "tcp", EndpointScope::kNetwork, config::Limits::TCP},
}};

template <typename Wanted>
std::string First(const wire::Endpoints& endpoints, const Wanted& wanted) {
  for (const std::string& endpoint : endpoints.endpoint()) {
    const EndpointKind* const kind = FindEndpointKind(endpoint);
    if (kind != nullptr && wanted(*kind)) return endpoint;
  }
  return "";
}

}  // namespace

absl::Span<const EndpointKind> EndpointKinds() { return kKinds; }

const EndpointKind* FindEndpointKind(absl::string_view endpoint) {
  for (const EndpointKind& kind : kKinds) {
    if (absl::StartsWith(endpoint, kind.scheme)) return &kind;
  }
  return nullptr;
}

std::string EndpointOf(const wire::Endpoints& endpoints,
                       config::Limits::Transport transport) {
  return First(endpoints, [transport](const EndpointKind& kind) {
    return kind.transport == transport;
  });
}

std::string NetworkEndpoint(const wire::Endpoints& endpoints) {
  return First(endpoints, [](const EndpointKind& kind) {
    return kind.scope == EndpointScope::kNetwork;
  });
}

}  // namespace slackline
