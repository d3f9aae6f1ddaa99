// The subcommands for checkpoints on the disk, and their flags.
#pragma once

#include <CLI/CLI.hpp>

namespace slackline {

// Adds the commands to `app`. When one of them is called, its exit code is in
// `*exit_code`.
void AddCheckpointCommands(CLI::App* app, int* exit_code);

}  // namespace slackline
