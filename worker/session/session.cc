#include "worker/session/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/block/bounds.h"
#include "common/compress/compression_config.h"
#include "common/config/cluster_config.h"
#include "common/host_port.h"
#include "common/inspection/timeline_source.h"
#include "common/net/resolve.h"
#include "common/optim/stale/stale_rule.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/view/shard_map.h"
#include "worker/collective/host_group.h"
#include "worker/session/metric_records.h"
#include "worker/session/model_file.h"
#include "worker/session/session_life.h"

namespace slackline {
namespace {

WorkerLoop::Options LoopOptionsOf(const Session::Options& options,
                                  const WorkerProcess& self,
                                  absl::Span<const wire::Table> tables) {
  const config::ClusterConfig& config = options.config;
  const config::Limits& limits = config.limits();
  WorkerLoop::Options loop;
  loop.time = options.time;
  loop.transport = limits.transport();
  loop.health = options.health;
  loop.inspection = options.inspection;
  loop.wait.spin_max = absl::Microseconds(limits.spin_us());
  WorkerCore::Options& core = loop.core;
  core.train = config.train();
  core.pull_ahead = config.sync().pull_ahead();
  core.step_by_table = options.step_by_table;
  core.evaluate_every =
      EvaluationInterval(config.train(), options.length.steps_per_epoch);
  core.wait_timeout = absl::Milliseconds(limits.wait_timeout_ms());
  core.save_timeout = absl::Milliseconds(limits.save_timeout_ms());
  core.client.window_bytes = size_t{1024} * limits.window_kib();
  core.client.message_bytes = size_t{1024} * limits.message_kib();
  // So that several of them share a window.
  core.client.socket_message_bytes = core.client.window_bytes / 4;
  MemberCore::Options& member = core.member;
  member.coordinators = CoordinatorEndpoints(config);
  member.start_timeout = absl::Milliseconds(limits.start_timeout_ms());
  member.lease = absl::Milliseconds(limits.lease_ms());
  member.coordinator_timeout =
      absl::Milliseconds(limits.coordinator_timeout_ms());
  member.join =
      JoinRequestOf(wire::JoinRequest::WORKER, self.rank, self.host, config);
  for (const wire::Table& table : tables) {
    wire::Table& listed = *member.join.add_table();
    listed = table;
    listed.set_pulled_as(PulledAs(config.sync(), table));
  }
  member.join.set_steps_total(options.length.steps_total);
  member.join.set_steps_per_epoch(options.length.steps_per_epoch);
  member.join.set_data(options.data);
  member.join.set_data_hash(options.data_hash);
  if (options.elastic.has_value()) {
    wire::Elastic& elastic = *member.join.mutable_elastic();
    elastic.set_examples(options.elastic->examples);
    elastic.set_batch_size(options.elastic->batch_size);
    elastic.set_total(options.elastic->total);
  }
  return loop;
}

// Of parameters, for a step over servers.
int64_t BytesPulled(const config::ClusterConfig& config,
                    absl::Span<const wire::Table> tables) {
  int64_t bytes = 0;
  for (const wire::Table& table : tables) {
    const GradientCode code = {.kind = PulledAs(config.sync(), table)};
    bytes += static_cast<int64_t>(
        code.Bytes(static_cast<size_t>(TableElements(table))));
  }
  return bytes;
}

// Meets no rule.
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

bool IsEmpty(const Session::Scores& scores) {
  return !scores.loss.has_value() && !scores.accuracy.has_value() &&
         scores.values.empty();
}

// "test loss 0.1234, accuracy 97.50 %".
std::string TextOf(const Session::Scores& scores) {
  std::vector<std::string> parts;
  if (scores.loss.has_value())
    parts.push_back(absl::StrFormat("test loss %.6f", *scores.loss));
  if (scores.accuracy.has_value()) {
    parts.push_back(
        absl::StrFormat("accuracy %.2f %%", 100 * *scores.accuracy));
  }
  for (const auto& [name, value] : scores.values)
    parts.push_back(absl::StrFormat("%s %.6g", name, value));
  return parts.empty() ? "nothing was measured" : absl::StrJoin(parts, ", ");
}

run::MetricRecord EvaluationRecord(Clock step, int64_t steps_per_epoch,
                                   const Session::Scores& scores) {
  run::MetricRecord record = EvalRecord(step, steps_per_epoch);
  if (scores.loss.has_value()) record.set_loss(*scores.loss);
  if (scores.accuracy.has_value()) record.set_accuracy(*scores.accuracy);
  for (const auto& [name, value] : scores.values) {
    if (static_cast<size_t>(record.value_size()) == kMetricValuesMax) break;
    if (std::isfinite(value)) (*record.mutable_value())[name] = value;
  }
  return record;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(
    const Options& options, ParameterMemory* parameters,
    Transport& to_coordinator, Transport& to_shard_threads) {
  const config::ClusterConfig& config = options.config;
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  const auto rank = static_cast<size_t>(options.rank);
  if (rank >= workers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", static_cast<int>(options.rank), " is outside [0, ",
        workers.size(), "), the workers of the config"));
  }
  SL_ASSIGN_OR_RETURN(
      LearningRateSchedule schedule,
      LearningRateSchedule::Create(config.schedule(), options.length));
  SL_ASSIGN_OR_RETURN(const StaleRules stale,
                      StaleRules::Create(config.sync()));
  std::vector<std::string> names;
  for (const wire::Table& table : parameters->tables())
    names.push_back(table.name());
  SL_RETURN_IF_ERROR(stale.CheckTables(names));
  SL_ASSIGN_OR_RETURN(Lanes lanes, Lanes::Create(config, parameters->tables()));
  SL_ASSIGN_OR_RETURN(
      GradientCompressor compressor,
      GradientCompressor::Create(config, parameters->tables(), options.rank));
  if (const int64_t pulled = BytesPulled(config, parameters->tables());
      std::min(pulled, compressor.bytes_pushed()) < compressor.bytes()) {
    spdlog::info(
        "a step over servers pushes {} bytes for gradients of {}, and pulls "
        "{} for as many of parameters",
        compressor.bytes_pushed(), compressor.bytes(), pulled);
  }
  WorkerLoop::Options loop =
      LoopOptionsOf(options, workers[rank], parameters->tables());
  loop.core.member.join.set_keeps_state(options.keeps_state ||
                                        compressor.remembers());
  Parts parts = {.self = workers[rank],
                 .schedule = std::move(schedule),
                 .compressor = std::move(compressor),
                 .lanes = std::move(lanes),
                 .loop = std::move(loop)};
  return std::unique_ptr<Session>(new Session(
      options, parameters, to_coordinator, to_shard_threads, std::move(parts)));
}

Session::Session(const Options& options, ParameterMemory* parameters,
                 Transport& to_coordinator, Transport& to_shard_threads,
                 Parts parts)
    : options_(options),
      parameters_(*parameters),
      to_coordinator_(to_coordinator),
      to_shard_threads_(to_shard_threads),
      parts_(std::make_unique<const Parts>(std::move(parts))),
      timeline_(std::make_unique<TimelineRecorder>()) {}

Session::~Session() {
  if (life_ == nullptr) return;
  // Who has done its last step has done its part.
  if (!life_->step.has_value()) life_->SayAsked();
  Interrupt(absl::StrCat("worker ", static_cast<int>(options_.rank),
                         " was closed before the end of the job"));
  (void)Next();
}

absl::Status Session::BeginWith(std::vector<TableState> states) {
  SL_RETURN_IF_ERROR(
      CheckTableStates(states, parameters_.tables(), options_.config));
  initial_state_ = std::move(states);
  return absl::OkStatus();
}

std::shared_ptr<WorkerLoop> Session::loop() const {
  const MutexLock lock(mutex_);
  return loop_;
}

std::unique_ptr<Listener> Session::OpenDoor(wire::JoinRequest* join) {
  const WorkerProcess& self = parts_->self;
  // A port that the config fixes is kept for all-reduce, and others than that
  // may be closed.
  if (self.port != 0 || !MaySumOverTcp(options_.config, self)) return nullptr;
  std::unique_ptr<Listener> door;
  const auto open = [&]() -> absl::StatusOr<std::string> {
    const bool own = self.listen.empty();
    SL_ASSIGN_OR_RETURN(const std::string address,
                        ResolveHost(own ? self.host : self.listen));
    SL_ASSIGN_OR_RETURN(door, to_coordinator_.Listen({}));
    SL_ASSIGN_OR_RETURN(const std::string bound,
                        door->Bind(TcpEndpoint(address, 0)));
    if (own) return bound;
    return absl::StrCat("tcp://",
                        HostPort(self.host, SplitHostPort(bound).second));
  };
  const absl::StatusOr<std::string> endpoint = open();
  if (endpoint.ok()) {
    join->set_door(*endpoint);
    return door;
  }
  spdlog::warn(
      "whether the other workers can connect to this one is not tried while "
      "the job forms: {}",
      std::string(endpoint.status().message()));
  return nullptr;
}

absl::Status Session::BeginLife() {
  WorkerLoop::Options options = parts_->loop;
  options.track = timeline_->TrackOf(timeline_names::kMessages);
  TellTimelinesOf(timeline_.get(), options.time, &options.inspection);
  {
    const MutexLock lock(mutex_);
    options.core.joins_again = has_lived_;
  }
  std::unique_ptr<Listener> door;
  if (!options.core.joins_again) door = OpenDoor(&options.core.member.join);
  options.core.member.join.set_token(RandomToken());  // A new life each time.
  SL_ASSIGN_OR_RETURN(std::shared_ptr<WorkerLoop> loop,
                      WorkerLoop::Start(to_coordinator_, to_shard_threads_,
                                        options, std::move(door)));
  life_ = std::make_unique<Life>(this, loop);
  const MutexLock lock(mutex_);
  loop_ = std::move(loop);
  has_lived_ = true;
  if (!interrupted_.empty()) {
    loop_->Interrupt(interrupted_);
  } else if (!suspended_.empty()) {
    loop_->Suspend(suspended_);
  }
  return absl::OkStatus();
}

std::optional<Session::Task> Session::Next() {
  while (!over_) {
    if (life_ == nullptr) {
      ending_ = BeginLife();
      if (!ending_.ok()) {
        over_ = true;
        break;
      }
    }
    std::optional<Task> task = life_->Next();
    if (task.has_value()) return task;
    over_ = !EndLife();
  }
  return std::nullopt;
}

bool Session::EndLife() {
  const absl::Status ended = life_->loop.ending();
  life_->loop.Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    removals_.OnLifeEnded(core.member().removed(), core.counts().steps);
  });
  life_->by_group.Drop(ended);
  {
    const MutexLock lock(mutex_);
    loop_ = nullptr;
  }
  life_ = nullptr;
  if (absl::IsAborted(ended) && removals_.IsInVain()) {
    ending_ = absl::FailedPreconditionError(absl::StrCat(
        "this worker was removed ", removals_.in_a_row(),
        " times in a row without a step in between, and does not join again; "
        "the last time ",
        ended.message()));
    return false;
  }
  if (absl::IsAborted(ended)) {
    spdlog::warn("joining again");
    return true;
  }
  // Whatever it broke off: a job that has finished needs nobody.
  if (absl::IsOutOfRange(ended)) {
    spdlog::info(std::string(ended.message()));
  } else {
    ending_ = ended;
  }
  return false;
}

