// RoundTrip: how long a question to one peer may stay unanswered before it is
// asked again, from measured round trips (RFC 6298).
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include "absl/time/time.h"

namespace slackline {

class RoundTrip {
 public:
  struct Options {
    // The time-out before the first measurement, and its smallest value.
    // RFC 6298 says 1 s for both; for messages within one rack less is right.
    absl::Duration timeout_min;
    // Nothing is asked again later than this. It keeps a round trip that was
    // measured while the peer stood still, which says nothing of the link, from
    // making the next question wait as long. At least timeout_min.
    absl::Duration timeout_max;
  };
  explicit RoundTrip(const Options& options) : options_(options) {}

  // An answer came `sample` after its question. Which transmission it answers
  // must be certain, else nothing may be added (Karn's algorithm).
  void Add(absl::Duration sample);

  bool measured() const { return measured_; }
  // SRTT of RFC 6298; 0 before the first measurement.
  absl::Duration smoothed() const { return smoothed_; }

  // RTO of RFC 6298, doubled `doublings` times, at most timeout_max (2.5).
  absl::Duration Timeout(int doublings = 0) const;

 private:
  Options options_;
  bool measured_ = false;
  absl::Duration smoothed_;
  absl::Duration variation_;
};

}  // namespace slackline
