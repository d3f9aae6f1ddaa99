// The flags of `slackline data`.
#pragma once

#include <CLI/CLI.hpp>

namespace slackline {

// When one of the subcommands has run, its exit code is in `*exit_code`.
void AddDataCommands(CLI::App* app, int* exit_code);

}  // namespace slackline
