// The subcommands that show, stop and fetch. Each returns its exit code;
// results go to stdout, the rest to stderr.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/job_connection.h"
#include "tools/cli/status_table.h"

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

int ShowSummaries(const std::vector<std::string>& folders);

// An empty `data_dir` is the cache.
int FetchDataSet(const std::string& name, const std::string& data_dir);
int WriteStandIn(const std::string& data_dir);

}  // namespace slackline
