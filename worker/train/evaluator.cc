#include "worker/train/evaluator.h"

#include <algorithm>
#include <numeric>

#include "common/status.h"
#include "common/view/shard_map.h"
#include "worker/model/compute.h"

namespace slackline {
namespace {
constexpr int64_t kEvaluationBatch = 500;
}  // namespace

void LoadSnapshot(const Snapshot& snapshot, Model* model) {
  SL_CHECK(snapshot.size() == model->tables().size(),
           "snapshot of another model");
  for (size_t table = 0; table < snapshot.size(); ++table) {
    int64_t element = 0;
    for (const Payload& piece : snapshot[table]) {
      model->Load(static_cast<int>(table), element, piece);
      element += static_cast<int64_t>(piece.size() / sizeof(float));
    }
    SL_CHECK(element == TableElements(model->tables()[table]),
             "snapshot is too small");
  }
}

Snapshot TakeSnapshot(Model& model) {
  Snapshot snapshot;
  for (size_t table = 0; table < model.tables().size(); ++table) {
    const int64_t elements = TableElements(model.tables()[table]);
    Payload values =
        Payload::Allocate(static_cast<size_t>(elements) * sizeof(float));
    const absl::Status read = model.Read(
        static_cast<int>(table),
        absl::MakeSpan(reinterpret_cast<float*>(values.MutableData()),
                       static_cast<size_t>(elements)));
    SL_CHECK(read.ok(), read.ToString());
    snapshot.push_back({std::move(values)});
  }
  return snapshot;
}

absl::StatusOr<DatasetLoss> EvaluateDataset(
    Model& model, const Dataset& data,
    const std::function<absl::Status()>& go_on) {
  std::vector<float> inputs(kEvaluationBatch * data.features());
  std::vector<int64_t> labels(kEvaluationBatch);
  std::vector<int64_t> rows(kEvaluationBatch);
  double loss_sum = 0;
  int64_t correct = 0;
  for (int64_t begin = 0; begin < data.examples(); begin += kEvaluationBatch) {
    if (go_on) SL_RETURN_IF_ERROR(go_on());
    rows.resize(std::min(kEvaluationBatch, data.examples() - begin));
    std::iota(rows.begin(), rows.end(), begin);
    data.Gather(rows, inputs.data(), labels.data());
    SL_ASSIGN_OR_RETURN(
        const Model::Evaluation batch,
        model.Evaluate({.examples = static_cast<int64_t>(rows.size()),
                        .inputs = inputs.data(),
                        .labels = labels.data()}));
    loss_sum += batch.loss_sum;
    correct += batch.correct;
  }
  const double examples = static_cast<double>(data.examples());
  SL_ASSIGN_OR_RETURN(const double penalty, model.Regularizer());
  return DatasetLoss{.objective = loss_sum / examples + penalty,
                     .accuracy = static_cast<double>(correct) / examples};
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
