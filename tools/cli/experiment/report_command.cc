#include "tools/cli/experiment/report_command.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/results_table.h"
#include "tools/cli/foreground.h"
#include "tools/cli/python_script.h"

namespace slackline {
namespace {

constexpr char kScript[] = "slackline_report.py";

}  // namespace

int MakeReport(const ReportOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline report: ", text));
  };
  const absl::StatusOr<std::vector<std::string>> command =
      CommandOf({.bin_dir = options.bin_dir,
                 .name = kScript,
                 .modules = {"matplotlib", "numpy", "scipy"},
                 .arguments = {options.folder}});
  if (!command.ok()) {
    complain(command.status().message());
    return kExitFailed;
  }
  const absl::StatusOr<ExitStatus> exit = RunInForeground(*command);
  if (!exit.ok()) {
    complain(exit.status().message());
    return kExitFailed;
  }
  if (exit->ok()) {
    std::error_code error;
    // Of a run there are only TensorBoard files.
    if (!std::filesystem::exists(options.folder + "/experiment.json", error))
      return kExitDone;
    const absl::StatusOr<std::string> table = ResultsTable(options.folder);
    if (table.ok()) {
      std::fwrite(table->data(), 1, table->size(), stdout);
      return kExitDone;
    }
    complain(table.status().message());
    return kExitFailed;
  }
  if (exit->code == kNoPython) {
    complain(
        "there is no python3; install it with apt-get install python3 "
        "python3-matplotlib python3-numpy python3-scipy");
  } else if (exit->signal != 0) {
    complain(absl::StrCat(kScript, " ", exit->ToString()));
  }
  // Otherwise it has said itself what was wrong.
  return exit->code == kExitUsage ? kExitUsage : kExitFailed;
}

}  // namespace slackline
