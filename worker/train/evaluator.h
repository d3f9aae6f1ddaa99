// Evaluation on its own thread and model, so that training goes on meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/payload.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace slackline {

// All tables of a model at one moment: for each table, its bytes in one or more
// pieces in element order. Sharing pieces with others costs nothing.
using Snapshot = std::vector<std::vector<Payload>>;

// Loads a snapshot into the model's parameters, first table first. Sizes that
// differ are fatal.
void LoadSnapshot(const Snapshot& snapshot, Model* model);
// Copies the model's parameters. A GPU that cannot be read any more is fatal.
Snapshot TakeSnapshot(Model& model);

struct DatasetLoss {
  double objective = 0;  // Mean loss plus the model's regulariser.
  double accuracy = 0;   // In [0, 1].
};
// Cancelled when `*cancelled` becomes true.
absl::StatusOr<DatasetLoss> EvaluateDataset(
    Model& model, const Dataset& data,
    const std::atomic<bool>* cancelled = nullptr);

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

  // False, and nothing happens, if kQueueMax evaluations wait already.
  bool Submit(int64_t step, Snapshot snapshot);
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
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Job> jobs_;
  bool busy_ = false;
  absl::Status failure_;
  std::atomic<bool> stopping_ = false;  // Set under mutex_.
  std::thread thread_;
};

}  // namespace slackline
