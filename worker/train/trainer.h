// Trainer: performs the tasks of a Session with a built-in model and its data.
// Runs on the thread that calls Run(). Decides nothing about the job.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/session/session.h"
#include "worker/train/batch_memory.h"
#include "worker/train/evaluator.h"

namespace slackline {

class Trainer {
 public:
  // The pointers stay the caller's and outlive the Trainer. The session's
  // parameters are those of `model`.
  Trainer(int compute_threads, const DataSplit* data, Sampler* sampler,
          Model* model, Session* session);

  // Trains to the end of the job, wherever that finds this worker. Returns
  // Session::ending().
  absl::Status Run();

 private:
  // What it returns, if that is not OK, is the worker's failure.
  absl::Status Perform(const Session::Step& step);
  absl::Status Perform(const Session::Evaluation& evaluation);
  absl::Status Perform(const Session::Conclusion& conclusion);
  // All that it has is parameters, so it is never asked for anything else.
  static absl::Status Perform(const Session::Keep&) { return NoState(); }
  static absl::Status Perform(const Session::Restore&) { return NoState(); }
  static absl::Status NoState() {
    return absl::InternalError("this program keeps nothing in checkpoints");
  }

  const int compute_threads_;
  const DataSplit& data_;
  Sampler& sampler_;
  Model& model_;
  Session& session_;
  BatchMemory memory_;
  std::unique_ptr<Evaluator> evaluator_;  // Made when this worker is the chief.
};

}  // namespace slackline
