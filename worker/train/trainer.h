// Trainer: performs what a WorkerCore decides, with a model, its data and a
// group of workers. Runs on the thread that calls Run(); the communication
// thread is the WorkerLoop's. Decides nothing about the job.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "proto/cluster.pb.h"
#include "worker/conditions/pacer.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/session/worker_loop.h"
#include "worker/train/coordinator_store.h"
#include "worker/train/evaluator.h"
#include "worker/train/replica.h"
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
    config::Conditions conditions;
    config::ClusterConfig config;
    std::string out;  // For the final model; empty: not written.
  };
  // The pointers stay the caller's and outlive the Trainer.
  Trainer(const Options& options, const DataSplit* data, Sampler* sampler,
          Model* model, WorkerLoop* loop);
  ~Trainer();

  // Trains to the end of the job, wherever that finds this worker. OK when it
  // has FINISHED; else as WorkerCore::ended().
  absl::Status Run();

 private:
  // What it returns, if that is not OK, is the worker's failure.
  absl::Status Perform(const WorkerCore::Initialize& action);
  absl::Status Perform(const WorkerCore::Compute& action);
  absl::Status Perform(const WorkerCore::Reduce& action);
  absl::Status Perform(const WorkerCore::Evaluate& action);
  absl::Status Perform(const WorkerCore::TakeState& action);
  absl::Status Perform(const WorkerCore::Connect& action);
  absl::Status Perform(const WorkerCore::CatchUp& action);
  absl::Status Perform(const WorkerCore::LeaveGroup& action);
  absl::Status Perform(const WorkerCore::ReadState& action);
  absl::Status Perform(const WorkerCore::Conclude& action);
  absl::Status Perform(const WorkerCore::Save& action);

  // Loss of the minibatch of `step` at the model's parameters. With on_device,
  // gradients stay where the model is.
  absl::StatusOr<double> ComputeGradients(Clock step,
                                          const Model::GradientReady& ready,
                                          bool on_device = false);
  // So many steps are complete, however that came; the last ones were perhaps
  // not done by this worker.
  void ReachedClock(Clock clock);
  void StepDone(Clock clock, double loss);
  absl::Status MakeReplica();
  void GroupLost(const absl::Status& why);
  void DropGroup(const absl::Status& why);
  // On the evaluator's thread. Keeps the first model that meets a stop rule.
  void OnEvaluated(const Evaluator::Evaluation& evaluation);
  void AddRecord(run::MetricRecord record, absl::Time made_at);
  // Writes the model to the run's folder, if there is one, with its hash.
  absl::Status WriteModel(Model& model, run::Result* result) const;
  absl::Duration GroupWaitMax() const {
    return absl::Milliseconds(options_.config.limits().wait_timeout_ms());
  }

  const Options options_;
  const DataSplit& data_;
  Sampler& sampler_;
  Model& model_;
  WorkerLoop& loop_;
  CoordinatorStore store_;
  const LearningRateSchedule::JobLength length_;
  RunReport report_;
  std::unique_ptr<Evaluator> evaluator_;  // Made when this worker is the chief.
  std::vector<float> inputs_;
  std::vector<int64_t> labels_;
  Pacer pacer_;
  std::optional<absl::Time>
      running_since_;            // As this worker has learned of it.
  absl::Duration last_compute_;  // Without sleeping.
  absl::Duration waited_;        // For the last action.
  Clock clock_ = 0;              // The largest that was reported.
  // By all-reduce; the replica also until the servers have all of its state.
  std::optional<LearningRateSchedule> schedule_;
  double learning_rate_ = 0;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<Collective> group_;
  std::thread retired_;  // Ends with the end of the group before.
  run::Result result_;   // Of the final model.
};

}  // namespace slackline
