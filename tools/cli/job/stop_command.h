// `slackline stop`: ends a running job early. Returns its exit code; results go
// to stdout, the rest to stderr.
#pragma once

#include <string>

#include "tools/cli/job/job_connection.h"

namespace slackline {

struct StopOptions {
  JobOptions job;
  std::string reason = "stopped by the user";
  // The job ends as at its last step, with its model; or at once, as failed; or
  // after a checkpoint, from which it can go on.
  enum class How { kEarly, kAtOnce, kSuspended };
  How how = How::kEarly;
  bool wait = true;  // For its end.
  bool json = false;
};
int StopJob(const StopOptions& options);

}  // namespace slackline
