#include "worker/train/trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "worker/collective/gloo_collective.h"
#include "worker/conditions/bad_gradient.h"
#include "worker/model/model_file.h"
#include "worker/train/gpu_parts.h"
#include "worker/train/metric_records.h"

namespace slackline {
namespace {

Snapshot ToSnapshot(const ClientCore::PullResult& pulled) {
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
                 Sampler* sampler, Model* model, WorkerLoop* loop)
    : options_(options),
      data_(*data),
      sampler_(*sampler),
      model_(*model),
      loop_(*loop),
      store_(loop),
      length_(JobLengthOf(options.config.train(), *sampler)),
      report_({.rank = options.rank,
               .batch_size = options.config.data().batch_size(),
               .steps_per_epoch = length_.steps_per_epoch},
              loop),
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
  while (true) {
    const absl::Time asked = loop_.Now();
    const std::unique_ptr<const WorkerCore::Action> action = loop_.Next();
    if (action == nullptr) break;
    const absl::Time now = loop_.Now();
    // Until then it waited for the job to start.
    waited_ = running_since_.has_value() ? now - asked : absl::ZeroDuration();
    if (!running_since_.has_value()) running_since_ = now;
    const absl::Status done =
        std::visit([this](const auto& what) { return Perform(what); }, *action);
    if (done.ok()) continue;
    // Without effect if that is only what ends the worker anyhow.
    loop_.Tell(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.Fail(done, now, effects);
        });
  }
  const absl::Status ended = loop_.ending();
  DropGroup(ended);
  // Whatever it broke off: a job that has finished needs nobody.
  if (!absl::IsOutOfRange(ended)) return ended;
  spdlog::info(std::string(ended.message()));
  return absl::OkStatus();
}

void Trainer::ReachedClock(Clock clock) {
  if (clock <= clock_) return;
  clock_ = clock;
  report_.SkippedTo(clock);
}

void Trainer::StepDone(Clock clock, double loss) {
  clock_ = clock + 1;
  report_.StepDone(clock_, loss);
}

absl::StatusOr<double> Trainer::ComputeGradients(
    Clock step, const Model::GradientReady& ready, bool on_device) {
  const absl::Time begin = loop_.Now();
  const absl::Duration sleep =
      pacer_.SleepBefore(step, last_compute_, begin - *running_since_);
  if (sleep > absl::ZeroDuration()) SL_RETURN_IF_ERROR(loop_.Sleep(sleep));
  if (options_.conditions.has_stall_at_step() &&
      step == options_.conditions.stall_at_step()) {
    spdlog::warn("stands still at step {}, as conditions.stall_at_step says",
                 step);
    absl::SleepFor(absl::InfiniteDuration());
  }
  const absl::Time computing = loop_.Now();
  const absl::Span<const int64_t> rows = sampler_.Batch(step);
  data_.train->Gather(rows, inputs_.data(), labels_.data());
  const Batch batch = {.examples = static_cast<int64_t>(rows.size()),
                       .inputs = inputs_.data(),
                       .labels = labels_.data()};
  CudaModel* const gpu = on_device ? model_.cuda() : nullptr;
  absl::StatusOr<double> loss;
  if (gpu == nullptr) {
    const bool bad = HasBadGradient(options_.conditions, step);
    loss = model_.ForwardBackward(batch, [&](int table, Payload gradient) {
      ready(table, bad && table == 0 ? WithNan(gradient) : std::move(gradient));
    });
  } else {
    loss = gpu->ForwardBackwardOnDevice(batch, [&](int table, float* gradient) {
      ready(table, Payload::Wrap(gradient,
                                 model_.parameter(table).size() * sizeof(float),
                                 nullptr));
    });
  }
  const absl::Time computed_at = loop_.Now();
  last_compute_ = computed_at - computing;
  report_.AddComputeSeconds(absl::ToDoubleSeconds(computed_at - begin));
  return loss;
}

// ---- Over the servers

