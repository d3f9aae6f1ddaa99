// Text from outside that goes into a message, a log or a view.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slackline {

// The first bytes_max bytes of the text, and "..." if there were more. A
// character of UTF-8 stays whole: JSON takes no part of one.
inline std::string Shortened(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  while (bytes_max > 0 &&
         (static_cast<unsigned char>(text[bytes_max]) & 0xC0) == 0x80) {
    --bytes_max;
  }
  return absl::StrCat(text.substr(0, bytes_max), "...");
}

}  // namespace slackline
