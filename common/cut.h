// Text from outside that goes into a message, a log or a view.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slackline {

// The first bytes_max bytes of the text, and "..." if there were more.
inline std::string Cut(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  return absl::StrCat(text.substr(0, bytes_max), "...");
}

}  // namespace slackline
