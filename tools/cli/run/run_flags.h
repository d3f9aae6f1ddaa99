// The flags of `slackline run` and `slackline summary`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace slackline {

// `bin_dir` is the default of --bin-dir. When one of the subcommands has run,
// its exit code is in `*exit_code`.
void AddRunCommands(const std::string& bin_dir, CLI::App* app, int* exit_code);

}  // namespace slackline
