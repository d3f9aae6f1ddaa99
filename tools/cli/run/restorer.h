// Restorer: what is done between two runs of a job that is started again from
// its last checkpoint, because processes of it were lost.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/cli/display.h"
#include "tools/cli/run/restore_policy.h"

namespace slackline {

class Restorer {
 public:
  struct Options {
    bool enabled = false;  // checkpoint { on_server_loss: RESTORE }
    std::string out_dir;
    std::string checkpoint_root;
    // The checkpoint with which the job has begun; empty: none.
    std::string began_with;
    int64_t began_at = 0;  // Its clock.
  };
  // A run of the job that has failed, and none of whose processes is left.
  struct Lost {
    RestorePolicy::End end;
    std::string why;
    uint64_t run = 0;  // View.run; 0: not known.
    int64_t steps = 0;
    absl::Duration since;  // Since its last step.
  };

  // `display` has to live as long as this object.
  Restorer(Options options, Display* display)
      : options_(std::move(options)), display_(display) {}

  // Where the job begins again: the folder of a checkpoint, or nothing if there
  // is none yet. Says so, and puts aside what the run says of itself. nullopt:
  // it does not begin again, and if that is because it makes no progress, that
  // is said.
  absl::StatusOr<std::optional<std::string>> OnLost(const Lost& lost);

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
