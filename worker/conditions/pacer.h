// Pacer: how long a worker sleeps before a step, so that it is as slow as the
// config's conditions say. What is random is a function of the seed, the rank
// and the step, so a run that is repeated meets the same.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/cluster.pb.h"

namespace slackline {

class Pacer {
 public:
  struct Options {
    double slowdown = 1;  // At least 1.
    config::Conditions conditions;
    uint64_t seed = 0;
    Rank rank{};
  };
  explicit Pacer(const Options& options) : options_(options) {}

  // A step takes max(step_ms, `compute`) times the slow-downs, where `compute`
  // is what the computation takes by itself, as measured in the step before;
  // and it begins after its pause. `since_start` is the time since the job
  // started to run. A step that is tried again does not pause again.
  absl::Duration SleepBefore(Clock step, absl::Duration compute,
                             absl::Duration since_start);

 private:
  double FactorAt(Clock step, absl::Duration since_start) const;

  const Options options_;
  Clock last_step_ = -1;
};

}  // namespace slackline
