#include "common/net/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>

#include "common/host_port.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::string> ResolveHost(const std::string& host) {
  if (IsIpv6(host)) return CanonicalHost(host);
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat(
        "host ", host, ": ", gai_strerror(error),
        "; write its numeric address, of IPv4 or IPv6, into the config"));
  }
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr,
            text, sizeof(text));
  freeaddrinfo(found);
  return std::string(text);
}

}  // namespace slackline
