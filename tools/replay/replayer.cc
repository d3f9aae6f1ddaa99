#include "tools/replay/replayer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/compress/compression_config.h"
#include "common/config/cluster_config.h"
#include "common/config/stop_rules.h"
#include "common/metrics/staleness.h"
#include "common/status.h"
#include "server/shard/store/store_kinds.h"
#include "worker/session/job_length.h"
#include "worker/session/metric_records.h"
#include "worker/train/evaluator.h"

namespace slackline {
namespace {

absl::StatusOr<Sampler> SamplerOf(const config::ClusterConfig& config,
                                  const DataSplit& data, int32_t rank) {
  return Sampler::Create(
      {.examples = data.train->examples(),
       .batch_size = config.data().batch_size(),
       .rank = Rank{rank},
       .world_size = static_cast<int64_t>(WorkerProcesses(config).size()),
       .seed = static_cast<uint64_t>(config.train().seed())});
}

run::MetricRecord EvaluationRecord(Clock step, int64_t steps_per_epoch,
                                   const DatasetLoss& test) {
  run::MetricRecord record = EvalRecord(step, steps_per_epoch);
  record.set_loss(test.objective);
  if (test.accuracy.has_value()) record.set_accuracy(*test.accuracy);
  return record;
}

}  // namespace

absl::StatusOr<LearningRateSchedule::JobLength> ReplayLength(
    const config::ClusterConfig& config, const DataSplit& data) {
  SL_ASSIGN_OR_RETURN(const Sampler sampler, SamplerOf(config, data, 0));
  return JobLengthOf(config.train(), sampler.steps_per_epoch());
}

absl::StatusOr<std::unique_ptr<Replayer>> Replayer::Create(
    const config::ClusterConfig& config, DelayTrace trace,
    const DataSplit* data, Model* model, Callbacks callbacks) {
  SL_ASSIGN_OR_RETURN(Optimizer optimizer,
                      Optimizer::Create(config.optimizer()));
  SL_ASSIGN_OR_RETURN(const LearningRateSchedule::JobLength length,
                      ReplayLength(config, *data));
  SL_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                      LearningRateSchedule::Create(config.schedule(), length));
  std::unique_ptr<Replayer> replayer(
      new Replayer(config, std::move(trace), data, model, std::move(callbacks),
                   UpdateRule{.optimizer = std::move(optimizer),
                              .schedule = std::move(schedule)}));
  replayer->steps_per_epoch_ = length.steps_per_epoch;
  SL_RETURN_IF_ERROR(replayer->Prepare());
  return replayer;
}

Replayer::Replayer(const config::ClusterConfig& config, DelayTrace trace,
                   const DataSplit* data, Model* model, Callbacks callbacks,
                   UpdateRule rule)
    : config_(config),
      trace_(std::move(trace)),
      data_(*data),
      model_(*model),
      callbacks_(std::move(callbacks)),
      bound_(config.train().has_gradient_bound()
                 ? GradientBound(config.train().gradient_bound())
                 : GradientBound()),
      update_rule_(std::move(rule)),
      memory_(config.data().batch_size(), *data->train) {}

absl::Status Replayer::Prepare() {
  if (trace_.first != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the recorded run did its steps before clock ", trace_.first,
        " by all-reduce, as programs of one's own do whose tables begin with a "
        "worker's values; a replay does not: give the delays to a job of that "
        "program, with slackline run --delays"));
  }
  const auto workers = static_cast<int>(WorkerProcesses(config_).size());
  if (trace_.workers != workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the delays are those of ", trace_.workers, " workers, the config has ",
        workers, "; give it as many"));
  }
  SL_RETURN_IF_ERROR(MakeWorkers());
  SL_RETURN_IF_ERROR(MakeShards());
  SL_RETURN_IF_ERROR(PlanSteps());
  PlanEvaluations();
  window_ = TrainRecordInterval(steps_per_epoch_);
  losses_.resize(clocks_ / window_ + 1);
  return absl::OkStatus();
}

