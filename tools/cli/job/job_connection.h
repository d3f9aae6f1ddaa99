// A running job, found by its config: its coordinator and its last status.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/key_watch.h"
#include "common/process/job_key.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/run_folder.h"

namespace slackline {

// Which job a subcommand is about.
struct JobOptions {
  std::string config;  // A cluster config, or the folder of a run, with one.
  absl::Duration wait_max = absl::Seconds(3);  // For each answer.
  KeyPlace key = {};                           // As for KeyOfJob().
};

// The place of the key that the flag names, or else of that in the folder.
KeyPlace KeyPlaceOf(KeyPlace place, const std::string& config);
// What this program, as an operator, holds of the key of the job.
absl::StatusOr<std::optional<KeySource>> KeyOfJob(
    const KeyPlace& place, const std::string& path,
    const config::ClusterConfig& config);

// Thread-compatible.
class JobConnection {
 public:
  // Asks for a first status, so that no other job at the same address is taken
  // for this one. InvalidArgument: the config cannot be used.
  // FailedPrecondition: HasEnded(), or the coordinator at the only address is
  // another job's. Else as CoordinatorClient::GetStatus().
  static absl::StatusOr<JobConnection> Open(const JobOptions& options);

  // Asks for a new status. Errors as of Open(), and then the old one stays.
  absl::Status Refresh();

  const config::ClusterConfig& config() const { return config_; }
  const wire::StatusReply& status() const { return status_; }
  CoordinatorClient& client() { return *client_; }
  absl::Duration wait_max() const { return options_.wait_max; }

 private:
  JobConnection(const JobOptions& options, config::ClusterConfig config,
                std::unique_ptr<CoordinatorClient> client)
      : options_(options),
        config_(std::move(config)),
        client_(std::move(client)) {}

  JobOptions options_;
  config::ClusterConfig config_;
  std::unique_ptr<CoordinatorClient> client_;
  wire::StatusReply status_;
};

// Finished or failed.
bool IsOver(const wire::View& view);
// "finished", or "failed: " or "suspended: " and why: for a job in one of these
// states.
std::string EndText(const wire::View& view);

}  // namespace slackline
