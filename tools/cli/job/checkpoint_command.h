// `slackline checkpoint`: has a running job take a checkpoint. Returns its exit
// code; results go to stdout, the rest to stderr.
#pragma once

#include "absl/time/time.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {

struct CheckpointOptions {
  JobOptions job;
  // Until it is there. It is taken all the same if that is over.
  absl::Duration deadline = absl::Minutes(10);
  bool json = false;
};
int CheckpointJob(const CheckpointOptions& options);

}  // namespace slackline
