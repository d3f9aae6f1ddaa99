// Times of steps and answers, for people.
#pragma once

#include <string>

#include "absl/strings/str_format.h"

namespace slackline {

inline std::string TimeText(double seconds) {
  const double ms = 1000 * seconds;
  return ms < 10      ? absl::StrFormat("%.1f ms", ms)
         : ms < 10000 ? absl::StrFormat("%.0f ms", ms)
                      : absl::StrFormat("%.0f s", seconds);
}

}  // namespace slackline