absl::Status Trainer::Perform(const WorkerCore::Compute& action) {
  replica_.reset();
  report_.AddWaitSeconds(absl::ToDoubleSeconds(waited_));
  ReachedClock(action.clock);
  LoadSnapshot(ToSnapshot(*action.parameters), &model_);
  absl::Status pushed;
  SL_ASSIGN_OR_RETURN(
      const double loss,
      ComputeGradients(action.clock, [&](int table, Payload gradient) {
        if (pushed.ok()) pushed = loop_.Push(TableId{table}, gradient);
      }));
  SL_RETURN_IF_ERROR(pushed);
  StepDone(action.clock, loss);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnComputed(loss, now, effects);
      });
  return absl::OkStatus();
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
                                      std::move(memory), loop_.view()));
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const WorkerCore::Initialize&) {
  SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(replica_->Initialize(
      static_cast<uint64_t>(options_.config.train().seed())));
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnInitialized(now, effects);
      });
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const WorkerCore::Reduce& action) {
  ReachedClock(action.clock);
  bool group_failed = false;
  const absl::StatusOr<Replica::StepResult> step = replica_->Step(
      *group_,
      [&](const Model::GradientReady& ready) {
        absl::StatusOr<double> loss =
            ComputeGradients(action.clock, ready, /*on_device=*/true);
        loop_.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
          core.OnReducing(now);
        });
        return loss;
      },
      static_cast<float>(learning_rate_ * schedule_->FactorAt(action.clock)),
      &group_failed);
  if (!step.ok() && !group_failed) return step.status();
  if (!step.ok()) {
    GroupLost(step.status());
    return absl::OkStatus();
  }
  report_.AddWaitSeconds(step->wait_seconds);
  WorkerCore::Reduced reduced{.loss = step->loss,
                              .nonfinite = step->nonfinite,
                              .culprits = step->culprits};
  if (absl::c_linear_search(step->culprits, group_->rank()))
    report_.AddNonfinite();
  StepDone(action.clock, step->loss);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnReduced(reduced, now, effects);
      });
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const WorkerCore::TakeState& action) {
  if (replica_ == nullptr) SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(replica_->Take(*action.state));
  WorkerCore::Moved moved{.bytes = replica_->bytes()};
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica_->Hash(*action.state->view));
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateTaken(moved, now, effects);
      });
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const WorkerCore::ReadState& action) {
  WorkerCore::Moved moved;
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica_->Hash(*action.view));
  std::vector<ClientCore::InstalledShard> shards;
  for (const ShardId shard : action.shards) {
    SL_ASSIGN_OR_RETURN(ClientCore::ShardValue state,
                        replica_->Give(*action.view, shard));
    moved.bytes += static_cast<int64_t>(action.view->shard(shard).bytes() *
                                        (1 + state.slots.size()));
    shards.push_back({.shard = shard, .state = std::move(state)});
  }
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateRead(std::move(shards), moved, now, effects);
      });
  return absl::OkStatus();
}

// ---- The group

absl::Status Trainer::Perform(const WorkerCore::Connect& action) {
  const absl::Time start = loop_.Now();
  DropGroup(absl::CancelledError("the group of workers has changed"));
  store_.SetGroup(action.group);
  const GlooCollective::Options group_options = {
      .rank = Rank{action.self},
      .world_size = static_cast<int32_t>(action.ranks.size()),
      .host = options_.host,
      .group = absl::StrCat("all-reduce/", action.group),
      .connect_timeout = GroupWaitMax(),
      .timeout = GroupWaitMax(),
      .link = SlowestLink(options_.config),
      .keep_trying =
          [&] {
            SL_RETURN_IF_ERROR(loop_.ending());
            if (loop_.view()->proto().group() == action.group)
              return absl::OkStatus();
            return absl::CancelledError("the group has changed");
          },
      .store = &store_};
  absl::StatusOr<std::unique_ptr<Collective>> group =
      model_.cuda() == nullptr ? absl::StatusOr<std::unique_ptr<Collective>>(
                                     GlooCollective::Create(group_options))
                               : ConnectGpuGroup(*model_.cuda(), group_options);
  if (!group.ok()) {
    GroupLost(group.status());
    return absl::OkStatus();
  }
  group_ = *std::move(group);
  // Members that die, or come, wake us through the coordinator as well.
  loop_.SetAbort(action.group,
                 [this](const absl::Status& why) { group_->Abort(why); });
  spdlog::info("connected to {} other workers in {:.1f} ms",
               action.ranks.size() - 1,
               absl::ToDoubleMilliseconds(loop_.Now() - start));
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnConnected(now, effects);
      });
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const WorkerCore::CatchUp& action) {
  const absl::StatusOr<Clock> clock = replica_->CatchUp(*group_, action.clock);
  if (absl::IsFailedPrecondition(clock.status())) return clock.status();
  if (!clock.ok()) {
    GroupLost(clock.status());
    return absl::OkStatus();
  }
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnCaughtUp(*clock, now, effects);
      });
  return absl::OkStatus();
}

