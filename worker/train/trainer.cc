#include "worker/train/trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/io/safetensors.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "worker/collective/gloo_collective.h"
#include "worker/collective/gradient_buckets.h"
#include "worker/train/coordinator_store.h"

namespace slackline {
namespace {

// Evaluation of the final model may take long; heartbeats go on meanwhile.
constexpr absl::Duration kFinishWaitMax = absl::Hours(24);

// The chief evaluates and writes the model.
bool IsChief(const View& view, Rank rank) {
  const wire::WorkerMember* const chief = ChiefOf(view);
  return chief != nullptr && chief->rank() == static_cast<int32_t>(rank);
}

bool AllDone(const View& view) {
  for (const wire::WorkerMember& worker : view.proto().worker()) {
    if (!worker.done()) return false;
  }
  return true;
}

Snapshot ToSnapshot(const PsClient::PullResult& pulled) {
  const View& view = *pulled.view;
  Snapshot snapshot(view.proto().table_size());
  for (int table = 0; table < view.proto().table_size(); ++table) {
    for (const ShardRange& range : view.ShardsOf(TableId{table})) {
      snapshot[table].push_back(
          pulled.shards[static_cast<size_t>(range.shard)].values);
    }
  }
  return snapshot;
}

std::shared_ptr<const std::vector<Version>> VersionsOf(
    const PsClient::PullResult& pulled) {
  auto versions = std::make_shared<std::vector<Version>>();
  versions->reserve(pulled.shards.size());
  for (const ClientCore::ShardValue& value : pulled.shards)
    versions->push_back(value.version);
  return versions;
}

class Stopwatch {
 public:
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  const absl::Time start_ = absl::Now();
};

}  // namespace

LearningRateSchedule::JobLength JobLengthOf(const config::Train& train,
                                            const Sampler& sampler) {
  int64_t steps = std::max<int64_t>(
      1, std::llround(train.epochs() *
                      static_cast<double>(sampler.steps_per_epoch())));
  if (train.has_max_steps())
    steps = std::min<int64_t>(steps, train.max_steps());
  return {.steps_total = steps, .steps_per_epoch = sampler.steps_per_epoch()};
}

Trainer::Trainer(const Options& options, const DataSplit* data,
                 Sampler* sampler, Model* model, PsClient* client)
    : options_(options),
      data_(*data),
      sampler_(*sampler),
      model_(*model),
      client_(*client),
      length_(JobLengthOf(options.config.train(), *sampler)),
      report_({.rank = options.rank,
               .batch_size = options.config.data().batch_size(),
               .steps_per_epoch = length_.steps_per_epoch},
              client),
      inputs_(options.config.data().batch_size() * data->train->features()),
      labels_(options.config.data().batch_size()) {}

absl::Status Trainer::Run() {
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      client_.WaitUntilRunning());
  spdlog::info("the job runs: {} workers, {} steps of {} examples each",
               view->proto().worker_size(), length_.steps_total,
               options_.config.data().batch_size());
  SL_RETURN_IF_ERROR(view->proto().mode() == wire::ALLREDUCE
                         ? TrainByAllReduce(*view)
                         : TrainOverServers(*view));
  return Finish();
}

absl::StatusOr<double> Trainer::ComputeGradients(
    Clock step, const Model::GradientReady& ready) {
  if (options_.slowdown > 1) {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(
        absl::Seconds((options_.slowdown - 1) * last_compute_seconds_)));
  }
  const Stopwatch stopwatch;
  const absl::Span<const int64_t> rows = sampler_.Batch(step);
  data_.train->Gather(rows, inputs_.data(), labels_.data());
  SL_ASSIGN_OR_RETURN(
      const double loss,
      model_.ForwardBackward({.examples = static_cast<int64_t>(rows.size()),
                              .inputs = inputs_.data(),
                              .labels = labels_.data()},
                             ready));
  last_compute_seconds_ = stopwatch.Seconds();
  report_.AddComputeSeconds(last_compute_seconds_);
  if (!std::isfinite(loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the loss is ", loss, " at step ", step, " of rank ",
                     static_cast<int>(options_.rank),
                     ": the training has diverged; lower the learning rate"));
  }
  return loss;
}

