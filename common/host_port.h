// A host and a port as one text. An IPv6 address stands in brackets there, and
// without them where it is alone, as in the config.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace slackline {

// A numeric IPv6 address, without brackets and without a zone ("%eth0").
bool IsIpv6(absl::string_view host);

// One spelling for each numeric IPv6 address; lower case for all else.
std::string CanonicalHost(absl::string_view host);

// "node7:7700", "10.0.0.5:7700", "[fd00::5]:7700".
std::string HostPort(absl::string_view host, absl::string_view port);
std::string HostPort(absl::string_view host, int port);
// "tcp://" and that.
std::string TcpEndpoint(absl::string_view host, int port);

// Host, without brackets, and port of HostPort() or TcpEndpoint(). The port is
// empty if there is none.
std::pair<std::string, std::string> SplitHostPort(absl::string_view text);

}  // namespace slackline
