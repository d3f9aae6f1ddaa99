#include "tools/cli/run/summary_command.h"

#include "tools/cli/command_output.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/run/summary_table.h"

namespace slackline {

int ShowSummaries(const std::vector<std::string>& folders) {
  std::vector<RunResult> runs;
  int exit_code = kExitDone;
  for (const std::string& folder : folders) {
    const absl::StatusOr<RunResult> run = ReadRunResult(folder);
    if (run.ok()) {
      runs.push_back(*run);
    } else {
      exit_code = Fail("summary", run.status());
    }
  }
  if (!runs.empty()) PrintResult(SummaryTable(runs));
  return exit_code;
}

}  // namespace slackline
