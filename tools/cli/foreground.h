// Programs that work for a subcommand and share its terminal.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/exit_status.h"

namespace slackline {

// Runs program (a path) and arguments until the end; its output is that of this
// program. The user's Ctrl-C is passed on, the second one as a kill. Takes
// signals meanwhile (signals.h), so no SignalWatch may live. The error says
// that it could not be started.
absl::StatusOr<ExitStatus> RunInForeground(
    const std::vector<std::string>& command);

}  // namespace slackline
