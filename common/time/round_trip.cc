#include "common/time/round_trip.h"

#include <algorithm>

namespace slackline {

void RoundTrip::Add(absl::Duration sample) {
  sample = std::max(sample, absl::ZeroDuration());
  if (!measured_) {
    measured_ = true;
    smoothed_ = sample;
    variation_ = sample / 2;
    return;
  }
  // RFC 6298, 2.3: the variation first, with the old mean.
  const absl::Duration error = absl::AbsDuration(smoothed_ - sample);
  variation_ = variation_ * 0.75 + error * 0.25;
  smoothed_ = smoothed_ * 0.875 + sample * 0.125;
}

absl::Duration RoundTrip::Timeout(int doublings) const {
  absl::Duration timeout =
      std::max(options_.timeout_min, smoothed_ + 4 * variation_);
  for (int i = 0; i < doublings && timeout < options_.timeout_max; ++i)
    timeout *= 2;
  return std::min(timeout, options_.timeout_max);
}

}  // namespace slackline
