// Where an engine starts processes before it knows their names (a headless
// service of Kubernetes), a name is waited for instead of failing at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slackline {

// What the wait needs of the world.
struct NameWaiter {
  std::function<absl::StatusOr<std::string>(const std::string& host)> resolve;
  std::function<absl::Time()> now;
  // Until it is worth another look; false: the process is to end.
  std::function<bool()> pause;
  std::function<void(const std::string& sentence)> say;
};
// Of this process, whose stop signals are blocked (StopSignal::Block()): one
// that waits ends the wait, and stays for the StopSignal.
NameWaiter NameWaiterHere();

// Until one of the hosts has an address; says once that it waits. `what` is
// their field: "coordinator.host". DeadlineExceeded names the hosts, what the
// resolver says of the last one, and the bound. Aborted: the process is to end.
absl::Status AwaitName(const std::string& what,
                       const std::vector<std::string>& hosts,
                       absl::Duration wait_max, const NameWaiter& waiter);

}  // namespace slackline
