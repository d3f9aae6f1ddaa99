// A worker of a job, for a Python program: the config, and a session over
// ZeroMQ.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/config/cluster_config.h"
#include "common/health/health_page.h"
#include "common/inspection/inspector.h"
#include "common/inspection/stack_taker.h"
#include "common/keys/key_watch.h"
#include "common/mutex.h"
#include "common/optim/step_options.h"
#include "common/process/member_program.h"
#include "programs/worker/worker_program.h"
#include "proto/cluster.pb.h"
#include "python/bindings/gpu_parameters.h"
#include "python/bindings/parameters.h"
#include "worker/session/early_gather.h"
#include "worker/session/session.h"

namespace slackline::python {

// Throws a ValueError for what the caller gave, a JobError for what the job
// does. One thread calls everything but what says "any thread".
class Worker {
 public:
  struct Place {
    std::string cluster;  // Path of the config.
    int index = 0;
    std::string out;
    std::string data_dir;
    std::string program;                  // For the log.
    std::string mode;                     // As for --mode; empty: the config's.
    std::optional<int> health_port = {};  // As --health-port.
    std::string key = {};                 // As --key; empty: the user's.
  };
  explicit Worker(const Place& place);
  // Leaves the job. In a child of the process that made it: does nothing.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const config::ClusterConfig& config() const { return config_; }
  const WorkerProcess& self() const { return self_; }
  int workers() const { return workers_; }
  // Whether the config gives each worker a GPU.
  bool all_on_gpus() const;
  bool shows_health() const { return health_ != nullptr; }
  // In a child that was forked and goes on: its parent's port is not its.
  void ForgetHealth() {
    if (health_ != nullptr) health_->server().CloseInChild();
  }
  const MemberFlags& flags() const { return flags_; }
  // Before Open(): whoever asks for this process's stacks gets Python's, too.
  void ShowStacks(const PythonStacks& stacks);

  struct Work {
    int64_t steps_total = 0;
    int64_t steps_per_epoch = 0;
    int64_t batch_size = 0;
    std::string data;
    std::string data_hash = {};  // As in Session::Options.
    std::optional<ElasticSampling> elastic = {};
    bool step_by_table = false;
  };
  // Tensors on this worker's GPU, which is the calling thread's current one;
  // the computation uses them on `stream`. Throws as MakeGpuParameters().
  std::shared_ptr<Parameters> MakeGpuParameters(std::vector<Table> tables,
                                                CUstream_st* stream) const;
  // Before everything below, once. Sends nothing. All workers have their
  // parameters on GPUs, or all on the host.
  void Open(std::shared_ptr<Parameters> parameters, const Work& work);

  // Waits without the GIL. None when the job is over and has FINISHED.
  std::optional<Session::Task> Next();

  // As Session::WaitFor(), without the GIL. Returns if the step is lost, too:
  // Next() will say so.
  void WaitFor(int table);
  // Holds the array until it is sent. Options are as of Session::Gradient().
  // Of parameters on a GPU the gradient is there, too: what is on `stream` now
  // makes it. Over servers it leaves through the host while the GPU computes.
  void Gradient(int table, TensorArray gradient, const StepOptions& options,
                CUstream_st* stream);
  // Gradients of all tables that have none yet, then the end of the step,
  // without the GIL, in the order that the step likes best. On a GPU the
  // computation's stream makes them. False if the step is lost, as Next() will
  // tell. One that is finished already stays as it is: a script that was
  // interrupted behind it does not know.
  // `skipped`: tables whose optimizer does nothing in this step
  // (Session::SkipTable()); they have no gradient.
  bool FinishStep(std::vector<std::optional<TensorArray>> gradients,
                  const std::vector<StepOptions>& options,
                  const std::vector<int>& skipped);
  void Log(const std::string& name, double value);
  void Loaded(double seconds);
  // As Session::BeginWith(): of each table the updates and, as the optimizer
  // has them, the slots. After Open(), before the first Next(). Holds the
  // arrays.
  using TableSlots = std::pair<int64_t, std::vector<TensorArray>>;
  void BeginWith(std::vector<TableSlots> states);
  // As Session::OptimizerState(), without the GIL; none if the job has
  // FINISHED.
  std::optional<std::vector<TableState>> OptimizerState();
  // As Session::FetchParameters(), without the GIL; nothing if the job has
  // FINISHED.
  void FetchParameters();
  // As Session::Kept(); without a state: why there is none.
  void Kept(int32_t cut, std::optional<nanobind::bytes> state,
            const std::string& error);
  // A collective of the workers' programs, as of Session::Gather(); before
  // Open() at place 0, with what has not joined yet. The ranks and what each
  // has brought; none if the job has FINISHED. A TimeoutError names who has
  // not come. Waits without the GIL.
  using Gathered = std::vector<std::pair<int32_t, nanobind::bytes>>;
  std::optional<Gathered> Gather(uint64_t place, uint32_t number,
                                 nanobind::bytes payload);
  // Before Open(): the epoch in which a worker that joins now begins. Errors as
  // of Gather(). Waits without the GIL.
  int64_t BeginsInEpoch();

  // Any thread.
  void Evaluated(const Session::Evaluation& evaluation,
                 const Session::Scores& scores, Parameters& parameters);
  void Conclude(const Session::Scores& train, const Session::Scores& test);

  // Any thread; without effect before Open(). Not OK: the worker is to stop.
  absl::Status ReportProgress();
  void Fail(const std::string& why, const std::string& traceback,
            bool ends_job);
  // The session is open, and its job has checkpoints.
  bool may_suspend() const;
  // As Session::Suspend(), or Interrupt() if it may not.
  void Suspend(const std::string& reason);
  void Interrupt(const std::string& reason);

 private:
  // Arrays that nobody reads any more, until the GIL is held.
  class Released;

  Session& session();
  // Made when they are needed first. Any thread.
  ProcessTransport& transports();
  // In a child: their threads are not there to end.
  void LeaveTransports() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  std::shared_ptr<EarlyGather> early() const;
  // The same, made if there is none yet. Throws as Gather().
  std::shared_ptr<EarlyGather> EarlyOrNew();
  // What `fetch(session)` loads is seen by the GPU, too. Without the GIL.
  template <typename Fetch>
  absl::Status Fetched(const Fetch& fetch);
  absl::Status HandOver(int table, TensorArray gradient,
                        const StepOptions& options, CUstream_st* stream);
  // Hands over what has come from the GPU; with `wait`, all that was started.
  absl::Status PushCopied(bool wait);
  // What the session or a GPU cannot do ends this worker; Next() tells.
  absl::Status FailUnlessOk(absl::Status status);

  const pid_t process_;
  const MemberFlags flags_;
  const config::ClusterConfig config_;
  const TimeSource time_;
  const int workers_;
  const WorkerProcess self_;
  const std::shared_ptr<Released> released_;
  std::shared_ptr<Parameters> parameters_;
  std::unique_ptr<HealthPage> health_;  // nullptr: nobody asks.
  Inspector::Sources inspection_;
  const std::optional<KeySource> keys_;
  mutable Mutex mutex_;
  std::unique_ptr<ProcessTransport> transports_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectedSession> connected_;
  Session::Step step_;  // The last one.
  bool step_is_finished_ = false;
  // Of gradients on their way to the host, by table.
  std::map<int, StepOptions> options_;
  // From the first collective before Open() on.
  std::shared_ptr<EarlyGather> early_ ABSL_GUARDED_BY(mutex_);
  std::string interrupted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline::python
