// The command line of `slackline keys`.
#pragma once

#include <CLI/CLI.hpp>

namespace slackline {

// `exit_code` outlives the app.
void AddKeysCommands(CLI::App* app, int* exit_code);

}  // namespace slackline
