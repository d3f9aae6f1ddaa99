// Commands as one would type them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace slackline {

// The words with blanks between them, quoted where a shell would otherwise
// change them.
std::string ShellLine(const std::vector<std::string>& words);

// The words of a line, as a shell splits it: at blanks outside of quotes; a
// backslash and single and double quotes mean what they mean there. The inverse
// of ShellLine(). There is no shell, so what it would act upon is refused
// rather than handed on: variables, patterns, pipes, redirections.
// InvalidArgument says what is wrong, without the line.
absl::StatusOr<std::vector<std::string>> SplitShellLine(absl::string_view line);

}  // namespace slackline
