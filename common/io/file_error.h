// What a call for a file says when it fails.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace slackline {

// "write PATH: No space left on device; free some space", of an errno.
// NotFound: the file or its folder is not there; ResourceExhausted: there is no
// space; Unavailable: all others.
absl::Status FileError(absl::string_view attempt, const std::string& path,
                       int error_number);

}  // namespace slackline