absl::Status Trainer::StepDone(Clock step, double loss) {
  report_.StepDone(step + 1, loss);
  return client_.failure();
}

void Trainer::EvaluateIfDue(Clock clock,
                            const std::function<Snapshot()>& snapshot) {
  const Clock every = std::max<Clock>(
      1, std::llround(options_.config.train().eval_every_epochs() *
                      static_cast<double>(length_.steps_per_epoch)));
  // The final model is evaluated at the end anyhow.
  if (clock % every != 0 || clock == length_.steps_total) return;
  const std::shared_ptr<const View> view = client_.view();
  if (!IsChief(*view, options_.rank)) return;
  if (evaluator_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Model>> model =
        CreateModel(options_.config.model(), data_.train->features(),
                    data_.train->classes());
    SL_CHECK(model.ok(),
             model.status()
                 .ToString());  // The trainer's own was made from the same.
    evaluator_ = std::make_unique<Evaluator>(
        *std::move(model), data_.test, options_.compute_threads,
        [this](int64_t step, const DatasetLoss& loss) {
          run::MetricRecord record;
          record.set_kind(run::MetricRecord::EVAL);
          record.set_rank(static_cast<int32_t>(options_.rank));
          record.set_step(step);
          record.set_epoch(report_.EpochOf(step));
          record.set_loss(loss.objective);
          record.set_accuracy(loss.accuracy);
          client_.AddRecord(record);
          spdlog::info("step {}: test loss {:.4f}, accuracy {:.2f} %", step,
                       loss.objective, 100 * loss.accuracy);
        });
  }
  if (!evaluator_->Submit(clock, snapshot())) {
    spdlog::warn(
        "step {}: evaluation skipped, {} wait already; raise train "
        "{{ eval_every_epochs: ... }}",
        clock, Evaluator::kQueueMax);
  }
}

// ---- Over the servers

absl::Status Trainer::TrainOverServers(const View& view) {
  SL_ASSIGN_OR_RETURN(PsClient::Joined joined, client_.JoinShards());
  PsClient::PullResult parameters = std::move(joined.parameters);
  Clock clock = joined.start;
  if (clock > 0) spdlog::info("joining the running job at clock {}", clock);
  const config::Sync& sync = options_.config.sync();
  // With a bound of at least 1 the next parameters may miss this very step.
  const bool pull_ahead =
      sync.pull_ahead() &&
      (view.proto().mode() == wire::ASP ||
       (view.proto().mode() == wire::SSP && view.proto().staleness() >= 1));
  if (clock > 0 && clock < length_.steps_total) {
    // What the join returned may be older than the start clock.
    SL_RETURN_IF_ERROR(client_.StartPull(clock, clock));
    SL_ASSIGN_OR_RETURN(parameters, client_.WaitPull());
  }
  for (; clock < length_.steps_total; ++clock) {
    LoadSnapshot(ToSnapshot(parameters), &model_);
    const std::shared_ptr<const std::vector<Version>> versions =
        VersionsOf(parameters);
    const bool last = clock + 1 == length_.steps_total;
    if (pull_ahead && !last)
      SL_RETURN_IF_ERROR(client_.StartPull(clock + 1, clock));
    absl::Status pushed;
    SL_ASSIGN_OR_RETURN(
        const double loss,
        ComputeGradients(clock, [&](int table, Payload gradient) {
          if (!pushed.ok()) return;
          pushed = client_.Push(clock, TableId{table}, std::move(gradient),
                                versions);
        }));
    SL_RETURN_IF_ERROR(pushed);
    if (!last) {
      if (!pull_ahead)
        SL_RETURN_IF_ERROR(client_.StartPull(clock + 1, clock + 1));
      const Stopwatch stopwatch;
      SL_ASSIGN_OR_RETURN(parameters, client_.WaitPull());
      report_.AddWaitSeconds(stopwatch.Seconds());
    }
    SL_RETURN_IF_ERROR(StepDone(clock, loss));
    EvaluateIfDue(clock + 1, [&] { return ToSnapshot(parameters); });
  }
  return client_.WaitPushed();
}

// ---- By all-reduce