// The others may take their time to answer; that goes on beside what is next.
absl::Status Trainer::Perform(const WorkerCore::LeaveGroup&) {
  if (group_ == nullptr) return absl::OkStatus();
  loop_.SetAbort(0, nullptr);
  if (retired_.joinable()) retired_.join();
  if (model_.cuda() != nullptr) {  // That group is this thread's.
    group_.reset();
  } else {
    retired_ = std::thread([group = std::move(group_)] {});
  }
  return absl::OkStatus();
}

void Trainer::GroupLost(const absl::Status& why) {
  spdlog::warn("all-reduce failed: {}", std::string(why.message()));
  DropGroup(why);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnGroupLost(why, now, effects);
      });
}

// With an error the others notice that this worker goes.
void Trainer::DropGroup(const absl::Status& why) {
  if (group_ == nullptr) return;
  loop_.SetAbort(0, nullptr);
  if (!why.ok()) group_->Abort(why);
  group_.reset();
}

// ---- Evaluation and the end

absl::Status Trainer::Perform(const WorkerCore::Evaluate& action) {
  if (evaluator_ == nullptr) {
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        CreateModel(options_.config.model(), data_.train->features(),
                    data_.train->classes()));
    evaluator_ = std::make_unique<Evaluator>(
        std::move(model), data_.test, options_.compute_threads,
        [this](const Evaluator::Evaluation& evaluation) {
          OnEvaluated(evaluation);
        });
  }
  Snapshot snapshot = action.parameters == nullptr
                          ? TakeSnapshot(model_)
                          : ToSnapshot(*action.parameters);
  if (!evaluator_->Submit(action.clock, loop_.Now(), std::move(snapshot))) {
    spdlog::warn(
        "step {}: evaluation skipped, {} wait already; raise train "
        "{{ eval_every_epochs: ... }}",
        action.clock, Evaluator::kQueueMax);
  }
  return absl::OkStatus();
}

void Trainer::AddRecord(run::MetricRecord record, absl::Time made_at) {
  record.set_rank(static_cast<int32_t>(options_.rank));
  loop_.AddRecord(record, made_at);
}

void Trainer::OnEvaluated(const Evaluator::Evaluation& evaluation) {
  const DatasetLoss& loss = evaluation.loss;
  run::MetricRecord record =
      EvalRecord(evaluation.step, length_.steps_per_epoch, loss);
  spdlog::info("step {}: test loss {:.4f}, accuracy {:.2f} %", evaluation.step,
               loss.objective, 100 * loss.accuracy);
  bool keeps = false;
  loop_.Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    keeps = core.KeepsModel(loss.objective, loss.accuracy);
  });
  if (keeps) {
    run::Result result;
    if (const absl::Status written = WriteModel(*evaluation.model, &result);
        !written.ok()) {
      spdlog::error("the model that met the stop rule is not kept: {}",
                    std::string(written.message()));
    } else {
      record.set_model_sha256(result.model_sha256());
    }
  }
  AddRecord(std::move(record), evaluation.submitted);
}

absl::Status Trainer::Perform(const WorkerCore::Conclude& action) {
  if (evaluator_ != nullptr) SL_RETURN_IF_ERROR(evaluator_->Drain());
  if (action.parameters != nullptr)
    LoadSnapshot(ToSnapshot(*action.parameters), &model_);
  const absl::Time trained = loop_.Now();
  spdlog::info("evaluating the final model");
  const auto go_on = [&] {
    loop_.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.OnProgress(now);
    });
    return loop_.ending();
  };
  SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                      EvaluateDataset(model_, *data_.test, go_on));
  SL_ASSIGN_OR_RETURN(const DatasetLoss train,
                      EvaluateDataset(model_, *data_.train, go_on));
  AddRecord(EvalRecord(length_.steps_total, length_.steps_per_epoch, test),
            trained);
  result_.set_steps(length_.steps_total);
  result_.set_train_loss(train.objective);
  result_.set_test_loss(test.objective);
  result_.set_test_accuracy(test.accuracy);
  return Perform(WorkerCore::Save{});
}

absl::Status Trainer::Perform(const WorkerCore::Save&) {
  const absl::Status written = WriteModel(model_, &result_);
  if (!written.ok()) {
    loop_.Tell(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.OnSaveFailed(written, now, effects);
        });
    return absl::OkStatus();
  }
  spdlog::info(
      "final model: train loss {:.6f}, test loss {:.6f}, accuracy {:.2f} %, "
      "sha256 {}",
      result_.train_loss(), result_.test_loss(), 100 * result_.test_accuracy(),
      result_.model_sha256());
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnConcluded(result_, now, effects);
      });
  return absl::OkStatus();
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