absl::Status Replayer::MakeWorkers() {
  for (int32_t rank = 0; rank < trace_.workers; ++rank) {
    SL_ASSIGN_OR_RETURN(Sampler sampler, SamplerOf(config_, data_, rank));
    SL_ASSIGN_OR_RETURN(
        GradientCompressor compressor,
        GradientCompressor::Create(config_, model_.tables(), Rank{rank}));
    workers_.push_back(
        {.sampler = std::move(sampler), .compressor = std::move(compressor)});
  }
  return absl::OkStatus();
}

absl::Status Replayer::MakeShards() {
  std::vector<wire::Table> tables(model_.tables().begin(),
                                  model_.tables().end());
  for (wire::Table& table : tables) {
    *table.mutable_optimizer() = config_.optimizer();
    table.set_pulled_as(PulledAs(config_.sync(), table));
  }
  wire::View placed;
  const Owner owner{.server = 0, .thread = 0};
  PlaceTables(tables, absl::MakeConstSpan(&owner, 1),
              ShardElements(config_.limits()), &placed);
  placed.add_server()->add_thread();
  placed.set_number(1);
  SL_ASSIGN_OR_RETURN(view_, View::Create(placed));
  const auto count = static_cast<size_t>(view_->shard_count());
  if (!trace_.any_model && trace_.shards.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the delays were recorded with ", trace_.shards.size(),
        " shards, and the config's model has ", count,
        "; replay them with the same model and limits.shard_kib, and record "
        "without splits of shards"));
  }

  SL_ASSIGN_OR_RETURN(const StaleRules rules,
                      StaleRules::Create(config_.sync()));
  for (size_t shard = 0; shard < count; ++shard) {
    const ShardRange& range = view_->shard(ShardId{static_cast<int>(shard)});
    const wire::Table& table = view_->table(range.table);
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<ShardStore> store,
        StoreKindOf(table)->Initial(
            table, range.region, static_cast<uint64_t>(config_.train().seed()),
            update_rule_.optimizer));
    shards_.push_back({.shard = Shard(range, 0, std::move(store)),
                       .rule = rules.For(table.name())});
  }
  return absl::OkStatus();
}

absl::Status Replayer::PlanSteps() {
  const size_t count = shards_.size();
  for (const DelayTrace::Shard& shard : trace_.shards) {
    for (const DelayTrace::Read& read : shard.reads)
      clocks_ = std::max(clocks_, read.clock + 1);
  }
  steps_.resize(clocks_ * trace_.workers);
  for (Step& step : steps_) {
    step.missing = static_cast<int>(count);
    step.values.resize(count);
    step.versions.resize(count);
  }
  waiters_.resize(trace_.shards.size());
  const int shards_per_trace = trace_.any_model ? static_cast<int>(count) : 1;
  for (size_t t = 0; t < trace_.shards.size(); ++t) {
    for (const DelayTrace::Read& read : trace_.shards[t].reads)
      waiters_[t][read.version].steps.push_back(StepId(read.rank, read.clock));
    for (const DelayTrace::Update& update : trace_.shards[t].updates) {
      for (const int32_t rank : update.ranks) {
        if (rank < 0 || rank >= trace_.workers || update.clock < 0 ||
            update.clock >= clocks_) {
          return absl::InvalidArgumentError(absl::StrCat(
              "the delays have an update of rank ", rank, " and clock ",
              update.clock, " without its gradient"));
        }
        steps_[StepId(rank, update.clock)].uses += shards_per_trace;
      }
    }
    complete_.push_back(CompleteClocks(trace_, trace_.shards[t]));
  }
  return absl::OkStatus();
}

void Replayer::PlanEvaluations() {
  const Clock every = EvaluationInterval(config_.train(), steps_per_epoch_);
  // The final model is evaluated at the end anyhow.
  for (Clock clock = every; clock < clocks_; clock += every) {
    for (size_t t = 0; t < trace_.shards.size(); ++t) {
      const auto updates =
          static_cast<int64_t>(trace_.shards[t].updates.size());
      waiters_[t][updates * clock / clocks_].evaluations.push_back(
          evaluations_.size());
    }
    EvalPoint& point = evaluations_.emplace_back();
    point.clock = clock;
    point.missing = static_cast<int>(shards_.size());
    point.values.resize(shards_.size());
  }
}

