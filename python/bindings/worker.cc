#include "python/bindings/worker.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/payload.h"
#include "common/process/address_limit.h"
#include "common/process/cannot_join.h"
#include "common/process/logging.h"
#include "common/process/user_key_file.h"
#include "common/status.h"
#include "job/job_config.h"
#include "python/bindings/errors.h"
#include "worker/session/gpu_parts.h"

namespace slackline::python {
namespace {

namespace nb = nanobind;

MemberFlags FlagsOf(const Worker::Place& place) {
  MemberFlags flags;
  flags.cluster = place.cluster;
  flags.index = place.index;
  flags.out = place.out;
  flags.data_dir = place.data_dir;
  flags.overrides.mode = place.mode;
  flags.health_port = place.health_port;
  flags.key = {.given = place.key, .own = UserKeyFileHere()};
  return flags;
}

config::ClusterConfig LoadConfig(const MemberFlags& flags) {
  MemberProgram program;
  program.role = "worker";
  program.config_parts = kJobConfigParts;
  program.count = [](const config::ClusterConfig& config) {
    return static_cast<int>(WorkerProcesses(config).size());
  };
  config::ClusterConfig config = ValueOrThrow(LoadMemberConfig(program, flags));
  if (config.has_model()) {
    ThrowIfBad(absl::InvalidArgumentError(absl::StrCat(
        flags.cluster,
        ": model: is there, so the workers are slackline_worker's; leave model "
        "and data out for workers that are programs of their own")));
  }
  return config;
}

}  // namespace

// Any thread.
class Worker::Released {
 public:
  void Add(TensorArray array) {
    const MutexLock lock(mutex_);
    arrays_.push_back(std::move(array));
  }
  // With the GIL.
  void Drop() {
    std::vector<TensorArray> dropped;
    const MutexLock lock(mutex_);
    dropped.swap(arrays_);
  }

  // Owns an array for a payload.
  class Holder {
   public:
    Holder(std::shared_ptr<Released> to, TensorArray array)
        : to_(std::move(to)), array_(std::move(array)) {}
    Holder(Holder&&) = default;
    ~Holder() {
      if (to_ != nullptr) to_->Add(std::move(array_));
    }

   private:
    std::shared_ptr<Released> to_;
    TensorArray array_;
  };

