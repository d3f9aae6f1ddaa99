// Trainer: the step loop of a worker, from joining to the end of the job,
// through all phases. Runs on the thread that calls Run(); the communication
// thread is the PsClient's.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "proto/cluster.pb.h"
#include "worker/client/ps_client.h"
#include "worker/conditions/pacer.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/train/coordinator_store.h"
#include "worker/train/evaluator.h"
#include "worker/train/phase_follower.h"
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
          Model* model, PsClient* client);
  ~Trainer();

  // Trains to the end of the job, wherever that finds this worker. OK when it
  // has FINISHED. Errors as in PsClient, and
  // InvalidArgument when the loss is no number any more.
  absl::Status Run();

 private:
  absl::Status TrainToTheEnd();
  // How long the worker has stood still for a change, and why.
  struct Change {
    absl::Time since = absl::InfiniteFuture();  // None is under way.
    absl::Duration connect;
    absl::Duration transfer;
    int64_t bytes = 0;
    uint64_t model_hash = 0;
  };

  // Joins the job at the clock that it is at. Sets clock_, follower_ and what
  // the mode needs.
  absl::Status Start(const View& view);
  absl::Status Train();
  absl::Status StepOverServers();
  absl::Status StepByAllReduce();
  absl::Status TakeState();
  absl::Status GiveState();
  absl::Status Connect(const View& view);
  // Waits for a view that is newer than `view`, however long, and says for
  // what.
  absl::Status WaitForNewerView(const View& view, const std::string& what);
  // Sends the calls, with the figures of the change that ends with an Entered.
  void Notify(std::vector<wire::Call> calls);
  // Parameters of clock_ from the servers, which were asked for or are now.
  absl::Status PullParameters();
  // In BACKUP, with parameters_: if the others are ahead, so that this worker's
  // gradients would come too late, it skips the clocks until theirs, at most
  // once for each step that it does. True if it has; then clock_ is another.
  absl::StatusOr<bool> SkipToTheOthers();
  absl::Status MakeReplica();
  // Asks the coordinator for a new group, unless the job is over.
  absl::Status LoseConnection(uint64_t group, const absl::Status& why);
  // With an error the others notice that we go.
  void DropGroup(const absl::Status& why);
  // Takes leave of a group that everybody leaves, beside what comes next: the
  // others may take their time to answer.
  void RetireGroup();
  // Loss of the minibatch of `step` at the model's parameters. With on_device,
  // gradients stay where the model is.
  absl::StatusOr<double> ComputeGradients(Clock step,
                                          const Model::GradientReady& ready,
                                          bool on_device = false);
  absl::Duration GroupWaitMax() const {
    return absl::Milliseconds(options_.config.limits().wait_timeout_ms());
  }
  // The step of clock_ is complete.
  absl::Status StepDone(double loss);
  // At clock_, whose parameters are there.
  void EvaluateIfDue(const std::function<Snapshot()>& snapshot);
  // Tells the coordinator. Keeps the first model that meets a stop rule.
  void OnEvaluated(const Evaluator::Evaluation& evaluation);
  // Writes the model to the run's folder, if there is one, with its hash.
  absl::Status WriteModel(Model& model, run::Result* result) const;
  // After the last step: waits for the others; the chief evaluates and writes.
  absl::Status Finish();
  absl::Status FinishAsChief();

  const Options options_;
  const DataSplit& data_;
  Sampler& sampler_;
  Model& model_;
  PsClient& client_;
  CoordinatorStore store_;
  const LearningRateSchedule::JobLength length_;
  RunReport report_;
  std::unique_ptr<Evaluator> evaluator_;  // Made when this worker is the chief.
  std::vector<float> inputs_;
  std::vector<int64_t> labels_;
  Pacer pacer_;
  absl::Time running_since_;     // As this worker has learned of it.
  absl::Duration last_compute_;  // Without sleeping.

  Clock clock_ = 0;  // Steps completed; -1: not known yet.
  std::optional<PhaseFollower> follower_;
  std::mutex promising_;  // Next() and Promise(), which views also call.
  Change change_;
  Clock evaluated_ = 0;  // The last clock whose model was evaluated.
  bool kept_ = false;    // A model that meets a stop rule. The evaluator's.
  // Between two steps: where it has skipped clocks from, and to.
  std::optional<std::pair<Clock, Clock>> skipped_;
  // Over servers.
  std::optional<PsClient::PullResult> parameters_;  // Of clock_.
  bool pulling_ = false;                            // They were asked for.
  // By all-reduce; the replica also until the servers have all of its state.
  std::optional<LearningRateSchedule> schedule_;
  double learning_rate_ = 0;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<Collective> group_;
  std::thread retired_;      // Ends with the end of the group before.
  int failed_connects_ = 0;  // In a row.
};

}  // namespace slackline