absl::Status Replayer::Publish(size_t shard) {
  const ServedShard& served = shards_[shard];
  auto& waiters = waiters_[TraceOf(shard)];
  const auto found = waiters.find(static_cast<int64_t>(served.done));
  if (found == waiters.end()) return absl::OkStatus();
  for (const int64_t id : found->second.steps) {
    CountLead(id / trace_.workers, complete_[TraceOf(shard)][served.done],
              &stats_);
    Step& step = steps_[id];
    if (step.uses == 0) continue;  // Every server has dropped it.
    step.values[shard] = served.shard.values();
    step.versions[shard] = served.shard.version();
    --step.missing;
  }
  for (const size_t index : found->second.evaluations) {
    EvalPoint& point = evaluations_[index];
    point.values[shard] = served.shard.values();
    if (--point.missing > 0) continue;
    SL_RETURN_IF_ERROR(Evaluate(point));
    point.values.clear();
  }
  return absl::OkStatus();
}

void Replayer::LoadPulled(std::vector<Payload> values) {
  PayloadMemory memory;
  for (size_t shard = 0; shard < values.size(); ++shard) {
    const TableId table = view_->shard(ShardId{static_cast<int>(shard)}).table;
    const wire::Encoding::Kind kind = view_->table(table).pulled_as();
    values[shard] =
        ExpandParameters(kind, RoundParameters(kind, values[shard], memory));
  }
  LoadSnapshot(SnapshotOf(*view_, values), &model_);
}

absl::Status Replayer::Evaluate(const EvalPoint& point) {
  LoadPulled(point.values);
  SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                      EvaluateDataset(model_, *data_.test));
  last_evaluation_ = EvaluationRecord(point.clock, steps_per_epoch_, test);
  callbacks_.record(last_evaluation_);
  const std::string met = StopRuleMet(
      config_.train().stop(), test.objective,
      test.accuracy.value_or(std::numeric_limits<double>::quiet_NaN()));
  if (!met.empty()) stopped_ = absl::StrCat(met, " at step ", point.clock);
  return absl::OkStatus();
}

bool Replayer::Ready(const DelayTrace::Update& update) const {
  return std::all_of(update.ranks.begin(), update.ranks.end(),
                     [&](int32_t rank) {
                       return steps_[StepId(rank, update.clock)].missing == 0;
                     });
}

absl::Status Replayer::Compute(int32_t rank, Clock clock) {
  Step& step = steps_[StepId(rank, clock)];
  if (step.computed) return absl::OkStatus();
  LoadPulled(step.values);
  Worker& worker = workers_[static_cast<size_t>(rank)];
  const absl::Span<const int64_t> rows = worker.sampler.Batch(clock);
  step.gradients.resize(model_.tables().size());
  SL_ASSIGN_OR_RETURN(const double loss,
                      model_.ForwardBackward(memory_.Fill(*data_.train, rows),
                                             [&](int table, Payload gradient) {
                                               step.gradients[table] =
                                                   std::move(gradient);
                                             }));
  if (!std::isfinite(loss)) {
    diverged_ = {rank, clock};
    return absl::InvalidArgumentError(absl::StrCat(
        "the loss is ", loss, " at step ", clock, " of rank ", rank,
        ": the training has diverged; lower the learning rate"));
  }
  // As the worker has pushed them, one after the other.
  const Clock next = std::exchange(worker.next_clock, clock + 1);
  if (clock != next && worker.compressor.remembers()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the delays leave out step ", next, " of rank ", rank,
        ", and what its compression lost came with the next one; record them "
        "without BACKUP, or with sync.compression { error_feedback: false }"));
  }
  for (size_t table = 0; table < step.gradients.size(); ++table) {
    Payload& gradient = step.gradients[table];
    gradient =
        FloatsOf(worker.compressor.Compress(
                     TableId{static_cast<int32_t>(table)}, clock, gradient),
                 gradient.size() / sizeof(float));
  }
  AddLoss(clock, loss);
  step.computed = true;
  return absl::OkStatus();
}

