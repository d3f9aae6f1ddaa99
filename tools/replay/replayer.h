// Trains a model as a delay trace says, in one thread: every gradient is
// computed from exactly the version that the trace names, and every update made
// of exactly those gradients, by the same code as in workers and servers. So
// two optimizers, or two rules for stale gradients, meet the very same delays,
// and a replay gives the same bits each time. A trace has delays and no
// gradients: what else a recorded program of one's own chose, the optimizers of
// its tables and the factors of its rates, is not replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/compress/gradient_compressor.h"
#include "common/delays/delay_trace.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/stale/stale_rule.h"
#include "common/optim/update_rule.h"
#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"
#include "server/shard/shard.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/train/batch_memory.h"
#include "worker/train/evaluator.h"

namespace slackline {

// Steps that a job of this config takes, for making a trace of that length.
absl::StatusOr<LearningRateSchedule::JobLength> ReplayLength(
    const config::ClusterConfig& config, const DataSplit& data);

// Thread-compatible.
class Replayer {
 public:
  struct Callbacks {
    // TRAIN records have the mean loss over all workers; of EVAL records, the
    // model is that of the servers when so many clocks' worth of updates were
    // applied to every shard. Times are 0.
    std::function<void(const run::MetricRecord&)> record;
    // Called after every update with the clocks done so far, and of how many.
    // An error ends the replay with it.
    std::function<absl::Status(Clock done, Clock total)> proceed;
  };

  // `data` and `model` are not owned; the model's parameters are overwritten.
  // The config's mode, its limits but shard_kib, and train.stop.wall_seconds
  // mean nothing here. InvalidArgument: the trace is of another number of
  // workers or shards than the config.
  static absl::StatusOr<std::unique_ptr<Replayer>> Create(
      const config::ClusterConfig& config, DelayTrace trace,
      const DataSplit* data, Model* model, Callbacks callbacks);

  // To the end of the trace, or until train.stop is met. The model then has the
  // final parameters. In the summary, what a replay does not have is 0: times,
  // bytes, waits. InvalidArgument: the loss is not finite any more,
  // or the trace contradicts itself.
  absl::StatusOr<run::Summary> Run();

  // Of a replay whose Run() has returned this error: what is known by then.
  run::Summary SummaryOfFailure(const absl::Status& why) const;

 private:
  struct Worker {
    Sampler sampler;
    GradientCompressor compressor;
    Clock next_clock = 0;  // What it compresses next.
  };
  struct ServedShard {
    Shard shard;
    StaleRule rule;
    StaleRule::Memory memory = {};
    RunningRms running_rms = {};
    size_t done = 0;  // Updates.
  };
  // A worker's step: from reading until its last shard is used up.
  struct Step {
    int missing = 0;  // Shards whose version is not there yet.
    int uses = 0;     // Updates of shards that are still to take it.
    bool computed = false;
    std::vector<Payload> values;  // By shard, until nothing needs them.
    std::vector<Version> versions;
    std::vector<Payload> gradients;  // By table.
  };
  struct EvalPoint {
    Clock clock = 0;
    int missing = 0;
    std::vector<Payload> values;
  };
  // Who waits for the version after so many updates of a shard.
  struct Waiters {
    std::vector<int64_t> steps;
    std::vector<size_t> evaluations;
  };

  Replayer(const config::ClusterConfig& config, DelayTrace trace,
           const DataSplit* data, Model* model, Callbacks callbacks,
           UpdateRule rule);

  absl::Status Prepare();
  absl::Status MakeWorkers();
  absl::Status MakeShards();
  // Who waits for which version of which shard.
  absl::Status PlanSteps();
  void PlanEvaluations();
  size_t TraceOf(size_t shard) const { return trace_.any_model ? 0 : shard; }
  int64_t StepId(int32_t rank, Clock clock) const {
    return clock * trace_.workers + rank;
  }
  // Hands the present version of the shard to those who wait for it.
  absl::Status Publish(size_t shard);
  bool Ready(const DelayTrace::Update& update) const;
  absl::Status Compute(int32_t rank, Clock clock);
  absl::Status Apply(size_t shard, const DelayTrace::Update& update);
  // The model gets the parameters as workers do: see Table::pulled_as.
  void LoadPulled(std::vector<Payload> values);
  absl::Status Evaluate(const EvalPoint& point);
  void AddLoss(Clock clock, double loss);
  void PutSummary(run::Summary* summary) const;

  const config::ClusterConfig config_;
  const DelayTrace trace_;
  const DataSplit& data_;
  Model& model_;
  const Callbacks callbacks_;
  const GradientBound bound_;
  const UpdateRule update_rule_;  // Of all tables: built-in models have one.
  std::shared_ptr<const View> view_;
  std::vector<Worker> workers_;  // By rank.
  int64_t steps_per_epoch_ = 0;
  Clock clocks_ = 0;  // Of the trace.

  std::vector<ServedShard> shards_;
  std::vector<Step> steps_;  // By StepId().
  std::vector<EvalPoint> evaluations_;
  // By trace shard.
  std::vector<std::unordered_map<int64_t, Waiters>> waiters_;
  std::vector<std::vector<Clock>> complete_;  // CompleteClocks() of each.

  BatchMemory memory_;
  struct LossWindow {
    double sum = 0;
    int64_t count = 0;
  };
  Clock window_ = 1;  // Clocks in one TRAIN record.
  std::vector<LossWindow> losses_;
  run::ServerStats stats_;  // Staleness.
  int64_t dropped_ = 0;
  int64_t oversized_ = 0;
  std::string stopped_;
  std::optional<std::pair<int32_t, Clock>> diverged_;  // Rank and step.
  std::optional<double> last_loss_;  // Of the last TRAIN record.
  run::MetricRecord last_evaluation_;
};

}  // namespace slackline