absl::StatusOr<Session::Gathered> Session::Gather(const GatherCall& call,
                                                  const Payload& payload) {
  const absl::Duration wait_max =
      absl::Milliseconds(options_.config.limits().wait_timeout_ms());
  const absl::Time give_up_at = Now() + wait_max;
  while (true) {
    if (over_) return absl::CancelledError("the job is over for this worker");
    if (life_ == nullptr) SL_RETURN_IF_ERROR(BeginLife());
    absl::StatusOr<Gathered> gathered =
        life_->Gather(call, payload, give_up_at);
    // Given up though it lives: in the next life it calls once more.
    if (gathered.ok() || !absl::IsAborted(life_->loop.ending()))
      return gathered;
    (void)life_->Next();
    over_ = !EndLife();
  }
}

absl::Status Session::WaitFor(int table) {
  return life_ == nullptr ? absl::OkStatus() : life_->WaitFor(table);
}

absl::Status Session::Gradient(int table, Payload gradient,
                               const StepOptions& options) {
  if (life_ == nullptr) return absl::FailedPreconditionError("no step is open");
  return life_->Gradient(table, std::move(gradient), options);
}

absl::Status Session::SkipTable(int table) {
  if (life_ == nullptr) return absl::FailedPreconditionError("no step is open");
  return life_->SkipTable(table);
}