void Replayer::AddLoss(Clock clock, double loss) {
  LossWindow& window = losses_[clock / window_];
  window.sum += loss;
  if (++window.count < window_ * trace_.workers) return;
  const Clock end = (clock / window_ + 1) * window_;
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::TRAIN);
  record.set_step(end);
  record.set_epoch(static_cast<double>(end) /
                   static_cast<double>(steps_per_epoch_));
  record.set_loss(window.sum / static_cast<double>(window.count));
  last_loss_ = record.loss();
  callbacks_.record(record);
}

absl::Status Replayer::Apply(size_t index, const DelayTrace::Update& update) {
  ServedShard& served = shards_[index];
  Shard& shard = served.shard;
  const ShardRange& range = shard.range();
  const bool mean = trace_.IsMean(update);
  double rate_factor = 1;
  std::vector<Payload> gradients;
  std::vector<double> sizes;
  for (const int32_t rank : update.ranks) {
    SL_RETURN_IF_ERROR(Compute(rank, update.clock));
    Step& step = steps_[StepId(rank, update.clock)];
    Payload gradient = step.gradients[static_cast<size_t>(range.table)].Slice(
        RegionOf(view_->table(range.table)).DenseOffset(range.region),
        range.region.DenseBytes());
    const auto missed =
        static_cast<int64_t>(shard.version() - step.versions[index]);
    // As pushed, and by the turns before, as in a shard.
    const double size =
        bound_
            .Measure(gradient.data(), static_cast<size_t>(range.region.size()))
            .value_or(0);
    const bool oversized = bound_.Judge(size, served.running_rms).has_value();
    bool drop = false;
    if (!mean && !oversized) {
      StaleRule::Verdict verdict = served.rule.Judge(
          {.gradient = gradient.data(),
           .elements = static_cast<size_t>(range.region.size()),
           .now = reinterpret_cast<const float*>(shard.values().data()),
           .then = reinterpret_cast<const float*>(step.values[index].data()),
           .missed_updates = missed,
           .workers = update.workers,
           .maximize = update_rule_.optimizer.maximize()},
          &served.memory);
      drop = verdict.drop;
      rate_factor = verdict.rate_factor;
      if (!verdict.gradient.empty()) gradient = std::move(verdict.gradient);
    }
    if (oversized) {
      if (bound_.stops()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the gradient of rank ", rank, " for ",
            view_->ShardName(range.shard), " at clock ", update.clock,
            " has the root mean square ", size,
            ", above train.gradient_bound; raise the bound, or skip such "
            "gradients with policy: SKIP"));
      }
      ++oversized_;
    } else if (drop) {
      ++dropped_;
    } else {
      sizes.push_back(size);
      CountMissed(missed, mean ? 1 : update.workers, &stats_);
      gradients.push_back(std::move(gradient));
    }
    // The version is let go, so that the update may write in its place.
    step.values[index] = Payload();
    if (--step.uses == 0) step.gradients.clear();
  }
  if (gradients.empty()) return absl::OkStatus();
  for (const double size : sizes) served.running_rms.Add(size);
  const bool compare = served.rule.NeedsUpdates();
  const Payload before = compare ? shard.values() : Payload();
  PayloadMemory heap;
  const int workers =
      mean ? static_cast<int>(gradients.size()) : update.workers;
  SL_RETURN_IF_ERROR(shard.ApplyMean(
      update_rule_.optimizer,
      {.parts = gradients,
       .count = static_cast<int>(gradients.size()),
       .workers = workers},
      update_rule_.NumbersAt(update.clock, {.rate_factor = rate_factor}),
      heap));
  if (compare) {
    served.rule.Updated(reinterpret_cast<const float*>(before.data()),
                        reinterpret_cast<const float*>(shard.values().data()),
                        static_cast<size_t>(range.region.size()),
                        &served.memory);
  }
  return absl::OkStatus();
}

