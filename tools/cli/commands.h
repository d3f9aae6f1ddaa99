// The subcommands other than run. Each returns its exit code; results go to
// stdout, the rest to stderr.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace slackline {

// CONFIG may be a cluster config or the folder of a run, which has one.
struct StatusOptions {
  std::string config;
  bool json = false;
  absl::Duration wait_max = absl::Seconds(3);
};
int ShowStatus(const StatusOptions& options);

struct StopOptions {
  std::string config;
  std::string reason = "stopped by the user";
  absl::Duration wait_max = absl::Seconds(3);
};
int StopJob(const StopOptions& options);

int ShowSummaries(const std::vector<std::string>& folders);

// An empty `data_dir` is the cache.
int FetchDataSet(const std::string& name, const std::string& data_dir);
int WriteStandIn(const std::string& data_dir);

}  // namespace slackline
