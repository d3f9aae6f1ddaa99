#include "tools/cli/experiment/report_command.h"

#include <cstdio>
#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/results_table.h"
#include "tools/cli/foreground.h"
#include "tools/cli/installed.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr char kScript[] = "slackline_report.py";
// Finds a program on the user's search path, or ends with this code.
constexpr char kSearch[] = "/usr/bin/env";
constexpr int kNotFound = 127;
constexpr char kProbe[] = "import matplotlib, numpy, scipy";

// A Python that has what the script needs: the user's, or the system's, to
// which the distribution's packages belong. Without such, the user's, so that
// the script says what that one has not.
absl::StatusOr<std::string> FindPython() {
  const std::string users = "python3";
  for (const std::string& python : {users, std::string("/usr/bin/python3")}) {
    SL_ASSIGN_OR_RETURN(
        ChildProcess probe,
        ChildProcess::Start({.command = {kSearch, python, "-c", kProbe},
                             .log_path = "/dev/null"}));
    if (probe.Wait().ok()) return python;
  }
  return users;
}

}  // namespace

int MakeReport(const ReportOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline report: ", text));
  };
  const absl::Status installed = CheckInstalled(options.bin_dir, kScript);
  if (!installed.ok()) {
    complain(installed.message());
    return kExitFailed;
  }
  const absl::StatusOr<std::string> python = FindPython();
  if (!python.ok()) {
    complain(python.status().message());
    return kExitFailed;
  }
  const absl::StatusOr<ExitStatus> exit = RunInForeground(
      {kSearch, *python, absl::StrCat(options.bin_dir, "/", kScript),
       options.folder});
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
  if (exit->code == kNotFound) {
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
