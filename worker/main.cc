// slackline_worker: one process per device; trains on its part of the data.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <mutex>
#include <random>

#include "common/config/cluster_config.h"
#include "common/net/host_id.h"
#include "common/net/transport.h"
#include "common/process/logging.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "worker/client/ps_client.h"
#include "worker/data/load_data.h"
#include "worker/data/sampler.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"
#include "worker/train/trainer.h"

namespace slackline {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string cluster;
  int index = -1;
  std::string data_dir;
  std::string out;
  ConfigOverrides overrides;
};

// The PsClient that a signal is for; a worker that joins again makes a new one.
class Interruptible {
 public:
  void Set(PsClient* client) {
    const std::lock_guard<std::mutex> lock(mutex_);
    client_ = client;
    if (client_ != nullptr && !reason_.empty()) client_->Interrupt(reason_);
  }
  void Interrupt(const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reason_ = reason;
    if (client_ != nullptr) client_->Interrupt(reason);
  }

 private:
  std::mutex mutex_;
  PsClient* client_ = nullptr;
  std::string reason_;
};

absl::Status Work(const Flags& flags, const config::ClusterConfig& config,
                  Interruptible* interruptible) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  const WorkerProcess& self = workers[flags.index];
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
                                  data.train->classes()));
  const LearningRateSchedule::JobLength length =
      JobLengthOf(config.train(), sampler);

  PsClient::Options options;
  options.coordinator_endpoint = absl::StrCat(
      "tcp://", config.coordinator().host(), ":", config.coordinator().port());
  options.window_bytes = size_t{1024} * config.limits().window_kib();
  options.message_bytes = size_t{1024} * config.limits().message_kib();
  options.wait_timeout = absl::Milliseconds(config.limits().wait_timeout_ms());
  options.transport = config.limits().transport();
  options.member.coordinator_address = options.coordinator_endpoint;
  options.member.start_timeout =
      absl::Milliseconds(config.limits().start_timeout_ms());
  wire::JoinRequest& join = options.member.join;
  join.set_role(wire::JoinRequest::WORKER);
  join.set_index(flags.index);
  join.set_job(config.job());
  join.set_config_hash(ConfigHash(config));
  join.set_host(self.host);
  join.set_host_id(HostId());
  join.set_pid(getpid());
  for (const wire::Table& table : model->tables()) *join.add_table() = table;
  join.set_steps_total(length.steps_total);
  join.set_steps_per_epoch(length.steps_per_epoch);
  join.set_data(data.description);

  NetContext context;
  while (true) {
    join.set_token(
        (uint64_t{std::random_device{}()} << 32 | std::random_device{}()) | 1);
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<PsClient> client,
                        PsClient::Start(context, options));
    interruptible->Set(client.get());
    Trainer trainer({.rank = Rank{flags.index},
                     .host = self.host,
                     .compute_threads = self.threads,
                     .slowdown = self.slowdown,
                     .config = config,
                     .out = flags.out},
                    &data, &sampler, model.get(), client.get());
    const absl::Status status = trainer.Run();
    interruptible->Set(nullptr);
    if (absl::IsAborted(status)) {
      spdlog::warn("{}; joining again", std::string(status.message()));
      continue;
    }
    // What went wrong here alone is told to the coordinator, which tells the
    // others.
    if (!status.ok() && client->failure().ok()) {
      wire::Call leave;
      leave.mutable_leave()->set_failure(std::string(status.message()));
      (void)client->Call(leave, Payload(), absl::Seconds(2));
    }
    return status;
  }
}

int Main(int argc, char** argv) {
  StopSignal::Block();
  KeepFreedMemory();
  CLI::App app(
      "Trains on its part of the data: pushes gradients to the servers and "
      "pulls parameters,\n"
      "or all-reduces with the other workers, as the config says. Start one "
      "process for each\n"
      "worker of the config, in any order; 'slackline run' does it on one "
      "host. A worker that\n"
      "is started again while the job runs over servers joins in.\n"
      "Exit code: 0 the job has finished, 1 it failed (the last line says "
      "why), 2 wrong usage.",
      "slackline_worker");
  Flags flags;
  app.add_option("--cluster", flags.cluster,
                 "Cluster config, a text-format file")
      ->required();
  app.add_option("--index", flags.index,
                 "Which worker of the config this is, from 0: its rank")
      ->required();
  app.add_option("--data-dir", flags.data_dir,
                 "Folder with the data sets that the config names");
  app.add_option("--out", flags.out,
                 "Folder for the final model; none: not written");
  app.add_option("--mode", flags.overrides.mode,
                 "bsp, ssp:S, asp or allreduce; the same for all processes");
  app.add_option("--set", flags.overrides.sets,
                 "Change a field of the config: path=value")
      ->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  absl::StatusOr<config::ClusterConfig> config =
      LoadClusterConfig(flags.cluster, flags.overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  const int workers = static_cast<int>(WorkerProcesses(*config).size());
  if (flags.index < 0 || flags.index >= workers) {
    std::fprintf(stderr,
                 "--index: %d is outside [0, %d); the config has %d workers\n",
                 flags.index, workers, workers);
    return kExitUsage;
  }
  SetUpLogging(absl::StrCat("worker ", flags.index));
  spdlog::info(
      "slackline_worker --cluster={} --index={} --data-dir={} --out={} "
      "with\n{}",
      flags.cluster, flags.index, flags.data_dir, flags.out, ToText(*config));
  Interruptible interruptible;
  const StopSignal stop_signal([&](int signal) {
    interruptible.Interrupt(
        absl::StrCat("worker ", flags.index, " was interrupted by ",
                     signal == SIGINT ? "SIGINT" : "SIGTERM"));
  });
  const absl::Status status = Work(flags, *config, &interruptible);
  if (!status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return kExitFailed;
  }
  spdlog::info("done");
  return 0;
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) { return slackline::Main(argc, argv); }
