// What a process says that is refused where its coordinator should be, because
// of keys.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace slackline {

// Who is refused for longer (LinkState::kRefused, kDropped) is not refused by a
// process that just begins, or ends.
inline constexpr absl::Duration kRefusedMax = absl::Seconds(3);

// PermissionDenied.
absl::Status RefusedStatus(const std::string& endpoint);
// A sentence without an end, of LinkState::kDropped.
std::string DroppedText(const std::string& endpoint);

}  // namespace slackline
