// A job whose processes run, until none does: signals of the user, the
// coordinator's statuses and the ends of processes go to the Supervisor, and
// what it says is done and shown.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/members/cluster.h"
#include "tools/cli/members/supervisor.h"
#include "tools/cli/run/failure.h"
#include "tools/cli/run/run_key.h"
#include "tools/cli/run/run_options.h"
#include "tools/cli/run/timeline_of_run.h"
#include "tools/cli/signals.h"

namespace slackline {

class RunningJob {
 public:
  RunningJob(const RunOptions& options, const config::ClusterConfig& config,
             std::unique_ptr<Cluster> cluster, CoordinatorClient* client,
             RunKey* key, SignalWatch* signals, Display* display);

  // Says when its recording has come in. Outlives Await().
  void Follow(TimelineOfRun* timeline) { timeline_ = timeline; }

  // OK if the coordinator declared the job finished; else why not. Unavailable
  // if the connection to it breaks for good.
  absl::Status Await();

  // Once Await() has returned: how the job has ended, as far as this process
  // knows.
  const Supervisor& supervisor() const { return supervisor_; }
  const std::vector<LoggedExit>& exits() const { return exits_; }
  // Cluster::MissingFiles(), for good.
  const std::string& missing_files() const { return missing_files_; }
  uint64_t run() const { return run_; }            // View.run; 0: not known.
  int64_t steps() const { return steps_; }         // Of the fastest worker.
  bool ends_early() const { return ends_early_; }  // A user has asked for it.
  // If no step was seen, since the start.
  absl::Duration SinceLastStep() const;

 private:
  void Say(const std::string& text) {
    if (!text.empty()) display_->Print(text);
  }
  // For what the hosts have and the disk here had no room for.
  void AwaitFiles();
  // Takes new keys to where the processes are.
  void FollowKey(absl::Time now);
  absl::Status PollStatus();
  // Asks once more, and waits for the answer for a while.
  void LookNow();
  void OnStatus(const wire::StatusReply& status, absl::Time now);
  void Note(const wire::StatusReply& status, absl::Time now);
  // Each once: only the log of the coordinator's server would have it else.
  void SayFailedCheckpoint(const wire::StatusReply& status);
  absl::Status Perform(const Supervisor::Effects& effects);
  void Report(const MemberExit& death, const Supervisor::Effects& effects);
  void ShowProgress();

  const RunOptions& options_;
  const int lease_ms_;
  const absl::Duration save_timeout_;
  const int replicas_;
  const bool any_server_takes_over_;
  std::unique_ptr<Cluster> cluster_;
  CoordinatorClient* const client_;
  RunKey* const key_;
  SignalWatch* const signals_;
  Display* const display_;
  TimelineOfRun* timeline_ = nullptr;  // nullptr: nothing is recorded.
  Supervisor supervisor_;
  std::vector<LoggedExit> exits_;  // In their order.
  std::string missing_files_;
  Progress progress_;
  uint64_t run_ = 0;
  int64_t steps_ = 0;
  bool ends_early_ = false;
  absl::Time step_at_;
  bool known_ = false;             // A status has come.
  std::string checkpoint_failed_;  // As of the last one.
  wire::JobState state_ = wire::JOB_STATE_UNSPECIFIED;
  absl::Time asked_ = absl::InfinitePast();
  absl::Time next_ask_ = absl::InfinitePast();
  absl::Time next_line_;
  absl::Time next_key_look_ = absl::InfinitePast();
  std::string key_problem_;  // That was said last.
};

}  // namespace slackline
