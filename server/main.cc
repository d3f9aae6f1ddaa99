// slackline_server: shard threads that hold the model, a control thread, and in
// server 0 the coordinator.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/net/resolve.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/join_request.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "common/version.h"
#include "job/job_config.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_keeping.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/cut_parts.h"
#include "server/shard/shard_thread.h"

namespace slackline {
namespace {

// The checkpoint that the flags ask for; nullptr: none, the job begins anew.
absl::StatusOr<std::shared_ptr<const StoredCheckpoint>> OpenAskedFor(
    const MemberFlags& flags, const config::ClusterConfig& config,
    const std::string& root) {
  if (flags.resume.empty() && !flags.restore) return nullptr;
  const std::string flag = flags.restore ? "--restore" : "--resume";
  if (config.sync().has_delays()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag,
        ": the job has given delays (sync.delays), which begin at its first "
        "step; give it a mode"));
  }
  if (flags.restore && root.empty()) {
    return absl::InvalidArgumentError(
        "--restore: the job has no folder of checkpoints; name one in "
        "checkpoint { folder }, or one of the run with --out");
  }
  const auto of_job = [&](const checkpoint::Manifest& manifest) {
    return manifest.job() == config.job();
  };
  std::vector<std::string> passed_over;
  absl::StatusOr<std::unique_ptr<StoredCheckpoint>> opened =
      flags.restore
          ? CheckpointToGoOnFrom(root, of_job, /*began_with=*/"", &passed_over)
          : OpenCheckpoint(flags.resume, &passed_over);
  for (const std::string& why : passed_over)
    spdlog::warn("passed over: {}", why);
  if (!opened.ok()) {
    return Annotate(
        opened.status(),
        absl::StrCat(flag, " (every server reads it, on its host)"));
  }
  if (*opened == nullptr) {
    spdlog::info("begins anew: {} has no checkpoint of the job yet", root);
    return nullptr;
  }
  spdlog::info("goes on from {}, which is whole: step {}, {} tables, {} bytes",
               (*opened)->folder(), (*opened)->manifest().clock(),
               (*opened)->manifest().table_size(), (*opened)->bytes());
  return *std::move(opened);
}

// The checkpoint that a recovered job begins with; nullptr: none. One that runs
// needs it no more, and a server that joins it begins empty.
absl::StatusOr<std::shared_ptr<const StoredCheckpoint>> OpenKept(
    const CoordinatorCore::Kept& job) {
  if (job.resume == nullptr || job.formed) return nullptr;
  absl::StatusOr<std::unique_ptr<StoredCheckpoint>> opened =
      StoredCheckpoint::Open(job.resume_folder);
  if (!opened.ok()) return Annotate(opened.status(), "--recover");
  return *std::move(opened);
}

// Whoever does not know yet how the job has ended is told, and its summary is
// written if that has not been done.
absl::Status ReportEnd(CoordinatorThread* coordinator) {
  const StopSignal stop_signal([&](int) { coordinator->StopSaving(); });
  SL_RETURN_IF_ERROR(coordinator->Finish());
  const absl::Status end = coordinator->JobEnd();
  spdlog::info(
      "--recover: the job there has ended before this: {}; to begin anew, "
      "leave out --recover",
      end.ok() ? "it has finished" : std::string(end.message()));
  return end;
}

// What a peer of a shard thread may have under way. Pushes are within the
// window; each may be sent again once before the first one is read. A shard
// that is handed over comes with its optimizer slots.
int64_t UnreadBytesMax(const config::Limits& limits) {
  return std::max(
      ChannelOptions().unread_bytes_max,
      int64_t{1024} * (4 * limits.window_kib() + 8 * limits.shard_kib()));
}

