// slackline_server: shard threads that hold the model, a control thread, and in
// server 0 the coordinator.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <random>

#include "common/config/cluster_config.h"
#include "common/net/host_id.h"
#include "common/net/resolve.h"
#include "common/net/transport.h"
#include "common/process/logging.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/shard/shard_thread.h"

namespace slackline {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string cluster;
  int index = -1;
  std::string out;
  ConfigOverrides overrides;
};

absl::Status Serve(const Flags& flags, const config::ClusterConfig& config) {
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  const ServerProcess& self = servers[flags.index];
  SL_ASSIGN_OR_RETURN(const std::string coordinator_address,
                      ResolveHost(config.coordinator().host()));
  const std::string coordinator_endpoint = absl::StrCat(
      "tcp://", coordinator_address, ":", config.coordinator().port());
  SL_ASSIGN_OR_RETURN(const std::string address, ResolveHost(self.host));

  // Everything that can be wrong at start is found before the first message.
  SL_ASSIGN_OR_RETURN(const Optimizer optimizer,
                      Optimizer::Create(config.optimizer()));
  NetContext context;
  std::unique_ptr<CoordinatorThread> coordinator;
  if (flags.index == 0) {
    CoordinatorThread::Options options;
    options.core = {.job = config.job(),
                    .config_hash = ConfigHash(config),
                    .servers = static_cast<int>(servers.size()),
                    .workers = static_cast<int>(WorkerProcesses(config).size()),
                    .mode = ModeOf(config),
                    .staleness = StalenessOf(config),
                    .shard_elements = int64_t{config.limits().shard_kib()} *
                                      1024 /
                                      static_cast<int64_t>(sizeof(float)),
                    .lease = absl::Milliseconds(config.limits().lease_ms()),
                    .start_timeout =
                        absl::Milliseconds(config.limits().start_timeout_ms())};
    options.endpoint = coordinator_endpoint;
    options.folder = flags.out;
    options.mode = ModeText(config);
    options.seed = config.train().seed();
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> started =
        CoordinatorThread::Start(context, options);
    if (!started.ok()) {
      return Annotate(started.status(), "cannot start the coordinator");
    }
    coordinator = *std::move(started);
    spdlog::info("coordinator listens at {}", coordinator_endpoint);
  }

  ControlLoop::Options control;
  wire::JoinRequest& join = control.member.join;
  std::vector<std::unique_ptr<ShardThread>> shard_threads;
  for (int t = 0; t < self.threads; ++t) {
    ShardThread::Options options;
    options.core = {.self = {.server = flags.index, .thread = t},
                    .seed = static_cast<uint64_t>(config.train().seed()),
                    .trace = config.train().trace()};
    options.host = address;
    options.port = self.first_port == 0 ? 0 : self.first_port + t;
    options.ipc = config.limits().transport() != config::Limits::TCP;
    SL_ASSIGN_OR_RETURN(
        shard_threads.emplace_back(),
        ShardThread::Start(context, options, optimizer, config.schedule()));
    *join.add_thread() = shard_threads.back()->endpoints();
    control.shard_thread_endpoints.push_back(
        shard_threads.back()->control_endpoint());
    spdlog::info("shard thread {} listens at {}", t,
                 shard_threads.back()->endpoints().tcp());
  }
  join.set_role(wire::JoinRequest::SERVER);
  join.set_index(flags.index);
  join.set_token(
      (uint64_t{std::random_device{}()} << 32 | std::random_device{}()) | 1);
  join.set_job(config.job());
  join.set_config_hash(ConfigHash(config));
  join.set_host(self.host);
  join.set_host_id(HostId());
  join.set_pid(getpid());
  control.member.coordinator_address = coordinator_endpoint;
  control.member.start_timeout =
      absl::Milliseconds(config.limits().start_timeout_ms());
  control.coordinator_endpoint = coordinator_endpoint;
  if (config.train().trace() && !flags.out.empty()) {
    control.trace_file =
        absl::StrCat(flags.out, "/trace-server-", flags.index, ".jsonl");
  }
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<ControlLoop> loop,
                      ControlLoop::Create(context, control));
  const StopSignal stop_signal([&](int signal) {
    loop->Interrupt(absl::StrCat("server ", flags.index, " was interrupted by ",
                                 signal == SIGINT ? "SIGINT" : "SIGTERM"));
  });
  return loop->Run();
}

int Main(int argc, char** argv) {
  StopSignal::Block();
  KeepFreedMemory();
  CLI::App app(
      "Holds shards of the model and serves pushes and pulls. Server 0 also "
      "runs the\n"
      "coordinator, so it writes metrics.jsonl and summary.json. Start one "
      "process for\n"
      "each server of the config; 'slackline run' does it on one host.\n"
      "Exit code: 0 the job has finished, 1 it failed (the last line says "
      "why), 2 wrong usage.",
      "slackline_server");
  Flags flags;
  app.add_option("--cluster", flags.cluster,
                 "Cluster config, a text-format file")
      ->required();
  app.add_option("--index", flags.index,
                 "Which server of the config this is, from 0")
      ->required();
  app.add_option(
      "--out", flags.out,
      "Folder for metrics.jsonl, summary.json and traces; none: not written");
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
  const int servers = static_cast<int>(ServerProcesses(*config).size());
  if (flags.index < 0 || flags.index >= servers) {
    std::fprintf(stderr,
                 "--index: %d is outside [0, %d); the config has %d servers\n",
                 flags.index, servers, servers);
    return kExitUsage;
  }
  SetUpLogging(absl::StrCat("server ", flags.index));
  spdlog::info("slackline_server --cluster={} --index={} --out={} with\n{}",
               flags.cluster, flags.index, flags.out, ToText(*config));
  const absl::Status status = Serve(flags, *config);
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
