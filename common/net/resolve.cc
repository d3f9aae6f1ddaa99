#include "common/net/resolve.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "common/host_port.h"
#include "common/status.h"

namespace slackline {
namespace {

std::string AddressText(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

}  // namespace

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
  const std::string text = AddressText(
      AF_INET, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr);
  freeaddrinfo(found);
  return text;
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> own;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return own;
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (i->ifa_addr->sa_family == AF_INET) {
      own.push_back(AddressText(
          AF_INET,
          &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr));
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      own.push_back(AddressText(
          AF_INET6,
          &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr));
    }
  }
  freeifaddrs(interfaces);
  return own;
}

bool IsOwnAddress(const std::string& address,
                  const std::vector<std::string>& own) {
  return absl::StartsWith(address, "127.") || address == "::1" ||
         std::find(own.begin(), own.end(), address) != own.end();
}

}  // namespace slackline
