#include "tools/cli/report_command.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/cli/display.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/foreground.h"

namespace slackline {
namespace {

constexpr char kScript[] = "slackline_report.py";
// Finds a program on the user's search path, or ends with this code.
constexpr char kSearch[] = "/usr/bin/env";
constexpr int kNotFound = 127;

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
  const absl::StatusOr<ExitStatus> exit = RunInForeground(
      {kSearch, "python3", absl::StrCat(options.bin_dir, "/", kScript),
       options.folder});
  if (!exit.ok()) {
    complain(exit.status().message());
    return kExitFailed;
  }
  if (exit->ok()) return kExitDone;
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
