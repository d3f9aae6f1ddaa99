// Names of tables in a config: '*' stands for any characters.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/block/config_problems.h"

namespace slackline {

bool FitsTablePattern(const std::string& pattern, const std::string& table);

// Adds to the field `table` of a block that its pattern fits none of these.
void CheckTablePattern(const std::string& pattern,
                       absl::Span<const std::string> tables,
                       const ConfigProblems& problems);

}  // namespace slackline
