#include "tools/cli/job/status_command.h"

#include "absl/strings/str_cat.h"
#include "tools/cli/command_output.h"
#include "tools/cli/exit_code.h"

namespace slackline {

int ShowStatus(const StatusOptions& options) {
  const absl::StatusOr<JobConnection> job = JobConnection::Open(options.job);
  if (!job.ok()) return Fail("status", job.status());
  PrintResult(options.json ? StatusJson(job->status())
                           : StatusTable(job->status(), options.table));
  return kExitDone;
}

int StopJob(const StopOptions& options) {
  absl::StatusOr<JobConnection> job = JobConnection::Open(options.job);
  if (!job.ok()) return Fail("stop", job.status());
  const absl::Status stopped =
      job->client().Stop(options.reason, job->wait_max());
  if (!stopped.ok()) return Fail("stop", stopped);
  PrintResult(absl::StrCat("job ", job->config().job(),
                           " stops: ", options.reason, "\n"));
  return kExitDone;
}

}  // namespace slackline
