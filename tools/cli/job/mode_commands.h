// The subcommands about the mode of a running job. Each returns its exit code;
// results go to stdout, the rest to stderr.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"

namespace slackline {

struct ShowModesOptions {
  JobOptions job;
  bool json = false;
};
int ShowModes(const ShowModesOptions& options);

struct ChangeModeOptions {
  JobOptions job;
  std::string mode;  // As in ParseMode().
  bool wait = true;  // Until all workers train in it, else until it is ordered.
  bool json = false;
};
int ChangeMode(const ChangeModeOptions& options);

}  // namespace slackline
