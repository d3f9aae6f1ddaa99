// Files that are there completely or not at all, whenever the machine stops.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace slackline {

// Writes `parts`, one after the other, to `path`: into a temporary file beside
// it
// (`path` and ".partial-" and the process id), synced to the disk, then
// renamed. On failure `path` is as it was, the temporary file is gone, and the
// error names path, call and reason. One thread of a process at a time may
// write to one path.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> parts);

}  // namespace slackline
