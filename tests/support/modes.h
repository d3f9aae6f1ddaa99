// Modes for tests, as people write them.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"

namespace slackline {

// Of "bsp", "ssp:3" and so on; fatal if it is no mode.
inline sync::Mode ModeOf(absl::string_view text) {
  const std::optional<sync::Mode> mode = ModeFromText(text);
  SL_CHECK(mode.has_value(), "a test names a mode that there is not");
  return *mode;
}

}  // namespace slackline
