// `slackline servers add`: one more server for a running job.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"

namespace slackline {

struct AddServerOptions {
  JobOptions job;
  std::string bin_dir;  // Of slackline_server.
  std::string
      host;  // Under which workers reach it; empty: the server's own choice.
  int threads = 0;  // Shard threads; 0: the server's own choice.
  std::string log;  // Empty: in the folder of the run, or the present one.
  bool json = false;
};
// Starts the server on this machine and waits until the coordinator lists it.
// It then lives on without this program and ends with the job. Returns the
// exit code; if the server does not get into the job, no process is left.
int AddServer(const AddServerOptions& options);

}  // namespace slackline
