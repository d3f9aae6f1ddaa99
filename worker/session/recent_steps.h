// RecentSteps: how long the last steps of a worker took, phase by phase, as the
// coordinator compares it with others (run::RecentSteps). Fixed memory; no
// clock of its own. Thread-compatible.
#pragma once

#include <array>
#include <cstdint>

#include "proto/run.pb.h"

namespace slackline {

class RecentSteps {
 public:
  static constexpr int kSteps = 20;
  // So many of the longest are left out, once there are kTrimmedFrom steps.
  static constexpr int kTrimmed = 2;
  static constexpr int kTrimmedFrom = 10;

  // Seconds of one more step.
  void Add(const run::StepPhases& step);
  void Put(run::RecentSteps* recent) const;

 private:
  // Six phases, and what is the worker's own.
  using Numbers = std::array<double, 7>;
  std::array<Numbers, kSteps> steps_ = {};
  int64_t added_ = 0;
};

}  // namespace slackline
