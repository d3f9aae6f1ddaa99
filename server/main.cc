// slackline_server: shard threads that hold the model, a control thread, and in
// server 0 the coordinator.
#include <spdlog/spdlog.h>

#include "common/config/cluster_config.h"
#include "common/net/resolve.h"
#include "common/net/transport.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/shard/shard_thread.h"

namespace slackline {
namespace {

absl::Status Serve(const MemberFlags& flags,
                   const config::ClusterConfig& config) {
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  ServerProcess self = flags.add ? servers.back() : servers[flags.index];
  if (flags.add) {
    self.index = flags.index;
    self.first_port = 0;
    if (!flags.host.empty()) self.host = flags.host;
    if (flags.threads > 0) self.threads = flags.threads;
    if (!config.insecure() && !IsLoopback(self.host)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--host: ", self.host,
          " is not a loopback address, and nothing on the wire is encrypted: "
          "the config has to say insecure: true"));
    }
  }
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
    options.core = {
        .job = config.job(),
        .config_hash = ConfigHash(config),
        .servers = static_cast<int>(servers.size()),
        .workers = static_cast<int>(WorkerProcesses(config).size()),
        .sync = config.sync(),
        .shard_elements = int64_t{config.limits().shard_kib()} * 1024 /
                          static_cast<int64_t>(sizeof(float)),
        .lease = absl::Milliseconds(config.limits().lease_ms()),
        .start_timeout = absl::Milliseconds(config.limits().start_timeout_ms()),
        .rebalance = {.config = config.rebalance(),
                      .slot_count = optimizer.slot_count()},
        .stop = config.train().stop()};
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
  join =
      JoinRequestOf(wire::JoinRequest::SERVER, flags.index, self.host, config);
  SL_ASSIGN_OR_RETURN(const StaleRules stale,
                      StaleRules::Create(config.sync()));
  std::vector<std::unique_ptr<ShardThread>> shard_threads;
  for (int t = 0; t < self.threads; ++t) {
    ShardThread::Options options;
    options.core = {.self = {.server = flags.index, .thread = t},
                    .seed = static_cast<uint64_t>(config.train().seed()),
                    .trace = config.train().trace(),
                    .stale = stale};
    options.host = address;
    options.port = self.first_port == 0 ? 0 : self.first_port + t;
    options.transport = config.limits().transport();
    options.slowdown = self.slowdown;
    SL_ASSIGN_OR_RETURN(
        shard_threads.emplace_back(),
        ShardThread::Start(context, options, optimizer, config.schedule()));
    *join.add_thread() = shard_threads.back()->endpoints();
    control.shard_thread_endpoints.push_back(
        shard_threads.back()->control_endpoint());
    spdlog::info("shard thread {} listens at {}", t,
                 shard_threads.back()->endpoints().tcp());
  }
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
    loop->Interrupt(InterruptedBy("server", flags.index, signal));
  });
  return loop->Run();
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  return slackline::RunMemberProgram(
      {.role = "server",
       .description =
           "Holds shards of the model and serves pushes and pulls. Server 0 "
           "also runs the\ncoordinator, so it writes metrics.jsonl, "
           "moves.jsonl, modes.jsonl and\nsummary.json. Start one process for "
           "each server of the config; 'slackline run'\ndoes it on one host.",
       .out_help = "Folder for metrics.jsonl, moves.jsonl, modes.jsonl, "
                   "summary.json and traces; none: not written",
       .data_dir_help = "",
       .may_be_added = true,
       .count =
           [](const slackline::config::ClusterConfig& config) {
             return static_cast<int>(slackline::ServerProcesses(config).size());
           },
       .run = slackline::Serve},
      argc, argv);
}
