// Which name was meant by one that does not exist.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace slackline {

// The name that takes the fewest insertions, deletions and replacements of
// letters to come from `wrong`; of several the first. Empty if more than about
// a third of the letters would differ: then a suggestion misleads.
std::string NearestName(absl::string_view wrong,
                        const std::vector<std::string>& names);

}  // namespace slackline
