#include "server/coordinator/best_evaluation.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// A full disk should not be tried for the best checkpoint all the time.
constexpr absl::Duration kBestAgainAfter = absl::Seconds(10);

}  // namespace

BestEvaluation::BestEvaluation(const config::Checkpoint& config, bool keeps,
                               std::optional<run::BestCheckpoint> before)
    : by_loss_(config.best_by() == config::Checkpoint::LOSS),
      keeps_(keeps && config.has_best_by()),
      evaluation_(before),
      is_of_earlier_run_(before.has_value()),
      best_(before.value_or(run::BestCheckpoint())) {}

bool BestEvaluation::IsBest(double value) const {
  if (!evaluation_.has_value()) return true;
  const double best = evaluation_->value();
  // A run that goes on may do the same evaluation anew.
  if (is_of_earlier_run_ && value == best) return true;
  return by_loss_ ? value < best : value > best;
}

void BestEvaluation::OnEvaluation(const run::MetricRecord& evaluation,
                                  Clock latest, CoordinatorEffects* effects) {
  if (!keeps_ || evaluation.step() < 0 || evaluation.step() > kClockMax) return;
  if (by_loss_ ? !evaluation.has_loss() : !evaluation.has_accuracy()) {
    if (std::exchange(warned_of_measure_, true)) return;
    return effects->warnings.push_back(absl::StrCat(
        "checkpoint.best_by is ", by_loss_ ? "LOSS" : "ACCURACY",
        ", and the evaluation of step ", evaluation.step(), " has no ",
        by_loss_ ? "loss" : "accuracy", "; no checkpoint is kept for it: take ",
        by_loss_ ? "ACCURACY" : "LOSS", ", or have it measured"));
  }
  const double value = by_loss_ ? evaluation.loss() : evaluation.accuracy();
  if (!std::isfinite(value) || !IsBest(value)) return;
  is_of_earlier_run_ = false;
  evaluation_.emplace();
  evaluation_->set_evaluated_at(evaluation.step());
  evaluation_->set_measure(by_loss_ ? "loss" : "accuracy");
  evaluation_->set_value(value);
  effects->best = evaluation_;
  due_.reset();
  due_at_ = absl::InfinitePast();
  if (latest < evaluation.step()) due_ = evaluation.step();
}

void BestEvaluation::OnFailed(Clock last, absl::Time now) {
  // That of an earlier run has its checkpoint.
  if (!evaluation_.has_value() || is_of_earlier_run_ ||
      last >= evaluation_->evaluated_at()) {
    return;
  }
  due_ = evaluation_->evaluated_at();
  due_at_ = now + kBestAgainAfter;
}

std::string BestEvaluation::WhyDue(absl::Time now) const {
  if (!due_.has_value() || now < due_at_) return "";
  return absl::StrCat("the evaluation of step ", *due_,
                      " is the best so far: ", evaluation_->measure(), " ",
                      evaluation_->value());
}

absl::Time BestEvaluation::NextDue() const {
  const bool again = due_.has_value() && due_at_ != absl::InfinitePast();
  return again ? due_at_ : absl::InfiniteFuture();
}

void BestEvaluation::OnBest(const run::BestCheckpoint& best,
                            CoordinatorEffects* effects) {
  best_ = best;
  effects->log.push_back(absl::StrCat(
      "checkpoint: the one of step ", best.clock(),
      " is the nearest to the best evaluation so far, ", best.measure(), " ",
      best.value(), " at step ", best.evaluated_at()));
}

void BestEvaluation::Keep(coordinator::CheckpointsState* state) const {
  state->set_keeps_best(keeps_);
  if (evaluation_.has_value()) *state->mutable_best_evaluation() = *evaluation_;
  state->set_best_is_of_earlier_run(is_of_earlier_run_);
  if (due_.has_value()) state->set_best_due(*due_);
  *state->mutable_best() = best_;
}

void BestEvaluation::Load(const coordinator::CheckpointsState& state) {
  keeps_ = keeps_ && state.keeps_best();
  evaluation_.reset();
  if (state.has_best_evaluation()) evaluation_ = state.best_evaluation();
  is_of_earlier_run_ = state.best_is_of_earlier_run();
  if (state.has_best_due()) due_ = state.best_due();
  best_ = state.best();
}

}  // namespace slackline
