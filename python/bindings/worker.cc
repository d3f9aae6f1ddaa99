#include "python/bindings/worker.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/bounds.h"
#include "common/config/cluster_config.h"
#include "common/payload.h"
#include "job/job_config.h"
#include "python/bindings/errors.h"

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
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    if (worker.gpu < 0) continue;
    ThrowIfBad(absl::InvalidArgumentError(absl::StrCat(
        flags.cluster,
        ": worker: device: value is CUDA, which is slackline_worker's; a "
        "script puts its model on a device itself, leave it out")));
  }
  return config;
}

}  // namespace

// Any thread.
class Worker::Released {
 public:
  void Add(FloatArray array) {
    const MutexLock lock(mutex_);
    arrays_.push_back(std::move(array));
  }
  // With the GIL.
  void Drop() {
    std::vector<FloatArray> dropped;
    const MutexLock lock(mutex_);
    dropped.swap(arrays_);
  }

  // Owns an array for a payload.
  class Holder {
   public:
    Holder(std::shared_ptr<Released> to, FloatArray array)
        : to_(std::move(to)), array_(std::move(array)) {}
    Holder(Holder&&) = default;
    ~Holder() {
      if (to_ != nullptr) to_->Add(std::move(array_));
    }

   private:
    std::shared_ptr<Released> to_;
    FloatArray array_;
  };

 private:
  Mutex mutex_;
  std::vector<FloatArray> arrays_ ABSL_GUARDED_BY(mutex_);
};

Worker::Worker(const Place& place)
    : process_(getpid()),
      flags_(FlagsOf(place)),
      config_(LoadConfig(flags_)),
      workers_(static_cast<int>(WorkerProcesses(config_).size())),
      self_(WorkerProcesses(config_)[static_cast<size_t>(place.index)]),
      released_(std::make_shared<Released>()) {
  BeginMember(place.program, "worker", flags_, config_, time_);
}

Worker::~Worker() {
  if (getpid() != process_) {  // Its threads are not in this process.
    (void)connected_.release();
    return;
  }
  {
    const nb::gil_scoped_release released;
    connected_ = nullptr;
  }
  released_->Drop();
}

void Worker::Open(std::shared_ptr<Parameters> parameters, const Work& work) {
  parameters_ = std::move(parameters);
  connected_ = ValueOrThrow(ConnectedSession::Create(
      {.config = config_,
       .rank = Rank{self_.rank},
       .time = time_,
       .out = flags_.out,
       .length = {.steps_total = work.steps_total,
                  .steps_per_epoch = work.steps_per_epoch},
       .batch_size = work.batch_size,
       .data = work.data,
       .elastic = work.elastic},
      self_, &parameters_->memory()));
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
    task = open.Next();
  }
  released_->Drop();
  if (!task.has_value()) ThrowIfBad(open.ending());
  return task;
}

absl::Status Worker::HandOver(int table, FloatArray gradient,
                              double rate_factor) {
  const float* const data = gradient.data();
  const size_t bytes = gradient.nbytes();
  return session().Gradient(
      table,
      Payload::Wrap(data, bytes,
                    Released::Holder(released_, std::move(gradient))),
      rate_factor);
}

void Worker::Gradient(int table, FloatArray gradient, double rate_factor) {
  absl::Status done;
  {
    const nb::gil_scoped_release released;
    done = HandOver(table, std::move(gradient), rate_factor);
  }
  // A job that has ended, or cannot go on, shows in Next().
  if (absl::IsInvalidArgument(done)) ThrowIfBad(done);
}

void Worker::FinishStep(std::vector<std::optional<FloatArray>> gradients,
                        const std::vector<double>& rate_factors) {
  Session& open = session();
  if (gradients.size() != rate_factors.size())
    throw nb::value_error("one factor for each gradient is required");
  {
    const nb::gil_scoped_release released;
    absl::Status done;
    for (size_t i = gradients.size(); i > 0 && done.ok(); --i) {
      if (!gradients[i - 1].has_value()) continue;
      done = HandOver(static_cast<int>(i - 1), *std::move(gradients[i - 1]),
                      rate_factors[i - 1]);
      gradients[i - 1].reset();
    }
    if (done.ok()) done = open.FinishStep(std::nullopt);
    // A job that has ended, or cannot go on, shows in Next().
    if (absl::IsInvalidArgument(done)) ThrowIfBad(done);
  }
}

void Worker::Log(const std::string& name, double value) {
  session().Log(name, value);
}

std::shared_ptr<EarlyGather> Worker::early() const {
  const MutexLock lock(mutex_);
  return early_;
}

size_t Worker::gather_bytes_max() const { return GatherBytesMax(workers_); }

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
      std::shared_ptr<EarlyGather> by = early();
      if (by == nullptr) {
        by = ValueOrThrow(EarlyGather::Connect(
            {.config = config_, .rank = Rank{self_.rank}, .time = time_}));
        const MutexLock lock(mutex_);
        early_ = by;
        if (!interrupted_.empty()) early_->Interrupt(interrupted_);
      }
      gathered = by->Gather(number, ours);
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
  if (connected_ == nullptr || getpid() != process_) return;
  if (ends_job) {
    connected_->session().StopJob(
        absl::InternalError(
            absl::StrCat("worker ", self_.rank, " has failed: ", why)),
        traceback);
  } else {
    connected_->session().Fail(absl::InternalError(why), traceback);
  }
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
