#include "tools/cli/members/local_hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/host_port.h"
#include "common/net/resolve.h"
#include "common/status.h"

namespace slackline {
namespace {

// A socket address of IPv4 or IPv6.
struct Place {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  sockaddr* any() { return reinterpret_cast<sockaddr*>(&storage); }
};

Place PlaceOf(const std::string& address, int port) {
  Place place;
  if (IsIpv6(address)) {
    auto* const at = reinterpret_cast<sockaddr_in6*>(&place.storage);
    at->sin6_family = AF_INET6;
    at->sin6_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET6, address.c_str(), &at->sin6_addr);
    place.size = sizeof(*at);
  } else {
    auto* const at = reinterpret_cast<sockaddr_in*>(&place.storage);
    at->sin_family = AF_INET;
    at->sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address.c_str(), &at->sin_addr);
    place.size = sizeof(*at);
  }
  return place;
}

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// A TCP socket bound to a port (0: any) of the host's address.
absl::StatusOr<int> BindSocket(const std::string& host, int port,
                               bool reuse_address) {
  SL_ASSIGN_OR_RETURN(const std::string address, ResolveHost(host));
  Place at = PlaceOf(address, port);
  const int fd = socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SystemError("socket");
  if (reuse_address) {
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(fd, at.any(), at.size) != 0) {
    const absl::Status failed = SystemError(absl::StrCat(
        "listening at ",
        HostPort(host,
                 absl::string_view(port == 0 ? "*" : std::to_string(port)))));
    close(fd);
    return failed;
  }
  return fd;
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
  SL_ASSIGN_OR_RETURN(const int fd,
                      BindSocket(host, 0, /*reuse_address=*/false));
  // Set only now: bound without it, the port was surely nobody's; with it,
  // Linux lets a server that sets it, too, bind and listen beside this silent
  // socket.
  const int on = 1;
  Place at;
  at.size = sizeof(at.storage);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      getsockname(fd, at.any(), &at.size) != 0) {
    const absl::Status failed = SystemError("reserving a port");
    close(fd);
    return failed;
  }
  return PortReservation(
      fd, ntohs(at.storage.ss_family == AF_INET6
                    ? reinterpret_cast<sockaddr_in6*>(&at.storage)->sin6_port
                    : reinterpret_cast<sockaddr_in*>(&at.storage)->sin_port));
}

PortReservation::PortReservation(PortReservation&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

PortReservation::~PortReservation() {
  if (fd_ >= 0) close(fd_);
}

absl::Status CheckPortFree(const std::string& host, int port) {
  // As a server binds: a port with connections that are still fading is free.
  SL_ASSIGN_OR_RETURN(const int fd,
                      BindSocket(host, port, /*reuse_address=*/true));
  close(fd);
  return absl::OkStatus();
}

}  // namespace slackline
