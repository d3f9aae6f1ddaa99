// `slackline summary`: the results of finished runs in one table.
#pragma once

#include <string>
#include <vector>

namespace slackline {

// Returns the exit code: kExitFailed if one of the folders has no results.
int ShowSummaries(const std::vector<std::string>& folders);

}  // namespace slackline
