#include "worker/train/trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/config/stop_rules.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "worker/collective/gloo_collective.h"
#include "worker/model/model_file.h"
#include "worker/train/gpu_parts.h"
#include "worker/train/metric_records.h"

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
      store_(client),
      length_(JobLengthOf(options.config.train(), *sampler)),
      report_({.rank = options.rank,
               .batch_size = options.config.data().batch_size(),
               .steps_per_epoch = length_.steps_per_epoch},
              client),
      inputs_(options.config.data().batch_size() * data->train->features()),
      labels_(options.config.data().batch_size()),
      pacer_({.slowdown = options.slowdown,
              .conditions = options.conditions,
              .seed = static_cast<uint64_t>(options.config.train().seed()),
              .rank = options.rank}) {}

Trainer::~Trainer() {
  if (retired_.joinable()) retired_.join();
}

absl::Status Trainer::Run() {
  const absl::Status ended = TrainToTheEnd();
  // Whatever it broke off: a job that has finished needs nobody.
  if (!absl::IsOutOfRange(client_.failure())) return ended;
  spdlog::info(std::string(client_.failure().message()));
  return absl::OkStatus();
}

absl::Status Trainer::TrainToTheEnd() {
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      client_.WaitUntilRunning());
  if (view->proto().state() != wire::RUNNING) return absl::OkStatus();
  running_since_ = absl::Now();
  spdlog::info("the job runs: {} workers, {} steps of {} examples each",
               view->proto().worker_size(), length_.steps_total,
               options_.config.data().batch_size());
  SL_RETURN_IF_ERROR(Start(*view));
  const absl::Status trained = Train();
  if (trained.ok()) {
    RetireGroup();
  } else {
    DropGroup(trained);
    return trained;
  }
  return Finish();
}

absl::Status Trainer::Start(const View& view) {
  const wire::WorkerMember* const self = view.FindWorker(options_.rank);
  // We may have been given up already; the next call on the client tells.
  const bool founder = self == nullptr || self->founder();
  const bool by_all_reduce =
      founder ? PhaseAt(view.proto(), 0).mode() == wire::ALLREDUCE
              : JoinsByAllReduce(view);
  follower_.emplace(PhaseFollower::Options{.rank = options_.rank,
                                           .steps_total = length_.steps_total},
                    by_all_reduce);
  if (by_all_reduce) {
    SL_RETURN_IF_ERROR(MakeReplica());
    SL_RETURN_IF_ERROR(replica_->Initialize(
        static_cast<uint64_t>(options_.config.train().seed())));
    clock_ = founder ? 0 : -1;
    return absl::OkStatus();
  }
  SL_ASSIGN_OR_RETURN(PsClient::Joined joined, client_.JoinShards());
  clock_ = joined.start;
  // What the join returned may be older than a later start clock.
  if (clock_ == 0) parameters_ = std::move(joined.parameters);
  if (clock_ > 0) spdlog::info("joining the running job at clock {}", clock_);
  return absl::OkStatus();
}

absl::Status Trainer::Train() {
  using Do = PhaseFollower::Do;
  while (true) {
    const std::shared_ptr<const View> view = client_.view();
    SL_RETURN_IF_ERROR(client_.failure());
    if (view->proto().state() != wire::RUNNING) return absl::OkStatus();
    PhaseFollower::Decision decision;
    {
      const std::lock_guard<std::mutex> lock(promising_);
      decision = follower_->Next(*view, clock_);
    }
    const bool steps = decision.what == Do::kStepOverServers ||
                       decision.what == Do::kStepByAllReduce;
    if (!steps && change_.since == absl::InfiniteFuture())
      change_.since = absl::Now();
    Notify(std::move(decision.calls));
    if (steps) change_ = {};
    switch (decision.what) {
      case Do::kStepOverServers:
        SL_RETURN_IF_ERROR(StepOverServers());
        break;
      case Do::kStepByAllReduce:
        SL_RETURN_IF_ERROR(StepByAllReduce());
        break;
      case Do::kWait:
        SL_RETURN_IF_ERROR(WaitForNewerView(*view, decision.waiting_for));
        break;
      case Do::kTakeState:
        SL_RETURN_IF_ERROR(TakeState());
        break;
      case Do::kConnect:
        SL_RETURN_IF_ERROR(Connect(*view));
        break;
      case Do::kGiveState:
        SL_RETURN_IF_ERROR(GiveState());
        break;
      case Do::kFinish:
        return follower_->by_all_reduce() ? absl::OkStatus()
                                          : client_.WaitPushed();
    }
  }
}

