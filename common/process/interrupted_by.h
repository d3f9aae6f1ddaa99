// How a process says that a signal has reached it, and how another one reads it
// in the reason of a job's end.
#pragma once

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace slackline {

// As in "worker 2 was interrupted by SIGTERM".
inline constexpr char kInterruptedBy[] = " was interrupted by ";

// Somebody takes the machine away, or ends the session: no user of the job has
// asked for its end.
inline bool IsTakenAway(absl::string_view reason) {
  const size_t at = reason.find(kInterruptedBy);
  if (at == absl::string_view::npos) return false;
  const absl::string_view signal =
      reason.substr(at + sizeof(kInterruptedBy) - 1);
  return absl::StartsWith(signal, "SIGTERM") ||
         absl::StartsWith(signal, "SIGHUP");
}

}  // namespace slackline
