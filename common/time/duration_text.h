// Durations as sentences for people say them.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace slackline {

// "1m2.345s"; rounded towards zero.
inline std::string DurationText(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

}  // namespace slackline
