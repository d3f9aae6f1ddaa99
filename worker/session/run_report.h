// What a worker reports while it trains: statistics with every step, a metric
// record from time to time. Thread-compatible; the trainer thread's.
#pragma once

#include <map>
#include <string>

#include "worker/session/step_clock.h"
#include "worker/session/worker_loop.h"

namespace slackline {

class RunReport {
 public:
  struct Options {
    Rank rank{};
    int64_t steps_per_epoch = 0;
    TimelineTrack* track = nullptr;  // StepClock's.
  };
  RunReport(const Options& options, WorkerLoop* loop);  // Not owned.

  // The minibatch loss of a step. One that is not finite is left out of the
  // means.
  void AddLoss(double loss);
  // A figure of the program's own, for the mean in the next record. Finite; at
  // most kMetricValuesMax names, others are left out.
  void AddValue(const std::string& name, double value);
  // `clock` steps are complete now, the last one of so many examples.
  void StepDone(Clock clock, int64_t examples);
  // `clock` steps count as complete, the last ones without having been done; or
  // this worker begins there.
  void SkippedTo(Clock clock);
  // The time of the step that is open, or of the one that is next. StepDone()
  // ends it.
  StepClock& time() { return time_; }
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
  StepClock time_;
  bool any_loss_ = false;
  Clock record_every_;
  bool record_due_ = false;  // The clock of a record was skipped.
  Clock clock_ = 0;          // Steps that are complete, or count as such.
  struct Mean {
    int64_t count = 0;
    double sum = 0;
    void Add(double value);
    double value() const { return sum / static_cast<double>(count); }
  };
  // What came since the last record.
  int64_t examples_ = 0;
  Mean loss_;
  std::map<std::string, Mean> values_;
  absl::Time last_record_;
};

}  // namespace slackline