absl::Status Serve(const MemberFlags& flags,
                   const config::ClusterConfig& config,
                   const TimeSource& time) {
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
  std::shared_ptr<const DelaySource> delays;
  if (config.sync().has_delays()) {
    absl::StatusOr<DelaySource> loaded =
        DelaySource::Load(config.sync().delays().given());
    if (!loaded.ok()) {
      return Annotate(loaded.status(),
                      "sync.delays.given (every server reads it, on its host)");
    }
    delays = std::make_shared<const DelaySource>(*std::move(loaded));
  }
  const std::string checkpoint_root = CheckpointRoot(config, flags.out);
  const KeepingOptions keeping = {
      .config = config, .out = flags.out, .endpoint = coordinator_endpoint};
  RecoveredJob recovered;
  if (flags.recover) {
    SL_ASSIGN_OR_RETURN(recovered, RecoverJob(keeping));
  }
  std::shared_ptr<const StoredCheckpoint> stored;
  if (recovered.job.has_value()) {
    SL_ASSIGN_OR_RETURN(stored, OpenKept(*recovered.job));
  } else {
    SL_ASSIGN_OR_RETURN(stored, OpenAskedFor(flags, config, checkpoint_root));
  }
  ZmqTransport transport;
  std::unique_ptr<CoordinatorThread> coordinator;
  if (flags.index == 0) {
    CoordinatorThread::Options options;
    options.core = {
        .job = config.job(),
        .run = recovered.job.has_value() ? recovered.job->run : RandomToken(),
        .config_hash = ConfigHash(config),
        .protocol = kProtocol,
        .build = ThisBuild(),
        .servers = static_cast<int>(servers.size()),
        .workers = static_cast<int>(WorkerProcesses(config).size()),
        .replicas = config.replicas(),
        .sync = config.sync(),
        .shard_elements = int64_t{config.limits().shard_kib()} * 1024 /
                          static_cast<int64_t>(sizeof(float)),
        .optimizer = config.optimizer(),
        .lease = absl::Milliseconds(config.limits().lease_ms()),
        .start_timeout = absl::Milliseconds(config.limits().start_timeout_ms()),
        .rebalance = {.config = config.rebalance()},
        .stop = config.train().stop(),
        .stall_timeout = absl::Milliseconds(config.limits().stall_timeout_ms()),
        .save_timeout = absl::Milliseconds(config.limits().save_timeout_ms()),
        .nonfinite = config.train().nonfinite(),
        .delays = delays,
        .seed = static_cast<uint64_t>(config.train().seed()),
        .checkpoint = config.checkpoint(),
        .checkpoint_root = checkpoint_root,
        .mode = ModeText(config),
        .resume = nullptr,
        .resume_sha256 = {},
        .resume_folder = {}};
    if (recovered.job.has_value()) {
      options.core.resume = recovered.job->resume;
      options.core.resume_sha256 = recovered.job->resume_sha256;
      options.core.resume_folder = recovered.job->resume_folder;
    } else if (stored != nullptr) {
      options.core.resume = std::shared_ptr<const checkpoint::Manifest>(
          stored, &stored->manifest());
      options.core.resume_sha256 = stored->sha256();
      // Workers are told where it is, and may run elsewhere.
      std::error_code error;
      const std::filesystem::path folder =
          std::filesystem::absolute(stored->folder(), error);
      options.core.resume_folder =
          error ? stored->folder() : folder.lexically_normal().string();
    }
    options.time = time;
    options.endpoint = coordinator_endpoint;
    options.folder = flags.out;
    options.folder_token = RandomToken();
    options.mode = ModeText(config);
    options.seed = config.train().seed();
    options.save_timeout =
        absl::Milliseconds(config.limits().save_timeout_ms());
    if (recovered.keeping.store == nullptr) {
      SL_ASSIGN_OR_RETURN(recovered.keeping, KeepNewJob(keeping));
    }
    options.core.coordinator_may_return = recovered.keeping.store != nullptr;
    absl::StatusOr<std::unique_ptr<CoordinatorThread>> started =
        CoordinatorThread::Start(transport, options,
                                 std::move(recovered.keeping));
    if (!started.ok()) {
      return Annotate(started.status(), "cannot start the coordinator");
    }
    coordinator = *std::move(started);
    spdlog::info("coordinator listens at {}", coordinator_endpoint);
    if (recovered.job.has_value()) {
      if (recovered.job->ended) return ReportEnd(coordinator.get());
      spdlog::info("--recover: goes on with the job that is in {}",
                   KeepingPlace(keeping));
    }
    KeepConfig(flags, config);
  }

  ControlLoop::Options control;
  wire::JoinRequest& join = control.core.member.join;
  join =
      JoinRequestOf(wire::JoinRequest::SERVER, flags.index, self.host, config);
  if (delays != nullptr) join.set_delays_sha256(delays->sha256());
  if (stored != nullptr) join.set_checkpoint_sha256(stored->sha256());
  SL_ASSIGN_OR_RETURN(const StaleRules stale,
                      StaleRules::Create(config.sync()));
  // Shard threads give parts of cuts to be written, and the loop is told of
  // them: so the threads end first, and the loop last. It is there by then,
  // since it gives the views that have cuts.
  std::unique_ptr<ControlLoop> loop;
  const auto told = [&loop](wire::CutPart part) {
    loop->CutPartDone(std::move(part));
  };
  CutParts cut_parts(
      {.server = flags.index, .root = checkpoint_root, .told = told});
  std::vector<std::unique_ptr<ShardThread>> shard_threads;
  for (int t = 0; t < self.threads; ++t) {
    ShardThread::Options options;
    options.core = {.self = {.server = flags.index, .thread = t},
                    .seed = static_cast<uint64_t>(config.train().seed()),
                    .trace = config.train().trace(),
                    .stale = stale,
                    .delays = delays,
                    .stored = stored,
                    .nonfinite = config.train().nonfinite()};
    options.time = time;
    options.host = address;
    options.port = self.first_port == 0 ? 0 : self.first_port + t;
    options.transport = config.limits().transport();
    options.unread_bytes_max = UnreadBytesMax(config.limits());
    options.slowdown = self.slowdown;
    options.on_cut = [&cut_parts, t](ShardCore::CutState state) {
      cut_parts.OnCut(t, std::move(state));
    };
    SL_ASSIGN_OR_RETURN(
        shard_threads.emplace_back(),
        ShardThread::Start(transport, options, config.schedule()));
    *join.add_thread() = shard_threads.back()->endpoints();
    spdlog::info("shard thread {} listens at {}", t,
                 shard_threads.back()->endpoints().tcp());
  }
  control.core.member.coordinator_address = coordinator_endpoint;
  control.core.member.start_timeout =
      absl::Milliseconds(config.limits().start_timeout_ms());
  control.core.member.coordinator_timeout =
      absl::Milliseconds(config.limits().coordinator_timeout_ms());
  control.time = time;
  control.shard_threads = self.threads;
  control.give_view =
      [&shard_threads](const std::shared_ptr<const View>& view) {
        for (const auto& shard_thread : shard_threads)
          shard_thread->Follow(view);
      };
  if (coordinator != nullptr) {
    control.coordinator_failure = [&coordinator] {
      return coordinator->failure();
    };
  }
  control.thread_failure = [&shard_threads] {
    for (const auto& shard_thread : shard_threads) {
      if (const absl::Status failure = shard_thread->failure(); !failure.ok())
        return failure;
    }
    return absl::OkStatus();
  };
  control.coordinator_endpoint = coordinator_endpoint;
  if (config.train().trace() && !flags.out.empty()) {
    control.trace_file =
        absl::StrCat(flags.out, "/trace-server-", flags.index, ".jsonl");
  }
  SL_ASSIGN_OR_RETURN(loop, ControlLoop::Create(transport, control));
  SignalWishes wishes(config.has_checkpoint());
  const StopSignal stop_signal([&](int signal) {
    const std::string reason = InterruptedBy("server", flags.index, signal);
    if (wishes.Of(signal) == SignalWish::kSuspend) return loop->Suspend(reason);
    loop->Interrupt(reason);
    if (coordinator != nullptr) coordinator->StopSaving();
  });
  SL_RETURN_IF_ERROR(loop->Run());
  return coordinator == nullptr ? absl::OkStatus() : coordinator->Finish();
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
       .may_resume = true,
       .config_parts = slackline::kJobConfigParts,
       .count =
           [](const slackline::config::ClusterConfig& config) {
             return static_cast<int>(slackline::ServerProcesses(config).size());
           },
       .run = slackline::Serve},
      argc, argv);
}
