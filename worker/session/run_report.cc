#include "worker/session/run_report.h"

#include <algorithm>
#include <cmath>

#include "common/block/bounds.h"
#include "worker/session/metric_records.h"

namespace slackline {
namespace {
// Weight of the newest minibatch in the decayed mean that `status` shows.
constexpr double kLossWeight = 0.05;
}  // namespace

RunReport::RunReport(const Options& options, WorkerLoop* loop)
    : options_(options),
      loop_(loop),
      time_(options.track),
      record_every_(TrainRecordInterval(options.steps_per_epoch)),
      last_record_(loop->Now()) {
  stats_.set_rank(static_cast<int32_t>(options.rank));
}

void RunReport::Publish() {
  loop_->Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    core.SetStats(stats_);
  });
}

double RunReport::EpochOf(Clock clock) const {
  return static_cast<double>(clock) /
         static_cast<double>(options_.steps_per_epoch);
}

void RunReport::AddComputeSeconds(double seconds) {
  stats_.set_compute_seconds(stats_.compute_seconds() + seconds);
}

void RunReport::AddWaitSeconds(double seconds) {
  stats_.set_wait_seconds(stats_.wait_seconds() + seconds);
}

void RunReport::SkippedTo(Clock clock) {
  // Who only begins there has nothing to record.
  const bool begins = stats_.examples() == 0;
  record_due_ = record_due_ ||
                (!begins && clock_ / record_every_ < clock / record_every_);
  clock_ = clock;
  time_.SetClock(clock);
}

void RunReport::AddNonfinite() { stats_.set_nonfinite(stats_.nonfinite() + 1); }

void RunReport::Mean::Add(double value) {
  ++count;
  sum += value;
}

void RunReport::AddLoss(double loss) {
  if (!std::isfinite(loss)) return;  // Such a step is not in the model, either.
  stats_.set_train_loss(any_loss_ ? (1 - kLossWeight) * stats_.train_loss() +
                                        kLossWeight * loss
                                  : loss);
  any_loss_ = true;
  loss_.Add(loss);
}

void RunReport::AddValue(const std::string& name, double value) {
  if (!std::isfinite(value)) return;
  if (values_.size() < kMetricValuesMax || values_.contains(name))
    values_[name].Add(value);
}

void RunReport::StepDone(Clock clock, int64_t examples) {
  clock_ = clock;
  time_.EndStep(&stats_);
  time_.SetClock(clock);
  stats_.set_examples(stats_.examples() + examples);
  Publish();
  examples_ += examples;
  if (clock % record_every_ != 0 && !record_due_) return;
  record_due_ = false;
  const absl::Time now = loop_->Now();
  if (loss_.count > 0 || !values_.empty()) {
    run::MetricRecord record;
    record.set_kind(run::MetricRecord::TRAIN);
    record.set_rank(static_cast<int32_t>(options_.rank));
    record.set_step(clock);
    record.set_epoch(EpochOf(clock));
    if (loss_.count > 0) record.set_loss(loss_.value());
    for (const auto& [name, mean] : values_)
      (*record.mutable_value())[name] = mean.value();
    record.set_examples_per_second(
        static_cast<double>(examples_) /
        std::max(1e-9, absl::ToDoubleSeconds(now - last_record_)));
    loop_->AddRecord(record, now);
  }
  loss_ = {};
  values_.clear();
  examples_ = 0;
  last_record_ = now;
}

}  // namespace slackline
