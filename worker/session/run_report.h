// What a worker reports while it trains: statistics with every step, a metric
// record from time to time. Thread-compatible; the trainer thread's.
#pragma once

#include "worker/session/worker_loop.h"

namespace slackline {

class RunReport {
 public:
  struct Options {
    Rank rank{};
    int64_t batch_size = 0;
    int64_t steps_per_epoch = 0;
  };
  RunReport(const Options& options, WorkerLoop* loop);  // Not owned.

  // `clock` steps are complete now; the last one had this minibatch loss, which
  // is left out of the means if it is not finite.
  void StepDone(Clock clock, double loss);
  // `clock` steps count as complete, the last ones without having been done.
  void SkippedTo(Clock clock);
  void AddComputeSeconds(double seconds);
  void AddWaitSeconds(double seconds);
  // A step by all-reduce failed because of this worker's gradient.
  void AddNonfinite();
  double EpochOf(Clock clock) const;

 private:
  void Publish();

  const Options options_;
  WorkerLoop* const loop_;
  run::WorkerStats stats_;
  bool any_loss_ = false;
  Clock record_every_;
  bool record_due_ = false;  // Its clock was skipped.
  Clock clock_ = 0;          // Steps that are complete, or count as such.
  // Since the last record: steps, those with a loss that is a number, and the
  // sum of these.
  int64_t steps_ = 0;
  int64_t loss_count_ = 0;
  double loss_sum_ = 0;
  absl::Time last_record_;
};

}  // namespace slackline
