// `slackline status`: how a job stands, or how it has ended. Results go to
// stdout, the rest to stderr.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

struct StatusOptions {
  JobOptions job;
  StatusTableOptions table;
  bool json = false;
};
// Returns its exit code, kExitDone also for a job that has failed: it was
// asked how the job stands.
int ShowStatus(const StatusOptions& options);

// What the folder of a run that has ended says of it. Errors as of
// ReadRunResult().
absl::Status ShowEnd(const std::string& folder, bool json,
                     bool in_a_line = false);

}  // namespace slackline
