// Trainer: the step loop of a worker, from joining to the end of the job, in
// every mode. Runs on the thread that calls Run(); the communication thread is
// the PsClient's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "proto/cluster.pb.h"
#include "worker/client/ps_client.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/train/evaluator.h"
#include "worker/train/run_report.h"

namespace slackline {

// Steps of one worker, over the job and in an epoch.
LearningRateSchedule::JobLength JobLengthOf(const config::Train& train,
                                            const Sampler& sampler);

class Trainer {
 public:
  struct Options {
    Rank rank{};
    std::string host;  // Where other ranks reach this one.
    int compute_threads = 1;
    double slowdown = 1;  // At least 1.
    config::ClusterConfig config;
    std::string out;  // For the final model; empty: not written.
  };
  // The pointers stay the caller's and outlive the Trainer.
  Trainer(const Options& options, const DataSplit* data, Sampler* sampler,
          Model* model, PsClient* client);

  // Trains to the end. OK when the job has FINISHED. Errors as in PsClient, and
  // InvalidArgument when the loss is no number any more.
  absl::Status Run();

 private:
  absl::Status TrainOverServers(const View& view);
  absl::Status TrainByAllReduce(const View& view);
  // Loss of the minibatch of `step` at the model's parameters.
  absl::StatusOr<double> ComputeGradients(Clock step,
                                          const Model::GradientReady& ready);
  // Bookkeeping after a completed step.
  absl::Status StepDone(Clock step, double loss);
  void EvaluateIfDue(Clock clock, const std::function<Snapshot()>& snapshot);
  // After the last step: waits for the others; the chief evaluates and writes.
  absl::Status Finish();
  absl::Status FinishAsChief(const View& view);
  // What a lost connection means is the coordinator's to say; waits for it.
  absl::Status VerdictOn(const absl::Status& collective_failure);

  const Options options_;
  const DataSplit& data_;
  Sampler& sampler_;
  Model& model_;
  PsClient& client_;
  const LearningRateSchedule::JobLength length_;
  RunReport report_;
  std::unique_ptr<Evaluator> evaluator_;  // Made when this worker is the chief.
  std::vector<float> inputs_;
  std::vector<int64_t> labels_;
  double last_compute_seconds_ = 0;
};

}  // namespace slackline
