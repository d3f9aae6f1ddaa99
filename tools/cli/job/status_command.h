// `slackline status` and `slackline stop`: how a running job stands, and its
// end. Each returns its exit code; results go to stdout, the rest to stderr.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

struct StatusOptions {
  JobOptions job;
  StatusTableOptions table;
  bool json = false;
};
int ShowStatus(const StatusOptions& options);

struct StopOptions {
  JobOptions job;
  std::string reason = "stopped by the user";
};
int StopJob(const StopOptions& options);

}  // namespace slackline
