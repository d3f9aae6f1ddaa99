// Where a program of a job is when it calls a collective of the workers'
// programs: all workers compute the same place from the clock, and find each
// other by it (server/coordinator/gathers.h). Places are in the order in which
// a program comes to them.
#pragma once

#include <cstdint>
#include <optional>

#include "common/ids.h"

namespace slackline {

// Before the first batch.
inline constexpr uint64_t kPlaceBeforeAll = 0;

// In the step from `clock` to the clock after it.
inline uint64_t PlaceInStep(Clock clock) {
  return 2 * static_cast<uint64_t>(clock) + 1;
}

// Between two steps: after the one that has led to `clock`.
inline uint64_t PlaceAfterSteps(Clock clock) {
  return 2 * static_cast<uint64_t>(clock);
}

// The same of a program that knows its next step, if it does. One that is of
// another epoch makes it the end of the epoch, whichever of its last steps this
// worker has done.
inline uint64_t PlaceBetweenSteps(Clock clock, std::optional<Clock> next,
                                  int64_t steps_per_epoch) {
  const Clock end =
      (clock + steps_per_epoch - 1) / steps_per_epoch * steps_per_epoch;
  return PlaceAfterSteps(next.has_value() && *next >= end ? end : clock);
}

}  // namespace slackline
