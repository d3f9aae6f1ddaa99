#include "worker/train/evaluator.h"

#include <algorithm>
#include <numeric>

#include "common/status.h"
#include "common/thread_name.h"
#include "worker/model/compute.h"
#include "worker/train/batch_memory.h"

namespace slackline {
namespace {
constexpr int64_t kEvaluationBatch = 500;
}  // namespace

absl::StatusOr<DatasetLoss> EvaluateDataset(
    Model& model, const Dataset& data,
    const std::function<absl::Status()>& go_on) {
  BatchMemory memory(kEvaluationBatch, data);
  std::vector<int64_t> rows(kEvaluationBatch);
  double loss_sum = 0;
  std::optional<int64_t> correct;
  for (int64_t begin = 0; begin < data.examples(); begin += kEvaluationBatch) {
    if (go_on) SL_RETURN_IF_ERROR(go_on());
    rows.resize(std::min(kEvaluationBatch, data.examples() - begin));
    std::iota(rows.begin(), rows.end(), begin);
    SL_ASSIGN_OR_RETURN(const Model::Evaluation batch,
                        model.Evaluate(memory.Fill(data, rows)));
    loss_sum += batch.loss_sum;
    if (batch.correct.has_value())
      correct = correct.value_or(0) + *batch.correct;
  }
  const double examples = static_cast<double>(data.examples());
  SL_ASSIGN_OR_RETURN(const double penalty, model.Regularizer());
  DatasetLoss loss{.objective = loss_sum / examples + penalty,
                   .accuracy = std::nullopt};
  if (correct.has_value())
    loss.accuracy = static_cast<double>(*correct) / examples;
  return loss;
}

Evaluator::Evaluator(std::unique_ptr<Model> model,
                     std::shared_ptr<const Dataset> data, int threads,
                     Done done)
    : model_(std::move(model)),
      data_(std::move(data)),
      done_(std::move(done)),
      thread_(&Evaluator::Run, this, threads) {}

Evaluator::~Evaluator() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

bool Evaluator::Submit(int64_t step, absl::Time submitted, Snapshot snapshot) {
  const MutexLock lock(mutex_);
  if (jobs_.size() >= kQueueMax) return false;
  jobs_.push_back(
      {.step = step, .submitted = submitted, .snapshot = std::move(snapshot)});
  changed_.notify_all();
  return true;
}

absl::Status Evaluator::Drain() {
  MutexLock lock(mutex_);
  while (!jobs_.empty() || busy_) lock.Wait(changed_);
  return failure_;
}

void Evaluator::Run(int threads) {
  NameThisThread("evaluator");
  // OpenMP's number of threads belongs to the calling thread.
  (void)SetComputeThreads(threads);
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && jobs_.empty()) lock.Wait(changed_);
    if (stopping_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.Unlock();
    LoadSnapshot(job.snapshot, model_.get());
    job.snapshot.clear();
    const absl::StatusOr<DatasetLoss> loss =
        EvaluateDataset(*model_, *data_, [&] {
          return stopping_.load()
                     ? absl::CancelledError("the evaluation was given up")
                     : absl::OkStatus();
        });
    if (loss.ok()) {
      done_({.step = job.step,
             .submitted = job.submitted,
             .loss = *loss,
             .model = model_.get()});
    }
    lock.Lock();
    if (!loss.ok() && failure_.ok()) failure_ = loss.status();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace slackline
