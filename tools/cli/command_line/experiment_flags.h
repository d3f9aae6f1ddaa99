// The flags of the subcommands for experiments.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/invocation.h"

namespace slackline {

// compare, ablate, replay, report and track. When one of them has run, its exit
// code is in `*exit_code`.
void AddExperimentCommands(const Invocation& invocation, CLI::App* app,
                           int* exit_code);

}  // namespace slackline
