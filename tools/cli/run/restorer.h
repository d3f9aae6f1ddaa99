// Restorer: what is done between two runs of a job that is started again from
// its last checkpoint, because processes of it were lost.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "proto/run.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/run/restore_policy.h"

namespace slackline {

// A checkpoint that a run of a job goes on from, as its summary has it.
run::CheckpointRecord RecordOf(const StoredCheckpoint& stored);

class Restorer {
 public:
  struct Options {
    bool enabled = false;  // checkpoint { on_server_loss: RESTORE }
    std::string out_dir;
    std::string checkpoint_root;
    // The checkpoint with which the job has begun; empty: none.
    std::string began_with;
  };
  // A run of the job that has failed, and none of whose processes is left.
  struct Lost {
    RestorePolicy::End end;
    std::string why;
    uint64_t run = 0;  // View.run; 0: not known.
    int64_t steps = 0;
    absl::Duration since;  // Since its last step.
    // As in Supervisor. That changes nothing here.
    bool suspending = false;
  };
  // What the next run of the job begins with.
  struct Restoration {
    run::CheckpointRecord from;  // Without a folder: with no checkpoint.
    // Who was lost, from where the job goes on, and what that costs.
    std::string text;
  };

  // `display` has to live as long as this object.
  Restorer(Options options, Display* display)
      : options_(std::move(options)), display_(display) {}

  // Where the job begins again: a checkpoint, or none if there has never been
  // any. Puts aside what the run says of itself. nullopt: it does not begin
  // again, and if that is because it makes no progress, that is said. Errors:
  // as CheckpointToGoOnFrom(), with why it was lost; then it does not begin
  // again either.
  absl::StatusOr<std::optional<Restoration>> OnLost(const Lost& lost);

  // How often the job has begun again, and what that has cost; empty: never.
  std::string Text() const;

 private:
  const Options options_;
  Display* const display_;
  RestorePolicy policy_;
  std::set<uint64_t> runs_;  // Of this job.
  int restores_ = 0;
  int64_t steps_anew_ = 0;
  absl::Duration time_;
};

}  // namespace slackline
