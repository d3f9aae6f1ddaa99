// The flags of `slackline run` and `slackline summary`.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/invocation.h"
#include "tools/cli/run/run_options.h"

namespace slackline {

// All flags of `slackline run`. `*run` must outlive the parsing.
void AddRunFlags(CLI::App* command, RunOptions* run);

// When one of the subcommands has run,
// its exit code is in `*exit_code`.
void AddRunCommands(const Invocation& invocation, CLI::App* app,
                    int* exit_code);

}  // namespace slackline
