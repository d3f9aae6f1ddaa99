// Whether bytes are UTF-8, as texts in messages and in JSON have to be.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slackline {

// By RFC 3629: without longer forms than needed, surrogates, and what is beyond
// U+10FFFF.
inline bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t more = first < 0x80    ? 0
                        : first < 0xC2  ? 4  // None begins so.
                        : first < 0xE0  ? 1
                        : first < 0xF0  ? 2
                        : first <= 0xF4 ? 3
                                        : 4;
    if (more == 4 || text.size() - i <= more) return false;
    for (size_t k = 1; k <= more; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xC0) != 0x80) return false;
    }
    if (more >= 2) {
      const auto second = static_cast<uint8_t>(text[i + 1]);
      if ((first == 0xE0 && second < 0xA0) ||
          (first == 0xED && second > 0x9F) ||
          (first == 0xF0 && second < 0x90) ||
          (first == 0xF4 && second > 0x8F)) {
        return false;
      }
    }
    i += more + 1;
  }
  return true;
}

// InvalidArgument: the path that a flag names is none. Other processes and the
// files of a run could not name what is in it.
inline absl::Status CheckPathText(absl::string_view flag,
                                  absl::string_view path) {
  if (IsUtf8(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": the path '", absl::CHexEscape(path),
      "' is not UTF-8, so neither other processes nor summary.json could name "
      "what is in it; choose another name"));
}

}  // namespace slackline
