// ModePolicy: chooses between all-reduce and SSP by how even the workers' step
// times are: all-reduce while they are, SSP while one worker's steps take much
// longer than the others'.
//
// Step time: seconds of computing per step, over the last steps of each worker
// (as long as a decision takes to ripen, and at least some steps). The ratio of
// the slowest worker's to the median of the others' must be beyond a bound for
// so long without a break; the gap between the two bounds, and this time, keep
// the policy from acting on noise. After each decision it measures anew.
//
// Deterministic: the time goes in. Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/cluster.pb.h"
#include "proto/mode.pb.h"

namespace slackline {

class ModePolicy {
 public:
  struct Options {
    config::Auto config;
    // How often workers tell of themselves.
    absl::Duration heartbeat = absl::Seconds(1);
  };
  // A live worker, and what it said last of itself.
  struct Worker {
    int32_t rank = 0;
    Incarnation incarnation = 0;
    Clock clock = 0;
    double compute_seconds = 0;  // Since the worker started.
  };
  struct Decision {
    sync::Mode mode;
    std::string reason;  // A sentence with the figures.
  };

  explicit ModePolicy(const Options& options) : options_(options) {}

  // The mode to change to, if it is time. Call it when there is news of a
  // worker, and at NextLook(). `may_change`: no change is under way, and one
  // could begin; else the time that a bound must hold begins anew.
  std::optional<Decision> Look(const std::vector<Worker>& workers,
                               const sync::Mode& mode, bool may_change,
                               absl::Time now);
  // When Look() would decide if nothing changes.
  absl::Time NextLook() const;

  // What it saw when it last looked, and what it is about to do.
  std::string Text(absl::Time now) const;

 private:
  struct Sample {
    absl::Time time;
    Clock clock = 0;
    double compute_seconds = 0;
  };
  struct Measured {
    int32_t slowest = 0;         // Rank.
    double slowest_seconds = 0;  // Per step.
    double median_seconds = 0;
    double ratio() const { return slowest_seconds / median_seconds; }
  };

  // What the figures can speak for.
  enum class Aim { kAllReduce, kSsp };

  sync::Mode ModeOf(Aim aim) const;
  void Take(const std::vector<Worker>& workers, absl::Time now);
  // Seconds per step. None if too little is known.
  std::optional<double> StepSeconds(const std::deque<Sample>& samples,
                                    absl::Time now) const;
  // None if something is missing; `missing_` says what.
  std::optional<Measured> Measure(const std::vector<Worker>& workers,
                                  absl::Time now);
  std::string FiguresText() const;
  absl::Duration hold() const {
    return absl::Milliseconds(options_.config.hold_ms());
  }

  const Options options_;
  std::map<Incarnation, std::deque<Sample>> samples_;
  std::optional<Measured> measured_;
  std::string missing_;
  // What the figures speak for, and since when without a break.
  std::optional<Aim> aim_;
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace slackline
