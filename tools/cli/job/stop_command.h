// `slackline stop`: ends a running job early. Returns its exit code; results go
// to stdout, the rest to stderr.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"

namespace slackline {

struct StopOptions {
  JobOptions job;
  std::string reason = "stopped by the user";
  // The job ends as at its last step, with its model; else at once, as failed.
  bool at_once = false;
  bool wait = true;  // For its end.
  bool json = false;
};
int StopJob(const StopOptions& options);

}  // namespace slackline
