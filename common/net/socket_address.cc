#include "common/net/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/time/time_source.h"

namespace slackline {

absl::StatusOr<SocketAddress> SocketAddress::Of(const std::string& address,
                                                int port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, ": ", gai_strerror(error)));
  }
  SocketAddress of;
  std::memcpy(&of.storage, found->ai_addr, found->ai_addrlen);
  of.size = found->ai_addrlen;
  freeaddrinfo(found);
  return of;
}

absl::StatusOr<SocketAddress> SocketAddress::OfSocket(int socket) {
  SocketAddress of;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&of.storage), &of.size) !=
      0) {
    return absl::UnavailableError(
        absl::StrCat("getsockname: ", std::strerror(errno)));
  }
  return of;
}

bool AwaitEvents(int socket, short events, absl::Time end) {
  const TimeSource time;
  pollfd file = {.fd = socket, .events = events, .revents = 0};
  int ready = 0;
  do {
    const int64_t left = absl::ToInt64Milliseconds(
        absl::Ceil(end - time.Now(), absl::Milliseconds(1)));
    ready = poll(&file, 1, static_cast<int>(std::max<int64_t>(left, 0)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

int ConnectWithin(absl::Duration wait_max, int socket, const sockaddr* to,
                  socklen_t size) {
  if (connect(socket, to, size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!AwaitEvents(socket, POLLOUT, TimeSource().Now() + wait_max))
    return ETIMEDOUT;
  int error = 0;
  socklen_t error_size = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0)
    return errno;
  return error;
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

}  // namespace slackline
