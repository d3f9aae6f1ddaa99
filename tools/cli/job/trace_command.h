// `slackline trace`: one timeline of all processes of a running job. Returns
// its exit code; results go to stdout, the rest to stderr.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {

struct TraceOptions {
  JobOptions job;
  absl::Duration time = absl::Seconds(10);
  std::string out;  // Empty: in the folder of the run, or here.
  // "RANK=FILE": what torch.profiler has written of a worker.
  std::vector<std::string> profiles;
};
int TraceJob(const TraceOptions& options);

}  // namespace slackline