void Trainer::Notify(std::vector<wire::Call> calls) {
  for (wire::Call& call : calls) {
    if (call.has_entered()) {
      wire::Entered& entered = *call.mutable_entered();
      if (change_.since != absl::InfiniteFuture()) {
        entered.set_pause_micros(
            absl::ToInt64Microseconds(absl::Now() - change_.since));
      }
      entered.set_connect_micros(absl::ToInt64Microseconds(change_.connect));
      entered.set_transfer_micros(absl::ToInt64Microseconds(change_.transfer));
      entered.set_bytes(change_.bytes);
      entered.set_model_hash(change_.model_hash);
      spdlog::info("{} from clock {} on, after {:.1f} ms",
                   ModeText(PhaseAt(client_.view()->proto(), clock_)),
                   entered.from(),
                   static_cast<double>(entered.pause_micros()) / 1000);
    }
    client_.Notify(std::move(call));
  }
}

absl::Status Trainer::WaitForNewerView(const View& view,
                                       const std::string& what) {
  constexpr absl::Duration kTellEvery = absl::Seconds(10);
  // The coordinator gives dead members up, and ends the job if need be.
  while (true) {
    const absl::Status waited =
        client_
            .WaitForView(
                [&](const View& v) { return v.number() > view.number(); }, what,
                kTellEvery)
            .status();
    if (!absl::IsDeadlineExceeded(waited)) return waited;
    spdlog::info("clock {}: still waits for {}", clock_, what);
  }
}

absl::StatusOr<double> Trainer::ComputeGradients(
    Clock step, const Model::GradientReady& ready, bool on_device) {
  const absl::Time begin = absl::Now();
  const absl::Duration sleep =
      pacer_.SleepBefore(step, last_compute_, begin - running_since_);
  if (sleep > absl::ZeroDuration()) SL_RETURN_IF_ERROR(client_.Sleep(sleep));
  const absl::Time computing = absl::Now();
  const absl::Span<const int64_t> rows = sampler_.Batch(step);
  data_.train->Gather(rows, inputs_.data(), labels_.data());
  const Batch batch = {.examples = static_cast<int64_t>(rows.size()),
                       .inputs = inputs_.data(),
                       .labels = labels_.data()};
  CudaModel* const gpu = on_device ? model_.cuda() : nullptr;
  absl::StatusOr<double> computed;
  if (gpu == nullptr) {
    computed = model_.ForwardBackward(batch, ready);
  } else {
    computed = gpu->ForwardBackwardOnDevice(batch, [&](int table,
                                                       float* gradient) {
      ready(table, Payload::Wrap(gradient,
                                 model_.parameter(table).size() * sizeof(float),
                                 nullptr));
    });
  }
  SL_ASSIGN_OR_RETURN(const double loss, std::move(computed));
  const absl::Time computed_at = absl::Now();
  last_compute_ = computed_at - computing;
  report_.AddComputeSeconds(absl::ToDoubleSeconds(computed_at - begin));
  if (!std::isfinite(loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the loss is ", loss, " at step ", step, " of rank ",
                     static_cast<int>(options_.rank),
                     ": the training has diverged; lower the learning rate"));
  }
  return loss;
}

absl::Status Trainer::StepDone(double loss) {
  ++clock_;
  skipped_.reset();
  report_.StepDone(clock_, loss);
  return client_.failure();
}

