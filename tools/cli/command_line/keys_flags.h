// The command line of `slackline keys`.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/invocation.h"

namespace slackline {

// `exit_code` outlives the app.
void AddKeysCommands(const Invocation& invocation, CLI::App* app,
                     int* exit_code);

}  // namespace slackline