 private:
  Mutex mutex_;
  std::vector<TensorArray> arrays_ ABSL_GUARDED_BY(mutex_);
};

Worker::Worker(const Place& place)
    : process_(getpid()),
      flags_(FlagsOf(place)),
      config_(LoadConfig(flags_)),
      workers_(static_cast<int>(WorkerProcesses(config_).size())),
      self_(WorkerProcesses(config_)[static_cast<size_t>(place.index)]),
      released_(std::make_shared<Released>()),
      keys_(ValueOrThrow(
          KeysHere(config_, {Role::kWorker, Rank{flags_.index}}, flags_.key))) {
  BeginMember(place.program, "worker", flags_, config_, time_);
  WarnOfAnotherHost(self_);
  health_ =
      ValueOrThrow(HealthPage::Start(config_, {.is_server = false,
                                               .index = flags_.index,
                                               .port_given = flags_.health_port,
                                               .time = time_}));
  // The session's threads and ZeroMQ's, and those of the script: the backward
  // pass has one, and OpenBLAS, which tries for ever, one for each of its own.
  ThrowIfBad(CheckAddressesLeft(
      (size_t{512} << 20) +
      (size_t{128} << 20) * static_cast<size_t>(std::max(self_.threads, 1))));
  if (all_on_gpus()) PrepareGpuGroups(config_.sync().collective().algorithm());
  inspection_.stacks = StacksBy(std::make_shared<StackTaker>(time_));
}

Worker::~Worker() {
  if (getpid() != process_) {  // Its threads are not in this process.
    (void)connected_.release();
    (void)health_.release();
    // A thread that is not here may have the lock.
    LeaveTransports();
    return;
  }
  {
    const nb::gil_scoped_release released;
    connected_ = nullptr;
  }
  released_->Drop();
}

void Worker::ShowStacks(const PythonStacks& stacks) {
  inspection_.stacks =
      StacksBy(ValueOrThrow(StackTaker::OfPython(time_, stacks)));
}

bool Worker::all_on_gpus() const {
  return absl::c_all_of(
      WorkerProcesses(config_),
      [](const WorkerProcess& worker) { return worker.gpu >= 0; });
}

std::shared_ptr<Parameters> Worker::MakeGpuParameters(
    std::vector<Table> tables, CUstream_st* stream) const {
  return python::MakeGpuParameters(
      std::move(tables),
      {.gpu = self_.gpu,
       .stream = stream,
       .push_type = config_.sync().push_type(),
       .timeout = absl::Milliseconds(config_.limits().wait_timeout_ms())});
}

void Worker::Open(std::shared_ptr<Parameters> parameters, const Work& work) {
  parameters_ = std::move(parameters);
  {
    // Nobody reads its connections any more.
    const MutexLock lock(mutex_);
    early_ = nullptr;
  }
  connected_ = ValueOrThrow(ConnectedSession::Create(
      {.config = config_,
       .rank = Rank{self_.rank},
       .time = time_,
       .out = flags_.out,
       .length = {.steps_total = work.steps_total,
                  .steps_per_epoch = work.steps_per_epoch},
       .batch_size = work.batch_size,
       .data = work.data,
       .data_hash = work.data_hash,
       .elastic = work.elastic,
       .step_by_table = work.step_by_table,
       .host_parameters = parameters_->gpu() == nullptr,
       .keeps_state = true,
       .health = health_ == nullptr ? nullptr : health_->board(),
       .inspection = inspection_,
       .ring = [this] { return transports().ring(); }},
      self_, transports(), &parameters_->memory()));
}

void Worker::LeaveTransports() {
  (void)transports_.release();
  (void)new std::shared_ptr<EarlyGather>(std::move(early_));
}

ProcessTransport& Worker::transports() {
  const MutexLock lock(mutex_);
  if (transports_ == nullptr)
    transports_ = std::make_unique<ProcessTransport>(keys_, LogOfKeys());
  return *transports_;
}

Session& Worker::session() {
  if (connected_ == nullptr)
    throw JobError("the worker has not opened its session");
  if (getpid() != process_) {
    throw JobError(
        "this is a child of the process that joined the job; call the job in "
        "its own process only");
  }
  return connected_->session();
}

std::optional<Session::Task> Worker::Next() {
  Session& open = session();
  std::optional<Session::Task> task;
  {
    const nb::gil_scoped_release released;
    GpuParameters* const gpu = parameters_->gpu();
    do {
      if (gpu != nullptr) gpu->Drop();  // Of a step that was not finished.
      task = open.Next();
    } while (gpu != nullptr && task.has_value() &&
             !FailUnlessOk(gpu->UseLoaded()).ok());
  }
  if (task.has_value()) {
    const auto* const step = std::get_if<Session::Step>(&*task);
    step_ = step != nullptr ? *step : Session::Step();
    step_is_finished_ = false;
  }
  released_->Drop();
  if (!task.has_value()) ThrowIfBad(open.ending());
  return task;
}

void Worker::WaitFor(int table) {
  Session& open = session();
  const nb::gil_scoped_release released;
  (void)open.WaitFor(table);
}

// Without effect if it is only what ends the worker anyhow.
absl::Status Worker::FailUnlessOk(absl::Status status) {
  // A step that was lost in a collective is FailedPrecondition.
  if (!status.ok() && !absl::IsInvalidArgument(status) &&
      !absl::IsFailedPrecondition(status)) {
    session().Fail(status);
  }
  return status;
}

absl::Status Worker::HandOver(int table, TensorArray gradient,
                              const StepOptions& options, CUstream_st* stream) {
  Session& open = session();
  GpuParameters* const gpu = parameters_->gpu();
  const float* const data = gradient.data();
  const size_t bytes = gradient.nbytes();
  if (gradient.device_type() !=
      (gpu == nullptr ? nb::device::cpu::value : nb::device::cuda::value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of table ", table,
                     " is on another device than the parameter"));
  }
  Released::Holder holder(released_, std::move(gradient));
  if (gpu != nullptr && !step_.on_device) {
    SL_RETURN_IF_ERROR(gpu->StartCopy(
        {.table = table,
         .values = data,
         .elements = bytes / sizeof(float),
         .stream = stream,
         .owner = std::make_shared<Released::Holder>(std::move(holder))}));
    options_[table] = options;
    return PushCopied(/*wait=*/false);
  }
  if (gpu != nullptr) SL_RETURN_IF_ERROR(gpu->Follow(stream));
  return open.Gradient(table, Payload::Wrap(data, bytes, std::move(holder)),
                       options);
}