void Trainer::EvaluateIfDue(const std::function<Snapshot()>& snapshot) {
  const Clock every =
      EvaluationInterval(options_.config.train(), length_.steps_per_epoch);
  const bool due = skipped_.has_value()
                       ? skipped_->first / every < clock_ / every
                       : clock_ % every == 0;
  // The final model is evaluated at the end anyhow.
  if (!due || clock_ == length_.steps_total || clock_ == evaluated_) return;
  evaluated_ = clock_;
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
        [this](const Evaluator::Evaluation& evaluation) {
          OnEvaluated(evaluation);
        });
  }
  if (!evaluator_->Submit(clock_, snapshot())) {
    spdlog::warn(
        "step {}: evaluation skipped, {} wait already; raise train "
        "{{ eval_every_epochs: ... }}",
        clock_, Evaluator::kQueueMax);
  }
}

void Trainer::OnEvaluated(const Evaluator::Evaluation& evaluation) {
  const DatasetLoss& loss = evaluation.loss;
  run::MetricRecord record =
      EvalRecord(evaluation.step, length_.steps_per_epoch, loss);
  record.set_rank(static_cast<int32_t>(options_.rank));
  spdlog::info("step {}: test loss {:.4f}, accuracy {:.2f} %", evaluation.step,
               loss.objective, 100 * loss.accuracy);
  if (!kept_ && !StopRuleMet(options_.config.train().stop(), loss.objective,
                             loss.accuracy)
                     .empty()) {
    kept_ = true;
    run::Result result;
    if (const absl::Status written = WriteModel(*evaluation.model, &result);
        !written.ok()) {
      spdlog::error("the model that met the stop rule is not kept: {}",
                    std::string(written.message()));
    } else {
      record.set_model_sha256(result.model_sha256());
    }
  }
  client_.AddRecord(record, evaluation.submitted);
}

// ---- Over the servers

absl::Status Trainer::PullParameters() {
  if (parameters_.has_value()) return absl::OkStatus();
  if (!pulling_) SL_RETURN_IF_ERROR(client_.StartPull(clock_, clock_));
  pulling_ = false;
  const Stopwatch stopwatch;
  // Who is waited for may wait for our promise.
  while (!parameters_.has_value()) {
    const std::shared_ptr<const View> view = client_.view();
    Notify(follower_->Promise(*view));
    SL_ASSIGN_OR_RETURN(parameters_, client_.WaitPullOrView(view->number()));
  }
  report_.AddWaitSeconds(stopwatch.Seconds());
  return absl::OkStatus();
}

absl::StatusOr<bool> Trainer::SkipToTheOthers() {
  if (skipped_.has_value() ||
      PhaseAt(client_.view()->proto(), clock_).mode() != wire::BACKUP) {
    return false;
  }
  const auto [smallest, largest] = parameters_->ShardClocks();
  if (largest <= clock_) return false;
  SL_RETURN_IF_ERROR(client_.SkipTo(largest));
  // What shards that lag behind answered is older than that clock allows.
  if (smallest < largest) parameters_.reset();
  skipped_ = {clock_, largest};
  clock_ = largest;
  report_.SkippedTo(clock_);
  return true;
}

