// ClockOffset: how far the coordinator's monotonic clock is ahead of the one of
// this process, from round trips of heartbeats: what the coordinator read lies
// between sending and receiving (Cristian, "Probabilistic clock
// synchronization", 1989), and from then on the clocks drift.
//
// Deterministic: the times go in. Thread-compatible. Fixed memory.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace slackline {

class ClockOffset {
 public:
  struct Estimate {
    absl::Duration offset;  // To be added to a time of this process.
    absl::Duration bound;   // So far off it may be, at most.
  };
  // Linux slews a clock by at most 500 ppm, so two drift apart by less than
  // this; as long as nobody steps a rate by more, as chrony may.
  static constexpr double kDriftMax = 1e-3;

  // The coordinator's clock read `heard` between `sent` and `received` of this
  // process. What does not fit what is known is another coordinator's clock:
  // everything before is forgotten. A `received` before `sent` is ignored.
  void OnRoundTrip(absl::Time sent, absl::Time heard, absl::Time received);

  // nullopt: nothing has been measured.
  std::optional<Estimate> At(absl::Time now) const;

 private:
  struct Sample {
    absl::Duration offset;
    absl::Duration bound;  // How far off it may be at `received`.
    absl::Time received;
  };
  static absl::Duration BoundOf(const Sample& sample, absl::Time now);

  std::deque<Sample> samples_;  // The last ones, oldest first.
};

}  // namespace slackline
