// The time, for drivers: main() makes a TimeSource and hands it down.
#pragma once

#include "absl/time/time.h"

namespace slackline {

// Two clocks. Now() never steps: leases, heartbeats, retries and deadlines run
// on it. WallNow() is the time of day, for people: logs, names of folders. An
// administrator or NTP may set it, by an hour in either direction, so nothing
// is ever decided by it.
//
// A value, thread-safe.
class TimeSource {
 public:
  // For tests: the time of day jumps once.
  struct WallClockStep {
    absl::Duration by;     // Below zero: backwards.
    absl::Duration after;  // Since the TimeSource was made.
  };
  TimeSource() = default;
  explicit TimeSource(const WallClockStep& step)
      : step_by_(step.by), step_at_(Now() + step.after) {}

  // Time since some moment in the past, which is the same in all processes of a
  // host until it is started anew. Stands still while the host is suspended.
  absl::Time Now() const;
  absl::Time WallNow() const;

 private:
  absl::Duration step_by_;
  absl::Time step_at_ = absl::InfiniteFuture();  // By Now().
};

}  // namespace slackline
