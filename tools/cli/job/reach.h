// Why nobody answers at the address of a coordinator: a command that was not
// answered looks with a connection of its own, so that people know whether to
// look at the job, the host or the network between.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace slackline {

enum class Reach {
  kUnresolved,   // The name means nothing here.
  kUnreachable,  // There is no way to the address.
  kTimedOut,     // Nobody answers there, not even to refuse.
  kRefused,      // The host answers, and nobody listens at the port.
  kSilent,       // Somebody listens, and has said nothing.
};

// Tries to connect with "tcp://host:port", for `wait_max` at most. `*detail`
// gets what the system says, or nothing.
Reach TryToReach(const std::string& endpoint, absl::Duration wait_max,
                 std::string* detail);

// A sentence without its period: what is seen, and what may be true of the job.
std::string ReachText(Reach reach, const std::string& endpoint,
                      const std::string& detail);

}  // namespace slackline
