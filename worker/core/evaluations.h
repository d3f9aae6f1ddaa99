// Evaluations: after which of its steps a worker evaluates the model, and
// whether an evaluated model is to be kept.
//
// A model is evaluated every `every` clocks, and also if one of these clocks
// was skipped; never at the job's end, where the chief evaluates the final
// model anyhow, and never twice. All workers keep count, since each of them may
// become the chief, which alone evaluates.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <optional>

#include "common/ids.h"
#include "proto/cluster.pb.h"

namespace slackline {

class Evaluations {
 public:
  // `every` at least 1.
  explicit Evaluations(Clock every) : every_(every) {}

  // The model of this clock, at which this worker begins, is evaluated by those
  // who made it: the job before this one, or the others by all-reduce.
  void BeginAfter(Clock clock) { evaluated_ = clock; }
  // Between two steps the worker leaves clocks out.
  void OnSkip(Clock from);
  // The worker has left clocks out since its last step.
  bool has_skipped() const { return skipped_from_.has_value(); }
  // The worker has done a step.
  void OnStep() { skipped_from_.reset(); }

  // Whether the model of this clock is to be evaluated; the job ends at `end`.
  bool IsDue(Clock clock, Clock end) const;
  // Whether IsDue(); if so, the model counts as evaluated.
  bool Begin(Clock clock, Clock end);

  // Whether an evaluation's model is to be written, because it meets a stop
  // rule of `train`: true at most once.
  bool KeepsModel(const config::Train& train, double test_loss,
                  double test_accuracy);

 private:
  const Clock every_;
  std::optional<Clock> skipped_from_;
  Clock evaluated_ = 0;  // The last clock whose model was evaluated.
  bool kept_ = false;    // A model that meets a stop rule.
};

}  // namespace slackline
