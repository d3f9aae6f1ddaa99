// What every subcommand says to its user: results on stdout, the rest on
// stderr, and an exit code for the shell.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace slackline {

void PrintResult(const std::string& text);
// A line on stderr.
void Say(const std::string& text);

// Says what went wrong with `command`. Returns kExitUsage for InvalidArgument,
// which stands for what the user has typed, and kExitFailed for all else.
int Fail(absl::string_view command, const absl::Status& status);

}  // namespace slackline