absl::Status Session::FinishStep(std::optional<double> loss) {
  if (life_ == nullptr) return absl::FailedPreconditionError("no step is open");
  return life_->FinishStep(loss);
}

void Session::Loaded(absl::Duration took) {
  if (life_ != nullptr) life_->report.time().WasLoading(took);
}

void Session::CopiedGradients(absl::Duration took) {
  if (life_ != nullptr) life_->report.time().WasPushing(took);
}

absl::StatusOr<std::vector<TableState>> Session::OptimizerState() {
  if (life_ == nullptr) {
    return absl::FailedPreconditionError(
        "the job has not begun for this worker, or is over");
  }
  return life_->OptimizerState();
}

absl::Status Session::FetchParameters() {
  if (life_ == nullptr || life_->step.has_value()) {
    return absl::FailedPreconditionError(
        "parameters are fetched between two steps of a job that has begun");
  }
  return life_->FetchParameters();
}

void Session::Log(const std::string& name, double value) {
  if (life_ == nullptr) return;
  if (name == "loss") {
    life_->report.AddLoss(value);
  } else {
    life_->report.AddValue(name, value);
  }
}

void Session::AddRecord(const run::MetricRecord& record, absl::Time made_at) {
  run::MetricRecord of_ours = record;
  of_ours.set_rank(static_cast<int32_t>(options_.rank));
  if (const auto to = loop(); to != nullptr) to->AddRecord(of_ours, made_at);
}

