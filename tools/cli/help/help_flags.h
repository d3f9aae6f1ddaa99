// `slackline completion` and `slackline manual`.
#pragma once

#include <CLI/CLI.hpp>

namespace slackline {

// Added last: they tell of the others. `exit_code` outlives the app.
void AddHelpCommands(CLI::App* app, int* exit_code);

}  // namespace slackline
