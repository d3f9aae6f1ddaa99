// Evaluation on its own thread and model, so that training goes on meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/session/snapshot.h"

namespace slackline {

struct DatasetLoss {
  double objective = 0;            // Mean loss plus the model's regulariser.
  std::optional<double> accuracy;  // In [0, 1]; nothing without classes.
};
// Asks `go_on`, unless it is null, before each part; what it returns if that is
// not OK ends the evaluation.
absl::StatusOr<DatasetLoss> EvaluateDataset(
    Model& model, const Dataset& data,
    const std::function<absl::Status()>& go_on = nullptr);

class Evaluator {
 public:
  struct Evaluation {
    int64_t step = 0;
    absl::Time submitted;
    DatasetLoss loss;
    Model* model = nullptr;  // Has the snapshot. The evaluator's.
  };
  using Done = std::function<void(const Evaluation& evaluation)>;
  // `done` is called on the evaluator's thread, in the order of Submit().
  Evaluator(std::unique_ptr<Model> model, std::shared_ptr<const Dataset> data,
            int threads, Done done);
  ~Evaluator();  // Gives up what is not done yet.

  // The model was there at `submitted`. False, and nothing happens, if
  // kQueueMax evaluations wait already.
  bool Submit(int64_t step, absl::Time submitted, Snapshot snapshot);
  // Waits until everything submitted is done. The first error of any of them.
  absl::Status Drain();

  static constexpr size_t kQueueMax = 4;

 private:
  struct Job {
    int64_t step = 0;
    absl::Time submitted;
    Snapshot snapshot;
  };
  void Run(int threads);

  const std::unique_ptr<Model> model_;
  const std::shared_ptr<const Dataset> data_;
  const Done done_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_ = false;  // Set under mutex_.
  std::thread thread_;
};

}  // namespace slackline
