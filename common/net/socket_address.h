// Addresses of IPv4 and IPv6 with a port, as the calls for sockets take them.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slackline {

struct SocketAddress {
  // InvalidArgument: `address` is not numeric, as ResolveHost() returns it.
  static absl::StatusOr<SocketAddress> Of(const std::string& address, int port);
  // Where the socket is bound. Unavailable: the system does not say.
  static absl::StatusOr<SocketAddress> OfSocket(int socket);

  int family() const { return storage.ss_family; }
  int port() const;
  const sockaddr* any() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }

  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
};

// Waits for `events` of poll() until `end`. False: they have not come.
bool AwaitEvents(int socket, short events, absl::Time end);
// Connects a socket that does not block. The errno, or 0: it is connected.
// ETIMEDOUT: the other side has not answered, not even within `wait_max`.
int ConnectWithin(absl::Duration wait_max, int socket, const sockaddr* to,
                  socklen_t size);

}  // namespace slackline
