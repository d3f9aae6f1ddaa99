#include "tools/cli/members/local_hosts.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/host_port.h"
#include "common/net/resolve.h"
#include "common/net/socket_address.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// A TCP socket bound to a port (0: any) of the host's address.
absl::StatusOr<Descriptor> BindSocket(const std::string& host, int port,
                                      bool reuse_address) {
  SL_ASSIGN_OR_RETURN(const std::string address, ResolveHost(host));
  SL_ASSIGN_OR_RETURN(const SocketAddress at, SocketAddress::Of(address, port));
  Descriptor bound(socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!bound.valid()) return SystemError("socket");
  if (reuse_address) {
    const int on = 1;
    setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(bound.get(), at.any(), at.size) != 0) {
    return SystemError(absl::StrCat(
        "listening at ",
        HostPort(host,
                 absl::string_view(port == 0 ? "*" : std::to_string(port)))));
  }
  return bound;
}

}  // namespace

std::vector<std::string> HostsElsewhere(const config::ClusterConfig& config) {
  std::vector<std::string> hosts = {config.coordinator().host()};
  for (const ServerProcess& server : ServerProcesses(config))
    hosts.push_back(server.host);
  for (const WorkerProcess& worker : WorkerProcesses(config))
    hosts.push_back(worker.host);
  const std::vector<std::string> own = OwnAddresses();
  std::vector<std::string> elsewhere;
  for (const std::string& host : hosts) {
    if (std::find(elsewhere.begin(), elsewhere.end(), host) !=
        elsewhere.end()) {
      continue;
    }
    const absl::StatusOr<std::string> address = ResolveHost(host);
    if (address.ok() && IsOwnAddress(*address, own)) continue;
    elsewhere.push_back(host);
  }
  return elsewhere;
}

absl::StatusOr<PortReservation> PortReservation::AnyFree(
    const std::string& host) {
  SL_ASSIGN_OR_RETURN(Descriptor bound,
                      BindSocket(host, 0, /*reuse_address=*/false));
  // Set only now: bound without it, the port was surely nobody's; with it,
  // Linux lets a server that sets it, too, bind and listen beside this silent
  // socket.
  const int on = 1;
  if (setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
    return SystemError("reserving a port");
  SL_ASSIGN_OR_RETURN(const SocketAddress at,
                      SocketAddress::OfSocket(bound.get()));
  return PortReservation(std::move(bound), at.port());
}

absl::Status CheckPortFree(const std::string& host, int port) {
  // As a server binds: a port with connections that are still fading is free.
  return BindSocket(host, port, /*reuse_address=*/true).status();
}

}  // namespace slackline
