#include "worker/session/run_report.h"

#include <algorithm>
#include <cmath>

#include "worker/session/metric_records.h"

namespace slackline {
namespace {
// Weight of the newest minibatch in the decayed mean that `status` shows.
constexpr double kLossWeight = 0.05;
}  // namespace

RunReport::RunReport(const Options& options, WorkerLoop* loop)
    : options_(options),
      loop_(loop),
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
  record_due_ = record_due_ || clock_ / record_every_ < clock / record_every_;
  clock_ = clock;
}

void RunReport::AddNonfinite() { stats_.set_nonfinite(stats_.nonfinite() + 1); }

void RunReport::StepDone(Clock clock, double loss) {
  if (std::isfinite(loss)) {  // A step with NaN is left out of the model, too.
    stats_.set_train_loss(any_loss_ ? (1 - kLossWeight) * stats_.train_loss() +
                                          kLossWeight * loss
                                    : loss);
    any_loss_ = true;
    loss_sum_ += loss;
    ++loss_count_;
  }
  clock_ = clock;
  stats_.set_examples(stats_.examples() + options_.batch_size);
  Publish();
  ++steps_;
  if (clock % record_every_ != 0 && !record_due_) return;
  record_due_ = false;
  const absl::Time now = loop_->Now();
  if (loss_count_ > 0) {
    run::MetricRecord record;
    record.set_kind(run::MetricRecord::TRAIN);
    record.set_rank(static_cast<int32_t>(options_.rank));
    record.set_step(clock);
    record.set_epoch(EpochOf(clock));
    record.set_loss(loss_sum_ / static_cast<double>(loss_count_));
    record.set_examples_per_second(
        static_cast<double>(steps_ * options_.batch_size) /
        std::max(1e-9, absl::ToDoubleSeconds(now - last_record_)));
    loop_->AddRecord(record, now);
  }
  loss_sum_ = 0;
  loss_count_ = 0;
  steps_ = 0;
  last_record_ = now;
}

}  // namespace slackline
