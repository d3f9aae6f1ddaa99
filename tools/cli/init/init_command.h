// `slackline init`: writes a config to begin with.
#pragma once

#include <CLI/CLI.hpp>

namespace slackline {

// `exit_code` outlives the app.
void AddInitCommand(CLI::App* app, int* exit_code);

}  // namespace slackline
