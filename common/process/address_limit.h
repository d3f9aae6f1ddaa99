// The bound on a process's addresses (ulimit -v), which batch systems set.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace slackline {

// Whether the process can have so many bytes of addresses more. Libraries end
// it, or try for ever, when they get none. ResourceExhausted names the bound
// and what it has to be.
absl::Status CheckAddressesLeft(size_t bytes);

}  // namespace slackline
