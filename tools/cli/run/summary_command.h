// `slackline summary`: the results of finished runs in one table.
#pragma once

#include <string>
#include <vector>

namespace slackline {

struct SummaryOptions {
  std::vector<std::string> folders;
  bool json = false;  // A list with each run as in ReadRunJson().
};
// Returns the exit code: kExitFailed if one of the folders has no results.
int ShowSummaries(const SummaryOptions& options);

}  // namespace slackline