absl::Status Trainer::TrainByAllReduce(const View& view) {
  const int64_t world_size = view.proto().worker_size();
  SL_ASSIGN_OR_RETURN(const Optimizer optimizer,
                      Optimizer::Create(options_.config.optimizer()));
  SL_ASSIGN_OR_RETURN(
      const LearningRateSchedule schedule,
      LearningRateSchedule::Create(options_.config.schedule(), length_));
  GradientBuckets::Options bucket_options;
  bucket_options.bucket_bytes =
      int64_t{options_.config.sync().allreduce().bucket_kib()} * 1024;
  const int tables = static_cast<int>(model_.tables().size());
  std::vector<std::vector<float>> slots(tables);
  for (int t = 0; t < tables; ++t) {
    const absl::Span<float> parameter = model_.parameter(t);
    InitializeElements(model_.tables()[t],
                       static_cast<uint64_t>(options_.config.train().seed()), 0,
                       parameter);
    bucket_options.table_elements.push_back(
        static_cast<int64_t>(parameter.size()));
    slots[t].resize(parameter.size() * optimizer.slot_count());
  }
  SL_ASSIGN_OR_RETURN(GradientBuckets buckets,
                      GradientBuckets::Create(bucket_options));
  std::vector<std::vector<int>> tables_of_bucket(buckets.bucket_count());
  for (int t = 0; t < tables; ++t) {
    tables_of_bucket[buckets.PlaceOf(TableId{t}).bucket].push_back(t);
  }

  CoordinatorStore store(&client_);
  absl::StatusOr<std::unique_ptr<GlooCollective>> created =
      GlooCollective::Create(
          {.rank = options_.rank,
           .world_size = static_cast<int32_t>(world_size),
           .host = options_.host,
           .group = absl::StrCat("all-reduce/", view.number()),
           .timeout =
               absl::Milliseconds(options_.config.limits().wait_timeout_ms()),
           .store = &store});
  if (!created.ok()) return VerdictOn(created.status());
  const std::unique_ptr<GlooCollective> collective = *std::move(created);
  // A member that dies wakes the others through the coordinator as well.
  client_.SetFailureHandler(
      [&](const absl::Status& failure) { collective->Abort(failure); });
  const absl::Cleanup clear_handler = [&] {
    client_.SetFailureHandler(nullptr);
  };

  for (Clock clock = 0; clock < length_.steps_total; ++clock) {
    buckets.BeginStep();
    std::vector<Collective::Ticket> tickets;
    absl::Status added;
    SL_ASSIGN_OR_RETURN(
        const double loss,
        ComputeGradients(clock, [&](int table, Payload gradient) {
          std::vector<int> issue;
          added.Update(buckets.Add(TableId{table}, gradient, &issue));
          for (const int bucket : issue) {
            tickets.push_back(
                collective->AllReduceAsync(buckets.bucket(bucket)));
          }
        }));
    SL_RETURN_IF_ERROR(added);
    for (int bucket = 0; bucket < buckets.bucket_count(); ++bucket) {
      const Stopwatch stopwatch;
      if (const absl::Status reduced = collective->Wait(tickets[bucket]);
          !reduced.ok()) {
        return VerdictOn(reduced);
      }
      report_.AddWaitSeconds(stopwatch.Seconds());
      for (const int t : tables_of_bucket[bucket]) {
        const absl::Span<float> parameter = model_.parameter(t);
        const auto* const gradient = reinterpret_cast<const std::byte*>(
            buckets.Gradient(TableId{t}).data());
        Optimizer::ApplyArgs args;
        args.in = parameter.data();
        args.out = parameter.data();
        for (int s = 0; s < optimizer.slot_count(); ++s) {
          args.slots[s] = slots[t].data() + s * parameter.size();
        }
        args.gradients = absl::MakeConstSpan(&gradient, 1);
        args.elements = parameter.size();
        args.gradient_scale = 1.0f / static_cast<float>(world_size);
        args.learning_rate = static_cast<float>(optimizer.learning_rate() *
                                                schedule.FactorAt(clock));
        args.update_count = clock + 1;
        optimizer.Apply(args);
      }
    }
    SL_RETURN_IF_ERROR(StepDone(clock, loss));
    EvaluateIfDue(clock + 1, [&] { return TakeSnapshot(model_); });
  }
  return absl::OkStatus();
}

