// What a worker reports while it trains: statistics with every step, a metric
// record from time to time. Thread-compatible; the trainer thread's.
#pragma once

#include "worker/client/ps_client.h"

namespace slackline {

class RunReport {
 public:
  struct Options {
    Rank rank{};
    int64_t batch_size = 0;
    int64_t steps_per_epoch = 0;
  };
  RunReport(const Options& options, PsClient* client);  // Not owned.

  // `clock` steps are complete now; the last one had this minibatch loss.
  void StepDone(Clock clock, double loss);
  // `clock` steps count as complete, the last ones without having been done.
  void SkippedTo(Clock clock);
  void AddComputeSeconds(double seconds);
  void AddWaitSeconds(double seconds);
  double EpochOf(Clock clock) const;

 private:
  const Options options_;
  PsClient* const client_;
  run::WorkerStats stats_;
  Clock record_every_;
  bool record_due_ = false;  // Its clock was skipped.
  double loss_sum_ = 0;      // Since the last record, and of how many steps.
  int64_t loss_count_ = 0;
  absl::Time last_record_;
};

}  // namespace slackline
