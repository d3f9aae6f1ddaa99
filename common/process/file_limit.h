// How many files and sockets the process may have open.
#pragma once

#include "absl/status/status.h"

namespace slackline {

// Raises the limit to what the process may raise it to by itself. A shard
// thread and each of its peers take a few descriptors, and the usual limit is
// 1024. Unavailable, with the system's reason, if that fails; the limit is then
// as it was.
absl::Status RaiseFileLimit();

}  // namespace slackline