absl::Status Trainer::StepOverServers() {
  SL_RETURN_IF_ERROR(PullParameters());
  // What comes next depends on the clock.
  SL_ASSIGN_OR_RETURN(const bool skipped, SkipToTheOthers());
  if (skipped) return absl::OkStatus();
  const PsClient::PullResult parameters = *std::move(parameters_);
  parameters_.reset();
  EvaluateIfDue([&] { return ToSnapshot(parameters); });
  LoadSnapshot(ToSnapshot(parameters), &model_);
  const std::shared_ptr<const std::vector<Version>> versions =
      VersionsOf(parameters);
  const Clock next = clock_ + 1;
  if (options_.config.sync().pull_ahead() && next < length_.steps_total) {
    const std::shared_ptr<const View> view = client_.view();
    const wire::Phase& phase = PhaseAt(view->proto(), next);
    PhaseFollower::Decision decision = follower_->Next(*view, next);
    Notify(std::move(decision.calls));
    // With a bound of at least 1 the next parameters may miss this very step.
    if (decision.what == PhaseFollower::Do::kStepOverServers &&
        (phase.mode() == wire::ASP || phase.staleness() >= 1)) {
      SL_RETURN_IF_ERROR(client_.StartPull(next, clock_));
      pulling_ = true;
    }
  }
  absl::Status pushed;
  SL_ASSIGN_OR_RETURN(
      const double loss,
      ComputeGradients(clock_, [&](int table, Payload gradient) {
        if (!pushed.ok()) return;
        pushed =
            client_.Push(clock_, TableId{table}, std::move(gradient), versions);
      }));
  SL_RETURN_IF_ERROR(pushed);
  return StepDone(loss);
}

// ---- By all-reduce

absl::Status Trainer::MakeReplica() {
  SL_ASSIGN_OR_RETURN(const Optimizer optimizer,
                      Optimizer::Create(options_.config.optimizer()));
  SL_ASSIGN_OR_RETURN(schedule_, LearningRateSchedule::Create(
                                     options_.config.schedule(), length_));
  learning_rate_ = optimizer.learning_rate();
  const std::vector<WorkerProcess> workers = WorkerProcesses(options_.config);
  for (const WorkerProcess& worker : workers) {
    if ((worker.gpu >= 0) == (model_.cuda() != nullptr)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", static_cast<int>(options_.rank), " and worker ", worker.rank,
        " cannot all-reduce, because one trains on a GPU and the other does "
        "not; give all workers the same device, or use bsp, ssp or asp"));
  }
  std::unique_ptr<FloatMemory> memory;
  if (model_.cuda() != nullptr && SlowestLink(options_.config).has_value()) {
    return absl::FailedPreconditionError(
        "NCCL knows no links as in worker { conditions { link } }; leave them "
        "out, or use bsp, ssp or asp");
  }
  if (model_.cuda() == nullptr) {
    memory = std::make_unique<HostMemory>();
  } else {
    SL_ASSIGN_OR_RETURN(memory,
                        CreateGpuMemory(*model_.cuda(), GroupWaitMax()));
  }
  const int64_t bucket_kib = options_.config.sync().collective().bucket_kib();
  SL_ASSIGN_OR_RETURN(replica_,
                      Replica::Create(&model_, optimizer, bucket_kib * 1024,
                                      std::move(memory), client_.view()));
  return absl::OkStatus();
}

absl::Status Trainer::StepByAllReduce() {
  bool group_failed = false;
  const absl::StatusOr<Replica::StepResult> step = replica_->Step(
      *group_,
      [&](const Model::GradientReady& ready) {
        return ComputeGradients(clock_, ready, /*on_device=*/true);
      },
      static_cast<float>(learning_rate_ * schedule_->FactorAt(clock_)),
      &group_failed);
  if (!step.ok() && !group_failed) return step.status();
  if (!step.ok()) return LoseConnection(follower_->group(), step.status());
  report_.AddWaitSeconds(step->wait_seconds);
  SL_RETURN_IF_ERROR(StepDone(step->loss));
  EvaluateIfDue([&] { return TakeSnapshot(model_); });
  return absl::OkStatus();
}

absl::Status Trainer::TakeState() {
  const absl::Time start = absl::Now();
  // Nothing was asked for ahead: the phases of the next clock were known then.
  parameters_.reset();
  SL_RETURN_IF_ERROR(client_.WaitPushed());
  SL_RETURN_IF_ERROR(client_.StartPullState(clock_));
  if (replica_ == nullptr) SL_RETURN_IF_ERROR(MakeReplica());
  SL_ASSIGN_OR_RETURN(const PsClient::PullResult state, client_.WaitPull());
  SL_RETURN_IF_ERROR(replica_->Take(state));
  follower_->TookState();
  change_.transfer += absl::Now() - start;
  change_.bytes = replica_->bytes();
  SL_ASSIGN_OR_RETURN(change_.model_hash, replica_->Hash(*state.view));
  EvaluateIfDue([&] { return TakeSnapshot(model_); });
  return absl::OkStatus();
}

