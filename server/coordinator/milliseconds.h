// Durations as the coordinator's sentences say them.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace slackline {

// "5000 ms"; rounded towards zero.
inline std::string MillisecondsText(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
}

}  // namespace slackline