void Session::Evaluated(Clock clock, absl::Time since, const Scores& scores,
                        ParameterMemory& parameters) {
  const auto to = loop();
  if (to == nullptr) return;
  run::MetricRecord record =
      EvaluationRecord(clock, options_.length.steps_per_epoch, scores);
  spdlog::info("step {}: {}", clock, TextOf(scores));
  bool keeps = false;
  to->Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    keeps = core.KeepsModel(scores.loss.value_or(kNotMeasured),
                            scores.accuracy.value_or(kNotMeasured));
  });
  if (keeps) {
    run::Result result;
    const absl::StatusOr<std::string> sha256 = Write(parameters, &result);
    if (sha256.ok()) {
      record.set_model_sha256(*sha256);
    } else {
      spdlog::error("the model that met the stop rule is not kept: {}",
                    std::string(sha256.status().message()));
    }
  }
  AddRecord(record, since);
}

void Session::Conclude(const Scores& train, const Scores& test) {
  if (life_ == nullptr || !life_->concluding) return;
  if (!IsEmpty(test)) {
    AddRecord(
        EvaluationRecord(life_->end(), options_.length.steps_per_epoch, test),
        Now());
  }
  run::Result& result = life_->result;
  result.set_steps(life_->end());
  if (train.loss.has_value()) result.set_train_loss(*train.loss);
  if (test.loss.has_value()) result.set_test_loss(*test.loss);
  if (test.accuracy.has_value()) result.set_test_accuracy(*test.accuracy);
  life_->final_scores = absl::StrCat(
      train.loss.has_value() ? absl::StrFormat("train loss %.6f, ", *train.loss)
                             : "",
      IsEmpty(test) ? "" : absl::StrCat(TextOf(test), ", "));
  life_->Save();
}

absl::Status Session::ReportProgress() {
  const auto to = loop();
  if (to == nullptr)
    return absl::CancelledError("the job is over for this worker");
  to->Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnProgress(now);
  });
  return to->ending();
}

void Session::Kept(int32_t cut, absl::StatusOr<std::string> state) {
  if (life_ != nullptr) life_->own_parts.Kept(cut, std::move(state));
}

void Session::Fail(const absl::Status& why, const std::string& traceback) {
  if (const auto to = loop(); to != nullptr) {
    to->Tell(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.Fail(why, now, effects, traceback);
        });
  }
}

void Session::StopJob(const absl::Status& why, const std::string& traceback) {
  if (const auto to = loop(); to != nullptr) {
    to->Tell(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.StopJob(why, now, effects, traceback);
        });
  }
}

void Session::Suspend(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!has_lived_) {
    interrupted_ = reason;
    return;
  }
  suspended_ = reason;
  if (loop_ != nullptr) loop_->Suspend(reason);
}

void Session::Interrupt(const std::string& reason) {
  const MutexLock lock(mutex_);
  interrupted_ = reason;
  if (loop_ != nullptr) loop_->Interrupt(reason);
}

absl::StatusOr<std::string> Session::Write(ParameterMemory& parameters,
                                           run::Result* result) const {
  if (!options_.out.empty())
    result->set_model_file(absl::StrCat(options_.out, "/model.safetensors"));
  SL_ASSIGN_OR_RETURN(*result->mutable_model_sha256(),
                      WriteModelFile(parameters, result->model_file(),
                                     {{"job", options_.config.job()},
                                      {"mode", ModeText(options_.config)}}));
  return result->model_sha256();
}

}  // namespace slackline
