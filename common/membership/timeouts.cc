#include "common/membership/timeouts.h"

#include <algorithm>
#include <cstdint>

#include "common/block/bounds.h"

namespace slackline {

void FillTimeouts(config::Limits* limits) {
  if (!limits->has_stall_timeout_ms()) {
    limits->set_stall_timeout_ms(std::max(
        limits->lease_ms(),
        std::min(limits->stall_timeout_ms(), limits->wait_timeout_ms() / 2)));
  }
  if (!limits->has_coordinator_timeout_ms()) {
    const int64_t two_leases = 2 * int64_t{limits->lease_ms()};
    limits->set_coordinator_timeout_ms(static_cast<int32_t>(std::clamp<int64_t>(
        two_leases, limits->coordinator_timeout_ms(), kTimeoutMsMax)));
  }
}

void CheckTimeouts(const config::Limits& limits,
                   const ConfigProblems& problems) {
  problems.Range("lease_ms", limits.lease_ms(), 200, kHourMs);
  problems.Range("start_timeout_ms", limits.start_timeout_ms(), 1000,
                 kTimeoutMsMax);
  const bool wait_in_range = problems.Range(
      "wait_timeout_ms", limits.wait_timeout_ms(), 1, kTimeoutMsMax);
  // Else a wait gives up before a dead process can be found out.
  if (wait_in_range && limits.wait_timeout_ms() <= limits.lease_ms()) {
    problems.Add(
        "wait_timeout_ms",
        absl::StrCat("value is ", limits.wait_timeout_ms(),
                     "; more than limits.lease_ms (", limits.lease_ms(),
                     ") is required, so that a dead process is "
                     "noticed before others give up"));
  }
  const bool stall_in_range = problems.Range(
      "stall_timeout_ms", limits.stall_timeout_ms(), limits.lease_ms(),
      kTimeoutMsMax,
      "at least limits.lease_ms, in which a worker tells several times what it "
      "does");
  if (wait_in_range && stall_in_range &&
      limits.wait_timeout_ms() > limits.lease_ms() &&
      limits.stall_timeout_ms() >= limits.wait_timeout_ms()) {
    problems.Add("stall_timeout_ms",
                 absl::StrCat("value is ", limits.stall_timeout_ms(),
                              "; less than limits.wait_timeout_ms (",
                              limits.wait_timeout_ms(),
                              ") is required, so that who holds others up is "
                              "removed before they give up; leave it out for a "
                              "value that fits"));
  }
  problems.Range("coordinator_timeout_ms", limits.coordinator_timeout_ms(),
                 2 * int64_t{limits.lease_ms()}, kTimeoutMsMax,
                 "at least two times limits.lease_ms");
  problems.Range("save_timeout_ms", limits.save_timeout_ms(), 0, kTimeoutMsMax,
                 "0 tries once");
}

}  // namespace slackline