absl::Status Trainer::GiveState() {
  RetireGroup();
  const absl::Time start = absl::Now();
  std::shared_ptr<const View> view = client_.view();
  SL_ASSIGN_OR_RETURN(change_.model_hash, replica_->Hash(*view));
  bool asked = false;
  while (true) {
    std::vector<ClientCore::InstalledShard> share;
    for (const ShardId shard : follower_->Share(*view)) {
      SL_ASSIGN_OR_RETURN(ClientCore::ShardValue state,
                          replica_->Give(*view, shard));
      share.push_back({.shard = shard, .state = std::move(state)});
      change_.bytes += static_cast<int64_t>(
          view->shard(shard).bytes() * (1 + share.back().state.slots.size()));
    }
    SL_RETURN_IF_ERROR(client_.Install(clock_, std::move(share)));
    if (!asked) SL_RETURN_IF_ERROR(client_.StartPull(clock_, clock_));
    asked = true;
    // Who was to install the rest may die.
    SL_ASSIGN_OR_RETURN(parameters_, client_.WaitPullOrView(view->number()));
    if (parameters_.has_value()) break;
    view = client_.view();
    if (view->proto().state() != wire::RUNNING) return absl::OkStatus();
  }
  replica_.reset();
  follower_->GaveState();
  change_.transfer += absl::Now() - start;
  return absl::OkStatus();
}

absl::Status Trainer::Connect(const View& view) {
  constexpr int kFailedConnectsMax = 5;
  const absl::Time start = absl::Now();
  const uint64_t number = view.proto().group();
  DropGroup(absl::CancelledError("the group of workers has changed"));
  std::vector<int32_t> ranks;
  for (const wire::WorkerMember& worker : view.proto().worker())
    ranks.push_back(worker.rank());
  std::sort(ranks.begin(), ranks.end());
  const auto self = std::find(ranks.begin(), ranks.end(),
                              static_cast<int32_t>(options_.rank));
  const GlooCollective::Options group_options = {
      .rank = Rank{static_cast<int32_t>(self - ranks.begin())},
      .world_size = static_cast<int32_t>(ranks.size()),
      .host = options_.host,
      .group = absl::StrCat("all-reduce/", number),
      .connect_timeout = GroupWaitMax(),
      .timeout = GroupWaitMax(),
      .link = SlowestLink(options_.config),
      .keep_trying =
          [&] {
            SL_RETURN_IF_ERROR(client_.failure());
            if (client_.view()->proto().group() == number)
              return absl::OkStatus();
            return absl::CancelledError("the group has changed");
          },
      .store = &store_};
  absl::StatusOr<std::unique_ptr<Collective>> group =
      model_.cuda() == nullptr ? absl::StatusOr<std::unique_ptr<Collective>>(
                                     GlooCollective::Create(group_options))
                               : ConnectGpuGroup(*model_.cuda(), group_options);
  if (!group.ok()) {
    SL_RETURN_IF_ERROR(client_.failure());
    // A newer view says whom to connect to.
    if (client_.view()->proto().group() != number) return absl::OkStatus();
    if (++failed_connects_ == kFailedConnectsMax) return group.status();
    return LoseConnection(number, group.status());
  }
  group_ = *std::move(group);
  // Members that die, or come, wake us through the coordinator as well.
  client_.SetHandlers(
      [this](const absl::Status& failure) { group_->Abort(failure); },
      [this, number](const View& v) {
        if (v.proto().group() != number) {
          group_->Abort(
              absl::UnavailableError("the group of workers has changed"));
        }
        // The others may wait for it, and we for them in a step.
        const std::lock_guard<std::mutex> lock(promising_);
        return follower_->Promise(v);
      });
  follower_->Connected(number);
  const absl::StatusOr<Clock> caught_up = replica_->CatchUp(*group_, clock_);
  if (!caught_up.ok()) {
    if (absl::IsFailedPrecondition(caught_up.status()))
      return caught_up.status();
    return LoseConnection(number, caught_up.status());
  }
  if (clock_ != *caught_up) {
    spdlog::info("took the state of clock {} from another worker", *caught_up);
  }
  clock_ = *caught_up;
  failed_connects_ = 0;
  change_.connect += absl::Now() - start;
  spdlog::info("connected to {} other workers in {:.1f} ms", ranks.size() - 1,
               absl::ToDoubleMilliseconds(absl::Now() - start));
  return absl::OkStatus();
}

