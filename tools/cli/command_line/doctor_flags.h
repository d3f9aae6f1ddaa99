// The flags of `slackline doctor`.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/invocation.h"

namespace slackline {

// When the subcommand has run, its exit code is in `*exit_code`.
void AddDoctorCommand(const Invocation& invocation, CLI::App* app,
                      int* exit_code);

}  // namespace slackline
