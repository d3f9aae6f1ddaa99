// Host names into addresses that a socket can be bound to, and which addresses
// are this machine's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace slackline {

// The first IPv4 address of `host` ("localhost", "node7", or a numeric address
// of IPv4 or IPv6, which is returned as it is: those of one machine agree about
// names). NotFound names the host and what the resolver says.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

// Addresses of this machine's network interfaces.
std::vector<std::string> OwnAddresses();

// True for a loopback address and for one of `own`.
bool IsOwnAddress(const std::string& address,
                  const std::vector<std::string>& own);

}  // namespace slackline
