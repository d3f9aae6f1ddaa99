// The subcommands about the mode of a running job. Each returns its exit code;
// results go to stdout, the rest to stderr.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"

namespace slackline {

int ShowModes(const JobOptions& options);

struct ChangeModeOptions {
  JobOptions job;
  std::string mode;  // As in ParseMode().
  bool wait = true;  // Until all workers train in it, else until it is ordered.
};
int ChangeMode(const ChangeModeOptions& options);

}  // namespace slackline