absl::Status Worker::PushCopied(bool wait) {
  while (true) {
    SL_ASSIGN_OR_RETURN(std::optional<GpuParameters::Copied> copied,
                        parameters_->gpu()->NextCopied(wait));
    if (!copied.has_value()) return absl::OkStatus();
    session().CopiedGradients(copied->waited);
    SL_RETURN_IF_ERROR(session().Gradient(
        copied->table, std::move(copied->values), options_[copied->table]));
  }
}

void Worker::Gradient(int table, TensorArray gradient,
                      const StepOptions& options, CUstream_st* stream) {
  absl::Status done;
  {
    const nb::gil_scoped_release released;
    done = FailUnlessOk(HandOver(table, std::move(gradient), options, stream));
  }
  // A job that has ended, or cannot go on, shows in Next().
  if (absl::IsInvalidArgument(done)) ThrowIfBad(done);
}

bool Worker::FinishStep(std::vector<std::optional<TensorArray>> gradients,
                        const std::vector<StepOptions>& options,
                        const std::vector<int>& skipped) {
  Session& open = session();
  if (gradients.size() != options.size())
    throw nb::value_error("options for each gradient are required");
  if (step_is_finished_) return true;
  {
    const nb::gil_scoped_release released;
    const std::optional<ParameterMemory::Gpu> gpu = parameters_->memory().gpu();
    absl::Status done;
    for (size_t i = 0; i < gradients.size() && done.ok(); ++i) {
      const size_t table =
          step_.last_table_first ? gradients.size() - 1 - i : i;
      if (!gradients[table].has_value()) continue;
      done = HandOver(static_cast<int>(table), *std::move(gradients[table]),
                      options[table], gpu.has_value() ? gpu->stream : nullptr);
      gradients[table].reset();
    }
    for (size_t i = 0; i < skipped.size() && done.ok(); ++i)
      done = open.SkipTable(skipped[i]);
    if (done.ok() && gpu.has_value() && !step_.on_device)
      done = PushCopied(/*wait=*/true);
    if (done.ok()) done = open.FinishStep(std::nullopt);
    done = FailUnlessOk(std::move(done));
    // A job that has ended, or cannot go on, shows in Next().
    if (absl::IsInvalidArgument(done)) ThrowIfBad(done);
    return step_is_finished_ = done.ok();
  }
}

void Worker::Loaded(double seconds) {
  session().Loaded(absl::Seconds(seconds));
}

void Worker::Log(const std::string& name, double value) {
  session().Log(name, value);
}

void Worker::BeginWith(std::vector<TableSlots> states) {
  std::vector<TableState> of_tables;
  for (auto& [updates, slots] : states) {
    TableState& state = of_tables.emplace_back();
    state.updates = updates;
    for (TensorArray& slot : slots) {
      const float* const data = slot.data();
      const size_t bytes = slot.nbytes();
      state.slots.push_back(Payload::Wrap(
          data, bytes, Released::Holder(released_, std::move(slot))));
    }
  }
  ThrowIfBad(session().BeginWith(std::move(of_tables)));
}

std::optional<std::vector<TableState>> Worker::OptimizerState() {
  std::vector<TableState> states;
  const absl::Status fetched = Fetched([&](Session& open) {
    SL_ASSIGN_OR_RETURN(states, open.OptimizerState());
    return absl::OkStatus();
  });
  if (absl::IsOutOfRange(fetched)) return std::nullopt;
  ThrowIfBad(fetched);
  return states;
}

void Worker::FetchParameters() {
  const absl::Status fetched =
      Fetched([](Session& open) { return open.FetchParameters(); });
  if (!absl::IsOutOfRange(fetched)) ThrowIfBad(fetched);
}

