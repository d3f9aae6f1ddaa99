// Endpoints: where a process listens, as a text that begins with how it is
// reached, "tcp://10.0.0.1:7700". The one table of the ways that there are: a
// transport that brings another one adds a row here.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// From where, the best way first.
enum class EndpointScope {
  kMemory,   // By processes of one user on one host, without a socket.
  kHost,     // By processes of one user on one host.
  kNetwork,  // By every host.
};

struct EndpointKind {
  absl::string_view scheme;  // What the text begins with: "shm://@".
  absl::string_view name;    // For people: "shared memory".
  EndpointScope scope = EndpointScope::kNetwork;
  // The value of limits { transport } that takes this way alone.
  config::Limits::Transport transport = config::Limits::AUTO;
};

// The best way first.
absl::Span<const EndpointKind> EndpointKinds();
// Whether limits { transport } lets messages go this way.
bool IsAllowed(const EndpointKind& kind, config::Limits::Transport transport);
// Whether the only way that it allows is one within a host.
bool IsWithinHost(config::Limits::Transport transport);
// nullptr: it begins with none of the schemes.
const EndpointKind* FindEndpointKind(absl::string_view endpoint);

// The first endpoint of this kind. Empty: there is none.
std::string EndpointOf(const wire::Endpoints& endpoints,
                       config::Limits::Transport transport);
// One over the network, by which hosts reach it that know it as `host`.
std::string WithHost(absl::string_view endpoint, absl::string_view host);
// Whether it is one over the network: a scheme, a host and a port that is
// known.
bool HasHostAndPort(absl::string_view endpoint);
// The first endpoint at which every host reaches it: tcp, which each process
// has, is listed before others. Empty: there is none.
std::string NetworkEndpoint(const wire::Endpoints& endpoints);

}  // namespace slackline
