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
// Of the binary that this code is in, in hexadecimal, as the linker wrote it
// into the file; equal for equal binaries. Empty: it wrote none.
std::string BuildId();
// Of the messages between processes (proto/). Goes up with every change by
// which processes of two versions would misunderstand each other.
inline constexpr int kProtocol = 8;
// What `PROGRAM --version` prints: "slackline_server 0.1.0
// (v0.1.0-3-ga8b147a)".
std::string VersionText(absl::string_view program);
// What stands behind the name there, of the program that this is the file of,
// which need not be started for that. Empty: it is none of Slackline, or too
// old to have it.
std::string VersionInFile(absl::string_view file);

}  // namespace slackline
