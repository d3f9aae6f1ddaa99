// What a worker does right now, for whom it waits, and since when: for the
// coordinator, for people, and for deadlines. Pure functions.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/view/shard_map.h"
#include "proto/run.pb.h"
#include "worker/client/client_core.h"
#include "worker/core/worker_stage.h"

namespace slackline {

struct WorkerWhereabouts {
  WorkerStage state{};
  WorkerNeed need{};
  Clock clock = 0;  // Steps completed; -1: the group knows.
  bool waits_for_sum = false;
  const std::string& waiting_for;   // In kWaiting: completes "waits for ...".
  const std::string& save_failure;  // In kSaving.
  absl::Time progress_at;           // When it came further last.
  const ClientCore* client;         // nullptr: the job does not run yet.
  const View* view;                 // nullptr: there is none yet.
};

// Whether others, the servers included, have to do something before it goes on,
// so that it may give up.
bool WaitsForOthers(WorkerStage state, WorkerNeed need);

// Completes "waits for ..." for a worker that waits for others.
std::string WaitingText(const WorkerWhereabouts& at, absl::Time now);

run::WorkerProgress ProgressOf(const WorkerWhereabouts& at, absl::Time now);

// Adds what the client has counted.
void AddTraffic(const ClientCore& client, run::WorkerStats* stats);

}  // namespace slackline
