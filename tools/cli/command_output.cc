#include "tools/cli/command_output.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"

namespace slackline {

void PrintResult(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  // Whoever reads a pipe waits for the result, not for the end.
  std::fflush(stdout);
}

void Say(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

int Fail(absl::string_view command, const absl::Status& status) {
  Say(absl::StrCat("slackline ", command, ": ", status.message()));
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace slackline