absl::StatusOr<run::Summary> Replayer::Run() {
  const auto count = shards_.size();
  for (size_t shard = 0; shard < count; ++shard)
    SL_RETURN_IF_ERROR(Publish(shard));
  size_t open = count;
  while (open > 0 && stopped_.empty()) {
    open = 0;
    bool progress = false;
    for (size_t shard = 0; shard < count && stopped_.empty(); ++shard) {
      const std::vector<DelayTrace::Update>& updates =
          trace_.shards[TraceOf(shard)].updates;
      size_t& done = shards_[shard].done;
      while (done < updates.size() && Ready(updates[done]) &&
             stopped_.empty()) {
        const DelayTrace::Update& update = updates[done];
        SL_RETURN_IF_ERROR(Apply(shard, update));
        ++done;
        progress = true;
        SL_RETURN_IF_ERROR(Publish(shard));
        SL_RETURN_IF_ERROR(callbacks_.proceed(update.clock, clocks_));
      }
      if (done < updates.size()) ++open;
    }
    if (open > 0 && !progress && stopped_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the delays contradict themselves: ", open,
          " shards wait for gradients that were never computed; a part of the "
          "recording is missing"));
    }
  }

  std::vector<Payload> values;
  for (const ServedShard& served : shards_)
    values.push_back(served.shard.values());
  LoadSnapshot(SnapshotOf(*view_, values), &model_);
  run::Summary summary;
  if (stopped_.empty()) {
    SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                        EvaluateDataset(model_, *data_.test));
    last_evaluation_ = EvaluationRecord(clocks_, steps_per_epoch_, test);
    callbacks_.record(last_evaluation_);
  }
  SL_ASSIGN_OR_RETURN(const DatasetLoss train,
                      EvaluateDataset(model_, *data_.train));
  PutSummary(&summary);
  summary.set_state(wire::JobState_Name(wire::FINISHED));
  summary.set_cause(wire::JobEnd::Cause_Name(wire::JobEnd::COMPLETED));
  summary.set_steps(last_evaluation_.step());
  summary.set_train_loss(train.objective);
  summary.set_test_loss(last_evaluation_.loss());
  if (last_evaluation_.has_accuracy())
    summary.set_test_accuracy(last_evaluation_.accuracy());
  summary.set_stopped(stopped_);
  return summary;
}

void Replayer::PutSummary(run::Summary* summary) const {
  summary->set_job(config_.job());
  summary->set_seed(config_.train().seed());
  summary->set_data(data_.description);
  summary->set_data_hash(data_.hash);
  summary->set_workers(trace_.workers);
  summary->set_servers(1);
  PutStaleness(stats_, summary);
  summary->set_dropped(dropped_);
  summary->set_oversized(static_cast<uint64_t>(oversized_));
}

run::Summary Replayer::SummaryOfFailure(const absl::Status& why) const {
  run::Summary summary;
  PutSummary(&summary);
  summary.set_state(wire::JobState_Name(wire::FAILED));
  summary.set_cause(wire::JobEnd::Cause_Name(
      diverged_.has_value() ? wire::JobEnd::DIVERGED : wire::JobEnd::STOPPED));
  summary.set_reason(std::string(why.message()));
  if (diverged_.has_value()) {
    summary.add_about(absl::StrCat("worker ", diverged_->first));
    summary.set_diverged_at_step(diverged_->second);
  }
  Clock done = clocks_;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const auto& updates = trace_.shards[TraceOf(shard)].updates;
    if (const size_t next = shards_[shard].done; next < updates.size())
      done = std::min(done, updates[next].clock);
  }
  summary.set_steps(done);
  if (last_loss_.has_value()) summary.set_train_loss(*last_loss_);
  if (last_evaluation_.has_loss())
    summary.set_test_loss(last_evaluation_.loss());
  if (last_evaluation_.has_accuracy())
    summary.set_test_accuracy(last_evaluation_.accuracy());
  return summary;
}

}  // namespace slackline
