// AwakeClock: how much of the time a core was there to hear others.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace slackline {

// A core asks to be run at least every `gap_max`. If the time between two runs
// is longer, its process was stopped, suspended or kept from the processor in
// between, and could hear nobody: only `gap_max` of that time counts. A core
// that measures the silence of others in awake time does not take its own
// absence for their death.
//
// Deterministic state machine: no clocks of its own. Thread-compatible.
class AwakeClock {
 public:
  // gap_max > 0.
  explicit AwakeClock(absl::Duration gap_max) : gap_max_(gap_max) {}

  // From here on longer or shorter gaps count.
  void SetGapMax(absl::Duration gap_max) { gap_max_ = gap_max; }

  // The core runs now: to be called at the beginning of each of its events. The
  // first call starts the clock. Returns by how much the gap since the last run
  // exceeded what counts; zero if the core is in time.
  absl::Duration Run(absl::Time now) {
    const absl::Duration late = Late(now);
    missed_ += late;
    last_ = now;
    return late;
  }

  // `now` in awake time: real time less all that was missed. To be compared
  // with other results of At() only. A `now` before the last run counts as the
  // last run.
  absl::Time At(absl::Time now) const {
    return std::max(now, last_) - missed_ - Late(now);
  }
  // When awake time will have come to `awake`, if the core is run in time.
  absl::Time RealTimeOf(absl::Time awake) const { return awake + missed_; }

  // The core has to be run by then.
  absl::Time NextRun() const { return last_ + gap_max_; }
  // In all.
  absl::Duration missed() const { return missed_; }

 private:
  absl::Duration Late(absl::Time now) const {
    if (last_ == absl::InfinitePast()) return absl::ZeroDuration();
    return std::max(now - last_ - gap_max_, absl::ZeroDuration());
  }

  absl::Duration gap_max_;
  absl::Time last_ = absl::InfinitePast();
  absl::Duration missed_;
};

}  // namespace slackline
