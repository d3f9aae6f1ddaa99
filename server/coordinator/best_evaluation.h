// BestEvaluation: the best evaluation of a run and of those that it goes on
// from, and when a checkpoint is due for it (config::Checkpoint::best_by). The
// checkpoint that is kept is the nearest one at or after its step; the driver
// finds out which one that is.
//
// Deterministic: the time goes in. Thread-compatible.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"

namespace slackline {

class BestEvaluation {
 public:
  // `keeps`: checkpoints can be written. `before`: the best one of earlier
  // runs, of the config's measure.
  BestEvaluation(const config::Checkpoint& config, bool keeps,
                 std::optional<run::BestCheckpoint> before);

  // From here on no checkpoint is kept for an evaluation.
  void Stop() { keeps_ = false; }
  // If `evaluation` is better than all before it, the driver is told, and a
  // checkpoint is due. `latest`: the step of the last checkpoint that is there,
  // or comes; -1: there is none. None is due if that is the evaluation's or a
  // later one. An evaluation without the measure is warned of, once.
  void OnEvaluation(const run::MetricRecord& evaluation, Clock latest,
                    CoordinatorEffects* effects);
  // The one that was due is begun, or cannot be.
  void ClearDue() { due_.reset(); }
  // A checkpoint of this step has its clocks.
  void OnCut(Clock clock) {
    if (due_.has_value() && clock >= *due_) due_.reset();
  }
  // A checkpoint has failed. `last`: the step of the last one that is whole;
  // -1: there is none. If that is before the evaluation, one is due for it, but
  // some time later.
  void OnFailed(Clock last, absl::Time now);
  // Empty: none is due; else the reason.
  std::string WhyDue(absl::Time now) const;
  // When one is due that has failed before. InfiniteFuture: none is.
  absl::Time NextDue() const;

  // What the driver has found.
  void OnBest(const run::BestCheckpoint& best, CoordinatorEffects* effects);

  // For the next coordinator.
  void Keep(coordinator::CheckpointsState* state) const;
  void Load(const coordinator::CheckpointsState& state);
  // nullptr: no checkpoint is known that is the nearest to it.
  const run::BestCheckpoint* checkpoint() const {
    return best_.folder().empty() ? nullptr : &best_;
  }

 private:
  bool IsBest(double value) const;

  const bool by_loss_;
  bool keeps_ = false;
  // The best one; it has no folder.
  std::optional<run::BestCheckpoint> evaluation_;
  bool is_of_earlier_run_ = false;
  // A checkpoint of this clock or a later one is due.
  std::optional<Clock> due_;
  // None is begun before, since one has failed; in the past: none has.
  absl::Time due_at_ = absl::InfinitePast();
  bool warned_of_measure_ = false;
  run::BestCheckpoint best_;  // It has no folder: there is none yet.
};

}  // namespace slackline
