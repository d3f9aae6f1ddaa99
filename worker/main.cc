// slackline_worker: one process per device; trains on its part of the data.
#include <spdlog/spdlog.h>

#include "common/config/cluster_config.h"
#include "common/mutex.h"
#include "common/net/delayed/delayed_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/optim/optimizer.h"
#include "common/optim/stale_rule.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "job/job_config.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"
#include "worker/session/worker_loop.h"
#include "worker/train/gpu_parts.h"
#include "worker/train/metric_records.h"
#include "worker/train/trainer.h"

namespace slackline {
namespace {

// The WorkerLoop that a signal is for; a worker that joins again makes a new
// one.
class Interruptible {
 public:
  void Set(WorkerLoop* loop) {
    const MutexLock lock(mutex_);
    loop_ = loop;
    if (loop_ != nullptr && !reason_.empty()) loop_->Interrupt(reason_);
  }
  void Interrupt(const std::string& reason) {
    const MutexLock lock(mutex_);
    reason_ = reason;
    if (loop_ != nullptr) loop_->Interrupt(reason);
  }

 private:
  Mutex mutex_;
  WorkerLoop* loop_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Work(const MemberFlags& flags, const config::ClusterConfig& config,
                  const TimeSource& time) {
  Interruptible interruptible;
  const StopSignal stop_signal([&](int signal) {
    interruptible.Interrupt(InterruptedBy("worker", flags.index, signal));
  });
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  const WorkerProcess& self = workers[flags.index];
  const ModelOptions model_options = {
      .gpu = self.gpu,
      .push_type = config.sync().push_type(),
      .gpu_timeout = absl::Milliseconds(config.limits().wait_timeout_ms())};
  SL_RETURN_IF_ERROR(CheckModelDevice(model_options));
  if (self.gpu >= 0) {
    PrepareGpuGroups(config.sync().collective().algorithm());
    spdlog::info("training on GPU {}", self.gpu);
  }
  SL_RETURN_IF_ERROR(SetComputeThreads(self.threads));
  const BlasLibrary blas = LoadedBlas();
  if (blas.fast) {
    spdlog::info("matrix products by {}", blas.name);
  } else {
    spdlog::warn(
        "matrix products by {}: training is about 15 times slower than with "
        "OpenBLAS; "
        "install libopenblas0-pthread",
        blas.name);
  }
  SL_ASSIGN_OR_RETURN(const DataSplit data,
                      LoadData(config.data(), flags.data_dir));
  spdlog::info("data: {}", data.description);
  SL_ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::Create({.examples = data.train->examples(),
                       .batch_size = config.data().batch_size(),
                       .rank = Rank{flags.index},
                       .world_size = static_cast<int64_t>(workers.size()),
                       .seed = static_cast<uint64_t>(config.train().seed())}));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      CreateModel(config.model(), data.train->features(),
                                  data.train->classes(), model_options));
  SL_ASSIGN_OR_RETURN(const StaleRules stale,
                      StaleRules::Create(config.sync()));
  std::vector<std::string> tables;
  for (const wire::Table& table : model->tables())
    tables.push_back(table.name());
  SL_RETURN_IF_ERROR(stale.CheckTables(tables));
  const LearningRateSchedule::JobLength length =
      JobLengthOf(config.train(), sampler);

  const config::Limits& limits = config.limits();
  WorkerLoop::Options options;
  options.time = time;
  options.coordinator_endpoint = absl::StrCat(
      "tcp://", config.coordinator().host(), ":", config.coordinator().port());
  options.core.train = config.train();
  options.core.pull_ahead = config.sync().pull_ahead();
  options.core.evaluate_every =
      EvaluationInterval(config.train(), length.steps_per_epoch);
  options.core.wait_timeout = absl::Milliseconds(limits.wait_timeout_ms());
  options.core.save_timeout = absl::Milliseconds(limits.save_timeout_ms());
  ClientCore::Options& client = options.core.client;
  client.window_bytes = size_t{1024} * limits.window_kib();
  client.message_bytes = size_t{1024} * limits.message_kib();
  options.transport = limits.transport();
  const std::optional<LinkModel> link = LinkOf(self.conditions);
  if (link.has_value()) {
    spdlog::info("traffic with the servers has to pass a link: {}",
                 self.conditions.link().ShortDebugString());
  }
  SL_ASSIGN_OR_RETURN(const Optimizer optimizer,
                      Optimizer::Create(config.optimizer()));
  client.slot_count = optimizer.slot_count();
  MemberCore::Options& member = options.core.member;
  member.coordinator_address = options.coordinator_endpoint;
  member.start_timeout = absl::Milliseconds(limits.start_timeout_ms());
  member.coordinator_timeout =
      absl::Milliseconds(limits.coordinator_timeout_ms());
  wire::JoinRequest& join = member.join;
  join =
      JoinRequestOf(wire::JoinRequest::WORKER, flags.index, self.host, config);
  for (const wire::Table& table : model->tables()) *join.add_table() = table;
  join.set_steps_total(length.steps_total);
  join.set_steps_per_epoch(length.steps_per_epoch);
  join.set_data(data.description);

  ZmqTransport transport;
  std::optional<DelayedTransport> delayed;
  if (link.has_value()) delayed.emplace(transport, *link, time);
  Transport& to_shard_threads =
      delayed ? static_cast<Transport&>(*delayed) : transport;
  while (true) {
    join.set_token(RandomToken());  // A new life each time.
    SL_ASSIGN_OR_RETURN(
        const std::unique_ptr<WorkerLoop> loop,
        WorkerLoop::Start(transport, to_shard_threads, options));
    interruptible.Set(loop.get());
    Trainer trainer({.rank = Rank{flags.index},
                     .host = self.host,
                     .compute_threads = self.threads,
                     .slowdown = self.slowdown,
                     .conditions = self.conditions,
                     .config = config,
                     .out = flags.out},
                    &data, &sampler, model.get(), loop.get());
    const absl::Status status = trainer.Run();
    interruptible.Set(nullptr);
    if (!absl::IsAborted(status)) return status;
    spdlog::warn("{}; joining again", std::string(status.message()));
  }
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  return slackline::RunMemberProgram(
      {.role = "worker",
       .description =
           "Trains on its part of the data: pushes gradients to the servers "
           "and pulls parameters,\nor all-reduces with the other workers, as "
           "the config says. Start one process for each\nworker of the "
           "config, in any order; 'slackline run' does it on one host. A "
           "worker that\nis started again while the job runs over servers "
           "joins in.",
       .out_help = "Folder for the final model; none: not written",
       .data_dir_help = "Folder with the data sets that the config names",
       .config_parts = slackline::kJobConfigParts,
       .count =
           [](const slackline::config::ClusterConfig& config) {
             return static_cast<int>(slackline::WorkerProcesses(config).size());
           },
       .run = slackline::Work},
      argc, argv);
}