absl::Status Trainer::VerdictOn(const absl::Status& collective_failure) {
  if (!client_.failure().ok()) return client_.failure();
  spdlog::warn("all-reduce failed: {}; asking the coordinator who is missing",
               std::string(collective_failure.message()));
  // A dead rank is declared dead when its lease runs out.
  const absl::Duration wait =
      absl::Milliseconds(options_.config.limits().lease_ms()) * 2 +
      absl::Seconds(1);
  const absl::Status verdict =
      client_
          .WaitForView([](const View&) { return false; },
                       "the coordinator's verdict", wait)
          .status();
  return absl::IsDeadlineExceeded(verdict) ? collective_failure : verdict;
}

// ---- The end

absl::Status Trainer::Finish() {
  wire::Call leave;
  leave.mutable_leave();
  const absl::Duration wait =
      absl::Milliseconds(options_.config.limits().wait_timeout_ms());
  SL_RETURN_IF_ERROR(client_.Call(leave, Payload(), wait).status());
  spdlog::info("completed {} steps", length_.steps_total);
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      client_.WaitForView(
                          [&](const View& v) {
                            return IsChief(v, options_.rank) && AllDone(v);
                          },
                          "the other workers to finish", kFinishWaitMax));
  if (view->proto().state() == wire::FINISHED) return absl::OkStatus();
  SL_RETURN_IF_ERROR(FinishAsChief(*view));
  return client_
      .WaitForView([](const View&) { return false; },
                   "the coordinator to end the job", wait)
      .status();
}

absl::Status Trainer::FinishAsChief(const View& view) {
  if (evaluator_ != nullptr) SL_RETURN_IF_ERROR(evaluator_->Drain());
  if (view.proto().mode() != wire::ALLREDUCE) {
    // Every push is acknowledged, so this is the final model.
    SL_RETURN_IF_ERROR(
        client_.StartPull(length_.steps_total, length_.steps_total));
    SL_ASSIGN_OR_RETURN(const PsClient::PullResult pulled, client_.WaitPull());
    LoadSnapshot(ToSnapshot(pulled), &model_);
  }
  spdlog::info("evaluating the final model");
  SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                      EvaluateDataset(model_, *data_.test));
  SL_ASSIGN_OR_RETURN(const DatasetLoss train,
                      EvaluateDataset(model_, *data_.train));
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::EVAL);
  record.set_rank(static_cast<int32_t>(options_.rank));
  record.set_step(length_.steps_total);
  record.set_epoch(report_.EpochOf(length_.steps_total));
  record.set_loss(test.objective);
  record.set_accuracy(test.accuracy);
  client_.AddRecord(record);

  std::vector<TensorView> tensors;
  for (size_t t = 0; t < model_.tables().size(); ++t) {
    const wire::Table& table = model_.tables()[t];
    tensors.push_back({.name = table.name(),
                       .shape = {table.shape().begin(), table.shape().end()},
                       .values = model_.parameter(static_cast<int>(t))});
  }
  wire::Call leave;
  run::Result& result = *leave.mutable_leave()->mutable_result();
  result.set_steps(length_.steps_total);
  result.set_train_loss(train.objective);
  result.set_test_loss(test.objective);
  result.set_test_accuracy(test.accuracy);
  result.set_model_sha256(TensorsSha256(tensors));
  if (!options_.out.empty()) {
    result.set_model_file(absl::StrCat(options_.out, "/model.safetensors"));
    SL_RETURN_IF_ERROR(WriteSafetensors(
        result.model_file(), tensors,
        {{"job", options_.config.job()}, {"mode", ModeText(options_.config)}}));
  }
  spdlog::info(
      "final model: train loss {:.6f}, test loss {:.6f}, accuracy {:.2f} %, "
      "sha256 {}",
      train.objective, test.objective, 100 * test.accuracy,
      result.model_sha256());
  return client_
      .Call(leave, Payload(),
            absl::Milliseconds(options_.config.limits().wait_timeout_ms()))
      .status();
}

}  // namespace slackline
