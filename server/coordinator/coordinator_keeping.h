// Where the coordinator keeps its state, as config and flags say: in etcd, or
// in the folder of --out.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "server/coordinator/beginning.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/coordinator/kept_job.h"

namespace slackline {

struct KeepingOptions {
  config::ClusterConfig config;
  std::string out;                   // Folder; empty: there is none.
  std::string endpoint;              // Of this coordinator, "tcp://host:port".
  std::string checkpoint_root = {};  // CheckpointRoot(); empty: there is none.
};

// "OUT/coordinator.state", for people.
std::string KeepingPlace(const KeepingOptions& options);

// The job whose coordinator has died, and the state that it has kept; without
// one there is no job, or none that has got so far that anybody knows of it.
struct RecoveredJob {
  std::optional<KeptJob> job;
  CoordinatorThread::Keeping keeping;
};

// How server 0 begins, as HowToBegin() says of what is in the place where the
// job keeps its state, in the folder of --out, and in its checkpoints.
struct BegunJob {
  Beginning how = Beginning::kNewRun;
  // The job that goes on; or one that is over, if its state is there.
  RecoveredJob recovered;
  absl::Status end;     // How a job that is over has ended.
  std::string instead;  // WhatGoesOn() of a job that is over.
};
// Nothing is changed by it. FailedPrecondition: as of HowToBegin(); or another
// coordinator has the state, and runs. Other errors name the place, which
// cannot be read.
absl::StatusOr<BegunJob> BeginJob(const KeepingOptions& options,
                                  const BeginningFlags& flags);

// The options of a coordinator that goes on with the job.
void GoOnWith(const KeptJob& job, CoordinatorCore::Options* options);

// The job for a server that goes on with it where nobody does any more: in etcd
// alone. nullopt: somebody leads, or there is no job. Errors as of
// RecoverJob(), but that etcd is not waited for.
absl::StatusOr<std::optional<RecoveredJob>> TakeOverJob(
    const KeepingOptions& options);

// Whether somebody leads in etcd. Errors of etcd, which is not waited for.
absl::StatusOr<bool> IsLed(const KeepingOptions& options);

// Whether the job in etcd runs, and had a coordinator not long ago. A server 0
// that is started again may join it then, and need not wait until it is known
// whether that still leads. False without etcd.
absl::StatusOr<bool> JobIsLed(const KeepingOptions& options);

// Where a new run keeps its state: it takes the place of the one that is there.
// It has no store if there are no copies of shards, or there is no folder, or
// that can keep nothing, which is said.
// FailedPrecondition: the place belongs to a coordinator that runs.
absl::StatusOr<CoordinatorThread::Keeping> KeepNewJob(
    const KeepingOptions& options);

}  // namespace slackline
