// Conclusion: how the chief ends a job whose steps are all done: when it is its
// turn, and how long it tries to write the final model.
//
// | state | ends with |
// | --- | --- |
// | not yet its turn | IsDue(): it is the chief, and all steps are done |
// | writes | OnSaveFailed(), or the result is told to the coordinator |
// | waits to write again | SavesAgain() |
//
// A model that cannot be written is tried again every `save_retry` until
// `save_timeout` after the first failure. Deterministic state machine without
// I/O. Thread-compatible.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/view/shard_map.h"

namespace slackline {

// The worker of this incarnation is the view's chief.
bool IsChief(const View& view, Incarnation self);
// Every worker of the view has done all its steps, and left.
bool AllAreDone(const View& view);

class Conclusion {
 public:
  struct Options {
    Rank rank{};  // This worker's, for errors.
    absl::Duration save_timeout;
    absl::Duration save_retry;
  };
  explicit Conclusion(const Options& options) : options_(options) {}

  // The worker of this incarnation, which has left, is to conclude the job.
  static bool IsDue(const View& view, Incarnation self);

  // The final model could not be written. OK: SavesAgain() says when it is
  // tried again, and `*log` gets a sentence if there is one to be said.
  // ResourceExhausted: it is given up, and the job is to stop with this.
  absl::Status OnSaveFailed(const absl::Status& why, absl::Time now,
                            std::string* log);
  // Whether the model is to be written again now: true once for each
  // OnSaveFailed().
  bool SavesAgain(absl::Time now);
  // InfiniteFuture: it is not to be written again.
  absl::Time save_again_at() const { return save_again_at_; }
  // Why it could not be written last; empty if it could.
  const std::string& save_failure() const { return save_failure_; }

  // The worker did not run for so long.
  void OnMissed(absl::Duration missed) { give_up_saving_at_ += missed; }

 private:
  const Options options_;
  absl::Time give_up_saving_at_ = absl::InfiniteFuture();
  absl::Time save_again_at_ = absl::InfiniteFuture();
  std::string save_failure_;
};

}  // namespace slackline
