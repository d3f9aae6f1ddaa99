// Waitable: what a Poller can wait for.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slackline {

class Waitable {
 public:
  virtual ~Waitable() = default;

  // File descriptors that become readable when there may be news. The same
  // from the first call on.
  virtual std::vector<int> Descriptors() const = 0;

  // How long a wait for the descriptors may last: zero if there is something to
  // receive already, infinite if only a descriptor can bring news, else until
  // the object has to be looked at (Receive()) without any.
  virtual absl::StatusOr<absl::Duration> WaitMax() = 0;
};

}  // namespace slackline
