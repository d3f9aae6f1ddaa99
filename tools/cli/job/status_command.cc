#include "tools/cli/job/status_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "server/coordinator/failure_page.h"
#include "tools/cli/command_output.h"
#include "tools/cli/json.h"
#include "tools/cli/run/summary_table.h"

namespace slackline {
namespace {

int CodeOfEnd(bool finished, bool suspended) {
  if (finished) return kStatusFinished;
  return suspended ? kExitSuspended : kStatusFailed;
}

int CodeOf(const wire::View& view) {
  switch (view.state()) {
    case wire::FORMING:
      return kStatusForming;
    case wire::FINISHED:
    case wire::FAILED:
      return CodeOfEnd(view.state() == wire::FINISHED,
                       view.end().cause() == wire::JobEnd::SUSPENDED);
    default:
      return kStatusRunning;
  }
}

// Returns the exit code.
absl::StatusOr<int> Show(const StatusOptions& options) {
  const std::string& config = options.job.config;
  if (HasEnded(config)) {
    SL_RETURN_IF_ERROR(ShowEnd(config, options.json));
    SL_ASSIGN_OR_RETURN(const RunResult run, ReadRunResult(config));
    return CodeOfEnd(run.summary.state() == wire::JobState_Name(wire::FINISHED),
                     run.summary.cause() ==
                         wire::JobEnd::Cause_Name(wire::JobEnd::SUSPENDED));
  }
  if (const std::string waits = WaitsInSlurm(config);
      !waits.empty() && !options.json) {
    PrintResult(absl::StrCat(waits, "\n"));
    return kStatusForming;
  }
  SL_ASSIGN_OR_RETURN(const JobConnection job,
                      JobConnection::Open(options.job));
  const Configured configured = ConfiguredBy(job.config());
  if (options.json) {
    PrintJson(StatusJson(job.status(), configured));
  } else {
    PrintResult(StatusTable(job.status(), configured, options.table));
  }
  return CodeOf(job.status().view());
}

}  // namespace

absl::Status ShowEnd(const std::string& folder, bool json, bool in_a_line) {
  if (json) {
    SL_ASSIGN_OR_RETURN(const nlohmann::ordered_json run, ReadRunJson(folder));
    in_a_line ? PrintJsonLine(run) : PrintJson(run);
    return absl::OkStatus();
  }
  SL_ASSIGN_OR_RETURN(const RunResult run, ReadRunResult(folder));
  std::error_code error;
  const std::string page = FailurePath(folder);
  PrintResult(absl::StrCat(
      "job ", run.summary.job(), " has ended: ", EndText(run.summary), "\n\n",
      SummaryTable({run}),
      std::filesystem::exists(page, error)
          ? absl::StrCat("who failed, and what to do: ", page, "\n")
          : ""));
  return absl::OkStatus();
}

int ShowStatus(const StatusOptions& options) {
  const absl::StatusOr<int> shown = Show(options);
  if (shown.ok()) return *shown;
  const int code = Fail("status", shown.status());
  return absl::IsDeadlineExceeded(shown.status()) ? kStatusNotReached : code;
}

}  // namespace slackline
