#include "common/endpoint.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/host_port.h"

namespace slackline {
namespace {

constexpr std::array<EndpointKind, 3> kKinds = {{
    {"shm://@", "shared memory", EndpointScope::kMemory, config::Limits::SHM},
    {"ipc://", "Unix socket", EndpointScope::kHost, config::Limits::IPC},
    {"tcp://", "tcp", EndpointScope::kNetwork, config::Limits::TCP},
}};

constexpr int kPortMax = 65535;

bool IsHostByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view(".-_:[]%").find(c) != absl::string_view::npos;
}

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

bool IsAllowed(const EndpointKind& kind, config::Limits::Transport transport) {
  return transport == config::Limits::AUTO || transport == kind.transport;
}

bool IsWithinHost(config::Limits::Transport transport) {
  return std::any_of(kKinds.begin(), kKinds.end(),
                     [&](const EndpointKind& kind) {
                       return kind.transport == transport &&
                              kind.scope != EndpointScope::kNetwork;
                     });
}

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

std::string WithHost(absl::string_view endpoint, absl::string_view host) {
  const absl::string_view scheme = FindEndpointKind(endpoint)->scheme;
  return absl::StrCat(
      scheme,
      HostPort(host, SplitHostPort(endpoint.substr(scheme.size())).second));
}

bool HasHostAndPort(absl::string_view endpoint) {
  const EndpointKind* const kind = FindEndpointKind(endpoint);
  if (kind == nullptr || kind->scope != EndpointScope::kNetwork) return false;
  endpoint.remove_prefix(kind->scheme.size());
  const size_t colon = endpoint.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view host = endpoint.substr(0, colon);
  const absl::string_view port = endpoint.substr(colon + 1);
  int number = 0;
  return std::all_of(host.begin(), host.end(), IsHostByte) &&
         std::all_of(port.begin(), port.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(port, &number) && number >= 1 && number <= kPortMax;
}

std::string NetworkEndpoint(const wire::Endpoints& endpoints) {
  return First(endpoints, [](const EndpointKind& kind) {
    return kind.scope == EndpointScope::kNetwork;
  });
}

}  // namespace slackline
