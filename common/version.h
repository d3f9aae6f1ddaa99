// Which Slackline this is. The version stands in the top CMakeLists.txt only.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace slackline {

// "0.1.0".
std::string VersionNumber();
// What `git describe` said when the build was configured; "unknown" without
// git.
std::string BuildCommit();
// What `PROGRAM --version` prints: "slackline_server 0.1.0
// (v0.1.0-3-ga8b147a)".
std::string VersionText(absl::string_view program);

}  // namespace slackline
