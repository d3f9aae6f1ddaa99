// Host names into addresses that a socket can be bound to.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace slackline {

// The first IPv4 address of `host` ("localhost", "node7", or a numeric address
// of IPv4 or IPv6, which is returned as it is: those of one machine agree about
// names). NotFound names the host and what the resolver says.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

}  // namespace slackline
