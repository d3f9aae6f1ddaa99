#include "worker/client/message_size.h"

#include <algorithm>

namespace slackline {
namespace {

constexpr double kGain = 0.125;  // As of RoundTrip.

}  // namespace

void MessageSize::Add(size_t bytes, absl::Duration took) {
  if (bytes < options_.bytes_min) return;
  const double share =
      took > absl::ZeroDuration() ? absl::FDivDuration(options_.time, took) : 1;
  // So that one lucky answer does not count for many.
  const double carried = std::min(static_cast<double>(bytes) * share,
                                  static_cast<double>(options_.bytes_max));
  carried_ += kGain * (carried - carried_);
}

size_t MessageSize::bytes() const {
  return std::clamp(static_cast<size_t>(carried_), options_.bytes_min,
                    options_.bytes_max);
}

}  // namespace slackline
