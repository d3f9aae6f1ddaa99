#include "common/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace slackline {
namespace {

std::optional<in6_addr> ParseIpv6(absl::string_view host) {
  in6_addr address{};
  if (!absl::StrContains(host, ':') ||
      inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) {
    return std::nullopt;
  }
  return address;
}

}  // namespace

bool IsIpv6(absl::string_view host) { return ParseIpv6(host).has_value(); }

std::string CanonicalHost(absl::string_view host) {
  const std::optional<in6_addr> address = ParseIpv6(host);
  if (!address.has_value()) return absl::AsciiStrToLower(host);
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &*address, text, sizeof(text));
  return text;
}

std::string HostPort(absl::string_view host, absl::string_view port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

std::string HostPort(absl::string_view host, int port) {
  return HostPort(host, absl::string_view(absl::StrCat(port)));
}

std::string TcpEndpoint(absl::string_view host, int port) {
  return absl::StrCat("tcp://", HostPort(host, port));
}

std::pair<std::string, std::string> SplitHostPort(absl::string_view text) {
  absl::ConsumePrefix(&text, "tcp://");
  const size_t colon = text.rfind(':');
  const size_t bracket = text.rfind(']');
  const bool has_port = colon != absl::string_view::npos &&
                        (bracket == absl::string_view::npos || bracket < colon);
  absl::string_view host = has_port ? text.substr(0, colon) : text;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return {std::string(host),
          std::string(has_port ? text.substr(colon + 1) : "")};
}

}  // namespace slackline
