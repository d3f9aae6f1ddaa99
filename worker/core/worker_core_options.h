// What a WorkerCore is made with.
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/membership/member_core.h"
#include "proto/cluster.pb.h"
#include "worker/client/client_core.h"

namespace slackline {

struct WorkerCoreOptions {
  MemberCore::Options member;  // Its join is a worker's.
  ClientCore::Options client;  // Who we are is filled in.
  Clock evaluate_every = 1;    // Steps from one evaluation to the next.
  bool pull_ahead = false;     // As in config::Sync.
  // Steps over servers begin when the first table has come; the driver waits
  // for each of the others where it needs it (Effects::tables).
  bool step_by_table = false;
  config::Train train;  // Stop rules; what to do with NaN.
  // A gradient has to wait while this much is not acknowledged.
  size_t unacknowledged_bytes_max = 256 << 20;
  // The process was a member of the job before, and was given up though it
  // lives.
  bool joins_again = false;
  // How long others are waited for without any sign of progress.
  absl::Duration wait_timeout = absl::Seconds(120);
  // How long writing the final model is tried again, and how often.
  absl::Duration save_timeout = absl::Minutes(10);
  absl::Duration save_retry = absl::Seconds(2);
};

}  // namespace slackline
