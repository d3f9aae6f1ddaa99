// The flags of `slackline run` and `slackline summary`.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/invocation.h"

namespace slackline {

// When one of the subcommands has run,
// its exit code is in `*exit_code`.
void AddRunCommands(const Invocation& invocation, CLI::App* app,
                    int* exit_code);

}  // namespace slackline