absl::Status Trainer::LoseConnection(uint64_t group, const absl::Status& why) {
  SL_RETURN_IF_ERROR(client_.failure());
  spdlog::warn("clock {}: all-reduce failed: {}; connecting anew", clock_,
               std::string(why.message()));
  DropGroup(why);
  client_.Notify(follower_->ConnectionLost(group));
  return absl::OkStatus();
}

void Trainer::RetireGroup() {
  if (group_ == nullptr) return;
  client_.SetHandlers(nullptr, nullptr);
  if (retired_.joinable()) retired_.join();
  if (model_.cuda() != nullptr) {  // That group is this thread's.
    group_.reset();
  } else {
    retired_ = std::thread([group = std::move(group_)] {});
  }
}

void Trainer::DropGroup(const absl::Status& why) {
  if (group_ == nullptr) return;
  client_.SetHandlers(nullptr, nullptr);
  if (!why.ok()) group_->Abort(why);
  group_.reset();
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
  SL_RETURN_IF_ERROR(FinishAsChief());
  return client_
      .WaitForView([](const View&) { return false; },
                   "the coordinator to end the job", wait)
      .status();
}

absl::Status Trainer::FinishAsChief() {
  if (evaluator_ != nullptr) SL_RETURN_IF_ERROR(evaluator_->Drain());
  if (!follower_->by_all_reduce()) {
    // Every push is acknowledged, so this is the final model.
    SL_RETURN_IF_ERROR(
        client_.StartPull(length_.steps_total, length_.steps_total));
    SL_ASSIGN_OR_RETURN(const PsClient::PullResult pulled, client_.WaitPull());
    LoadSnapshot(ToSnapshot(pulled), &model_);
  }
  const absl::Time trained = absl::Now();
  spdlog::info("evaluating the final model");
  SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                      EvaluateDataset(model_, *data_.test));
  SL_ASSIGN_OR_RETURN(const DatasetLoss train,
                      EvaluateDataset(model_, *data_.train));
  run::MetricRecord record =
      EvalRecord(length_.steps_total, length_.steps_per_epoch, test);
  record.set_rank(static_cast<int32_t>(options_.rank));
  client_.AddRecord(record, trained);
  wire::Call leave;
  run::Result& result = *leave.mutable_leave()->mutable_result();
  result.set_steps(length_.steps_total);
  result.set_train_loss(train.objective);
  result.set_test_loss(test.objective);
  result.set_test_accuracy(test.accuracy);
  SL_RETURN_IF_ERROR(WriteModel(model_, &result));
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

absl::Status Trainer::WriteModel(Model& model, run::Result* result) const {
  if (!options_.out.empty())
    result->set_model_file(absl::StrCat(options_.out, "/model.safetensors"));
  SL_ASSIGN_OR_RETURN(*result->mutable_model_sha256(),
                      WriteModelFile(model, result->model_file(),
                                     {{"job", options_.config.job()},
                                      {"mode", ModeText(options_.config)}}));
  return absl::OkStatus();
}

}  // namespace slackline
