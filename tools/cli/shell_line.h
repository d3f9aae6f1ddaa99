// Commands as one would type them.
#pragma once

#include <string>
#include <vector>

namespace slackline {

// The words with blanks between them, quoted where a shell would otherwise
// change them.
std::string ShellLine(const std::vector<std::string>& words);

}  // namespace slackline