template <typename Fetch>
absl::Status Worker::Fetched(const Fetch& fetch) {
  Session& open = session();
  const nb::gil_scoped_release released;
  SL_RETURN_IF_ERROR(fetch(open));
  GpuParameters* const gpu = parameters_->gpu();
  return gpu == nullptr ? absl::OkStatus() : FailUnlessOk(gpu->UseLoaded());
}

void Worker::Kept(int32_t cut, std::optional<nb::bytes> state,
                  const std::string& error) {
  if (state.has_value()) {
    session().Kept(cut, std::string(state->c_str(), state->size()));
  } else {
    session().Kept(cut, absl::InternalError(error));
  }
}

std::shared_ptr<EarlyGather> Worker::early() const {
  const MutexLock lock(mutex_);
  return early_;
}

std::shared_ptr<EarlyGather> Worker::EarlyOrNew() {
  std::shared_ptr<EarlyGather> by = early();
  if (by != nullptr) return by;
  by = ValueOrThrow(EarlyGather::Connect(
      transports().network(),
      {.config = config_, .rank = Rank{self_.rank}, .time = time_}));
  const MutexLock lock(mutex_);
  early_ = by;
  if (!interrupted_.empty()) early_->Interrupt(interrupted_);
  return by;
}

int64_t Worker::BeginsInEpoch() {
  absl::StatusOr<int64_t> epoch;
  {
    const nb::gil_scoped_release released;
    epoch = EarlyOrNew()->Epoch();
  }
  ThrowIfBad(epoch.status());
  return *epoch;
}

std::optional<Worker::Gathered> Worker::Gather(uint64_t place, uint32_t number,
                                               nb::bytes payload) {
  if (getpid() != process_) (void)session();
  const Payload ours = Payload::Copy(payload.c_str(), payload.size());
  absl::StatusOr<Session::Gathered> gathered;
  {
    const nb::gil_scoped_release released;
    if (connected_ != nullptr) {
      gathered = session().Gather({.place = place, .number = number}, ours);
    } else {
      gathered = EarlyOrNew()->Gather(number, ours);
    }
  }
  if (absl::IsOutOfRange(gathered.status())) return std::nullopt;
  if (absl::IsDeadlineExceeded(gathered.status())) {
    PyErr_SetString(PyExc_TimeoutError,
                    std::string(gathered.status().message()).c_str());
    throw nb::python_error();
  }
  ThrowIfBad(gathered.status());
  Gathered result;
  for (size_t i = 0; i < gathered->ranks.size(); ++i) {
    const Payload& of = gathered->payloads[i];
    result.emplace_back(
        gathered->ranks[i],
        nb::bytes(reinterpret_cast<const char*>(of.data()), of.size()));
  }
  return result;
}

void Worker::Evaluated(const Session::Evaluation& evaluation,
                       const Session::Scores& scores, Parameters& parameters) {
  session().Evaluated(evaluation.clock, evaluation.since, scores,
                      parameters.memory());
}

void Worker::Conclude(const Session::Scores& train,
                      const Session::Scores& test) {
  session().Conclude(train, test);
}

absl::Status Worker::ReportProgress() { return session().ReportProgress(); }

void Worker::Fail(const std::string& why, const std::string& traceback,
                  bool ends_job) {
  if (getpid() != process_) return;
  if (connected_ == nullptr) {
    const nb::gil_scoped_release released;
    return TellCannotJoin(transports().network(), wire::JoinRequest::WORKER,
                          self_.rank, self_.host, config_,
                          absl::InternalError(why));
  }
  if (ends_job) {
    connected_->session().StopJob(
        absl::InternalError(
            absl::StrCat("worker ", self_.rank, " has failed: ", why)),
        traceback);
  } else {
    connected_->session().Fail(absl::InternalError(why), traceback);
  }
}

bool Worker::may_suspend() const {
  return config_.has_checkpoint() && connected_ != nullptr &&
         getpid() == process_;
}

void Worker::Suspend(const std::string& reason) {
  if (!may_suspend()) return Interrupt(reason);
  connected_->session().Suspend(reason);
}

void Worker::Interrupt(const std::string& reason) {
  if (getpid() != process_) return;
  {
    const MutexLock lock(mutex_);
    interrupted_ = reason;
    if (early_ != nullptr) early_->Interrupt(reason);
  }
  if (connected_ != nullptr) connected_->session().Interrupt(reason);
}

}  // namespace slackline::python
