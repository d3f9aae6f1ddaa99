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

#include "absl/strings/match.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/endpoint.h"
#include "common/health/health_page.h"
#include "common/host_port.h"
#include "common/inspection/stack_taker.h"
#include "common/inspection/timeline_source.h"
#include "common/net/host_id.h"
#include "common/net/process_transport.h"
#include "common/net/resolve.h"
#include "common/process/address_limit.h"
#include "common/process/cannot_join.h"
#include "common/process/join_request.h"
#include "common/process/logging.h"
#include "common/process/member_program.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "common/timeline/event_names.h"
#include "common/timeline/recorder.h"
#include "common/utf8.h"
#include "common/version.h"
#include "job/job_config.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_keeping.h"
#include "server/coordinator/coordinator_seat.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/cut_parts.h"
#include "server/shard/shard_thread.h"
#include "server/shard/unread_bytes.h"

namespace slackline {
namespace {

// The checkpoint that the flags ask for; nullptr: none, the job begins anew, or
// the server `joins` a job that may have begun.
absl::StatusOr<std::shared_ptr<const StoredCheckpoint>> OpenAskedFor(
    const MemberFlags& flags, const config::ClusterConfig& config,
    const std::string& root, bool joins) {
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
  // The job may run, and need it no more: checkpoints that have been followed
  // by others are removed. If it forms, the coordinator refuses who has none.
  if (absl::IsNotFound(opened.status()) && joins) {
    spdlog::warn(
        "{} {}: it is not there: {}; a job that runs is joined without it",
        flag, flags.resume, std::string(opened.status().message()));
    return nullptr;
  }
  if (!opened.ok()) {
    return Annotate(
        opened.status(),
        absl::StrCat(flag, " (every server reads it, on its host",
                     flags.restore ? ""
                                   : "; --restore takes the newest one of the "
                                     "job, whichever is there",
                     ")"));
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
    const KeptJob& job) {
  if (job.resume == nullptr || job.formed) return nullptr;
  absl::StatusOr<std::unique_ptr<StoredCheckpoint>> opened =
      StoredCheckpoint::Open(job.resume_folder);
  if (!opened.ok()) {
    return Annotate(opened.status(),
                    "the job that goes on had begun with a checkpoint");
  }
  return *std::move(opened);
}

// Whoever does not know yet how the job has ended is told, and its summary is
// written if that has not been done.
absl::Status ReportEnd(CoordinatorSeat* seat) {
  const StopSignal stop_signal([&](int) { seat->StopSaving(); });
  SL_RETURN_IF_ERROR(seat->Finish());
  return seat->JobEnd();
}

// The job was over before this process came, as `end` says.
absl::Status Over(const KeepingOptions& keeping, const absl::Status& end,
                  const std::string& instead) {
  spdlog::warn("the run in {} has ended before this: {}; nothing is begun: {}",
               keeping.out.empty() ? KeepingPlace(keeping) : keeping.out,
               end.ok() ? "it has finished" : std::string(end.message()),
               instead);
  return end;
}

template <typename Process>
std::vector<std::string> HostsOf(const std::vector<Process>& processes) {
  std::vector<std::string> hosts;
  for (const Process& process : processes) hosts.push_back(process.host);
  return hosts;
}

// A coordinator that begins in server `flags.index`, with a job that begins
// anew.
CoordinatorThread::Options CoordinatorOptions(
    const MemberFlags& flags, const config::ClusterConfig& config,
    const std::string& endpoint) {
  CoordinatorThread::Options options;
  options.core = {
      .job = config.job(),
      .run = RandomToken(),
      .config_hash = ConfigHash(config),
      .config = config,
      .server_hosts = HostsOf(ServerProcesses(config)),
      .worker_hosts = HostsOf(WorkerProcesses(config)),
      .protocol = kProtocol,
      .build = ThisBuild(),
      .servers = static_cast<int>(ServerProcesses(config).size()),
      .workers = static_cast<int>(WorkerProcesses(config).size()),
      .replicas = config.replicas(),
      .sync = config.sync(),
      .shard_elements = ShardElements(config.limits()),
      .optimizer = config.optimizer(),
      .lease = absl::Milliseconds(config.limits().lease_ms()),
      .start_timeout = absl::Milliseconds(config.limits().start_timeout_ms()),
      .rebalance = {.config = config.rebalance()},
      .stop = config.train().stop(),
      .stall_timeout = absl::Milliseconds(config.limits().stall_timeout_ms()),
      .save_timeout = absl::Milliseconds(config.limits().save_timeout_ms()),
      .nonfinite = config.train().nonfinite(),
      .gradient_bound = config.train().has_gradient_bound()
                            ? std::optional(config.train().gradient_bound())
                            : std::nullopt,
      .seed = static_cast<uint64_t>(config.train().seed()),
      .checkpoint = config.checkpoint(),
      .mode = ModeText(config)};
  options.core.try_links = true;
  options.core.host_server = flags.index;
  options.core.found_within = MemberCore::FoundWithin(
      CoordinatorEndpoints(config).size(), options.core.lease);
  options.endpoint = endpoint;
  options.folder = flags.out;
  options.folder_token = RandomToken();
  options.mode = ModeText(config);
  options.seed = config.train().seed();
  options.save_timeout = absl::Milliseconds(config.limits().save_timeout_ms());
  return options;
}

// The job begins with this checkpoint.
absl::Status GoOnFrom(const std::shared_ptr<const StoredCheckpoint>& stored,
                      CoordinatorCore::Options* options) {
  options->resume =
      std::shared_ptr<const checkpoint::Manifest>(stored, &stored->manifest());
  options->resume_sha256 = stored->sha256();
  // Workers are told where it is, and may run elsewhere.
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::absolute(stored->folder(), error);
  options->resume_folder =
      error ? stored->folder() : folder.lexically_normal().string();
  return CheckPathText("--resume", options->resume_folder);
}

// Some systems give a host's own name a loopback address in /etc/hosts: who
// listens there is reached by nobody else.
void WarnOfLoopback(const config::ClusterConfig& config,
                    const std::string& name, const std::string& address) {
  if (IsLoopback(name) || !absl::StartsWith(address, "127.")) return;
  std::string other;
  for (const WorkerProcess& worker : WorkerProcesses(config))
    if (worker.host != name && !IsLoopback(worker.host)) other = worker.host;
  for (const ServerProcess& server : ServerProcesses(config))
    if (server.host != name && !IsLoopback(server.host)) other = server.host;
  if (other.empty()) return;
  spdlog::warn(
      "{} is {} on this host, as its /etc/hosts has it, which {} cannot reach; "
      "write this host's address on the network into the config, or into "
      "/etc/hosts",
      name, address, other);
}

// `joins` is set once the server tells the coordinator itself what goes wrong.
absl::Status Serve(const MemberFlags& flags,
                   const config::ClusterConfig& config, const TimeSource& time,
                   Transport& transport, bool* joins) {
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  ServerProcess self = flags.add ? servers.back() : servers[flags.index];
  if (const std::string why = WhyOnAnotherHost(
          absl::StrCat("server ", flags.index), self.host, self.listen);
      !flags.add && !why.empty()) {
    spdlog::warn("{}", why);
  }
  if (flags.add) {
    self.index = flags.index;
    self.first_port = 0;
    if (!flags.host.empty()) {
      self.host = flags.host;
      self.listen.clear();  // Of the config's host.
    }
    if (flags.threads > 0) self.threads = flags.threads;
  }
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<HealthPage> health,
      HealthPage::Start(config, {.is_server = true,
                                 .index = flags.index,
                                 .port_given = flags.health_port,
                                 .time = time}));
  SL_ASSIGN_OR_RETURN(
      const std::string address,
      ResolveHost(self.listen.empty() ? self.host : self.listen));

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
  // Where it is if it is in this process.
  std::string coordinator_address = address;
  if (flags.index == 0) {
    const config::Coordinator& coordinator = config.coordinator();
    SL_ASSIGN_OR_RETURN(
        coordinator_address,
        ResolveHost(coordinator.has_listen() ? coordinator.listen()
                                             : coordinator.host()));
  }
  if (self.listen.empty()) WarnOfLoopback(config, self.host, address);
  if (flags.index == 0 && !config.coordinator().has_listen())
    WarnOfLoopback(config, config.coordinator().host(), coordinator_address);
  const KeepingOptions keeping = {
      .config = config,
      .out = flags.out,
      .endpoint = TcpEndpoint(coordinator_address, config.coordinator().port()),
      .checkpoint_root = checkpoint_root};
  TimelineRecorder timeline;  // Of all threads below.
  bool is_led = false;        // A job that is there already.
  BegunJob begun;
  if (flags.index == 0) {
    if (!flags.new_run) {
      SL_ASSIGN_OR_RETURN(is_led, JobIsLed(keeping));
    }
    if (!is_led) {
      absl::StatusOr<BegunJob> job = BeginJob(
          keeping, {.new_run = flags.new_run,
                    .from_checkpoint = flags.restore || !flags.resume.empty()});
      // Another server may have been faster.
      if (absl::IsFailedPrecondition(job.status()) && !flags.new_run) {
        SL_ASSIGN_OR_RETURN(is_led, JobIsLed(keeping));
      }
      if (!is_led) {
        SL_RETURN_IF_ERROR(job.status());
        begun = *std::move(job);
      }
    }
  }
  RecoveredJob& recovered = begun.recovered;
  if (begun.how == Beginning::kOver && !recovered.job.has_value())
    return Over(keeping, begun.end, begun.instead);
  std::shared_ptr<const StoredCheckpoint> stored;
  if (recovered.job.has_value()) {
    SL_ASSIGN_OR_RETURN(stored, OpenKept(*recovered.job));
  } else {
    SL_ASSIGN_OR_RETURN(stored, OpenAskedFor(flags, config, checkpoint_root,
                                             flags.index != 0 || is_led));
  }
  CoordinatorThread::Options options =
      CoordinatorOptions(flags, config, keeping.endpoint);
  options.time = time;
  options.track = timeline.TrackOf(timeline_names::kCoordinator);
  options.core.clock = {.name = HostId(),
                        .to_wall = time.WallNow() - time.Now()};
  options.core.delays = delays;
  options.core.checkpoint_root = checkpoint_root;
  if (health != nullptr) {
    options.watch = [board = health->board()](
                        std::shared_ptr<const wire::StatusReply> status) {
      board->Counted(std::move(status));
    };
  }
  if (recovered.job.has_value()) {
    GoOnWith(*recovered.job, &options.core);
  } else if (stored != nullptr) {
    SL_RETURN_IF_ERROR(GoOnFrom(stored, &options.core));
  }
  std::unique_ptr<CoordinatorSeat> seat;
  if (flags.index == 0 && !is_led) {
    if (recovered.keeping.store == nullptr) {
      SL_ASSIGN_OR_RETURN(recovered.keeping, KeepNewJob(keeping));
    }
    options.core.coordinator_may_return = recovered.keeping.store != nullptr;
    seat = std::make_unique<CoordinatorSeat>(
        transport,
        CoordinatorSeat::Options{.coordinator = options, .keeping = keeping});
    const absl::Status started = seat->Begin(std::move(recovered.keeping));
    if (!started.ok()) return Annotate(started, "cannot start the coordinator");
    spdlog::info("coordinator listens at {}", keeping.endpoint);
    if (recovered.job.has_value()) {
      if (begun.how == Beginning::kOver)
        return Over(keeping, ReportEnd(seat.get()), begun.instead);
      spdlog::info("goes on with the job that is in {}", KeepingPlace(keeping));
    }
    KeepConfig(flags, config);
  } else if (AnyServerTakesOver(config) && !flags.add) {
    seat = std::make_unique<CoordinatorSeat>(
        transport,
        CoordinatorSeat::Options{.coordinator = options, .keeping = keeping});
  }
  if (is_led) {
    spdlog::info(
        "the job that is in {} runs, and had a coordinator not long "
        "ago: this server joins it, and goes on as the coordinator when nobody "
        "else does",
        KeepingPlace(keeping));
  } else if (flags.recover && flags.index != 0) {
    spdlog::info(
        "--recover: this server joins the job that is in {}, and goes on as "
        "the coordinator when nobody else does",
        KeepingPlace(keeping));
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
  CutParts cut_parts({.server = flags.index,
                      .root = checkpoint_root,
                      .told = told,
                      .timeline = &timeline,
                      .time = time});
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
    if (config.train().has_gradient_bound()) {
      options.core.gradient_bound =
          GradientBound(config.train().gradient_bound());
    }
    options.time = time;
    options.host = address;
    if (!self.listen.empty()) options.announced_host = self.host;
    options.port = self.first_port == 0 ? 0 : self.first_port + t;
    options.transport = config.limits().transport();
    options.wait.spin_max = absl::Microseconds(config.limits().spin_us());
    options.unread_bytes_max =
        UnreadBytesMax(config.limits(), options.core.feed.link);
    options.slowdown = self.slowdown;
    options.track = timeline.TrackOf(absl::StrCat("shard ", t));
    options.on_cut = [&cut_parts, t](ShardCore::CutState state) {
      cut_parts.OnCut(t, std::move(state));
    };
    SL_ASSIGN_OR_RETURN(
        shard_threads.emplace_back(),
        ShardThread::Start(transport, options, config.schedule()));
    *join.add_thread() = shard_threads.back()->endpoints();
    spdlog::info("shard thread {} listens at {}{}", t,
                 NetworkEndpoint(shard_threads.back()->endpoints()),
                 self.listen.empty() ? "" : ", here at " + address);
  }
  control.core.member.coordinators = CoordinatorEndpoints(config);
  control.core.member.start_timeout =
      absl::Milliseconds(config.limits().start_timeout_ms());
  control.core.member.lease = absl::Milliseconds(config.limits().lease_ms());
  control.core.member.coordinator_timeout =
      absl::Milliseconds(config.limits().coordinator_timeout_ms());
  control.time = time;
  control.via = config.limits().transport();
  control.shard_threads = self.threads;
  control.give_view =
      [&shard_threads](const std::shared_ptr<const View>& view) {
        for (const auto& shard_thread : shard_threads)
          shard_thread->Follow(view);
      };
  // Its job is the one in etcd, whether it has begun that or goes on with it.
  control.core.may_host_before_joining =
      (flags.index == 0 || flags.recover) && AnyServerTakesOver(config);
  if (health != nullptr) control.health = health->board();
  control.inspection.stacks = StacksBy(std::make_shared<StackTaker>(time));
  TellTimelinesOf(&timeline, time, &control.inspection);
  if (seat != nullptr) {
    control.coordinator_failure = [&seat] { return seat->failure(); };
    control.coordinator_over = [&seat] { return seat->over(); };
    control.coordinator_refused = [&seat] { return seat->refused(); };
    control.offer_seat = [&seat](const ServerCore::Candidacy& candidacy) {
      return seat->Offer({.may_host = candidacy.may_host,
                          .leaves = candidacy.leaves,
                          .run = candidacy.run});
    };
  }
  control.thread_failure = [&shard_threads] {
    for (const auto& shard_thread : shard_threads) {
      if (const absl::Status failure = shard_thread->failure(); !failure.ok())
        return failure;
    }
    return absl::OkStatus();
  };
  if (config.train().trace() && !flags.out.empty()) {
    control.trace_file =
        absl::StrCat(flags.out, "/trace-server-", flags.index, ".jsonl");
  }
  SL_ASSIGN_OR_RETURN(loop, ControlLoop::Create(transport, control));
  SignalWishes wishes = WishesOfSignals(config);
  const StopSignal stop_signal([&](int signal) {
    const std::string reason = InterruptedBy("server", flags.index, signal);
    const SignalWish wish = wishes.Of(signal, time.Now());
    if (wish == SignalWish::kNothing) return;
    if (wish == SignalWish::kSuspend) return loop->Retire(reason);
    loop->Interrupt(reason);
    if (seat != nullptr) seat->StopSaving();
  });
  *joins = true;
  if (seat != nullptr && AnyServerTakesOver(config)) seat->StandBy();
  const absl::Status ran = loop->Run();
  if (seat == nullptr) return ran;
  if (loop->gave_up()) seat->GiveUp();
  SL_RETURN_IF_ERROR(ran);
  return seat->Finish();
}

// Where it listens, and so the coordinator of server 0.
std::vector<std::string> OwnNames(const MemberFlags& flags,
                                  const config::ClusterConfig& config) {
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  const ServerProcess& self = flags.add ? servers.back() : servers[flags.index];
  std::vector<std::string> names = {self.listen.empty() ? self.host
                                                        : self.listen};
  if (flags.add && !flags.host.empty()) names = {flags.host};
  if (flags.index == 0) {
    const config::Coordinator& coordinator = config.coordinator();
    names.push_back(coordinator.has_listen() ? coordinator.listen()
                                             : coordinator.host());
  }
  return names;
}

// Server 0 has nobody to tell: the coordinator was to be in it.
absl::Status ServeOrTell(const MemberFlags& flags,
                         const config::ClusterConfig& config,
                         const TimeSource& time) {
  SL_ASSIGN_OR_RETURN(const std::optional<KeySource> keys,
                      KeysHere(config, Role::kServer, flags.key));
  // ZeroMQ ends the process when it gets no thread.
  SL_RETURN_IF_ERROR(CheckAddressesLeft(size_t{256} << 20));
  ProcessTransport transport(keys, LogOfKeys());
  bool joins = false;
  const absl::Status served =
      Serve(flags, config, time, transport.all(), &joins);
  if (served.ok() || joins || flags.index == 0 || flags.add) return served;
  TellCannotJoin(transport.network(), wire::JoinRequest::SERVER, flags.index,
                 ServerProcesses(config)[static_cast<size_t>(flags.index)].host,
                 config, served);
  return served;
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
       .own_names = slackline::OwnNames,
       .count =
           [](const slackline::config::ClusterConfig& config) {
             return static_cast<int>(slackline::ServerProcesses(config).size());
           },
       .run = slackline::ServeOrTell},
      argc, argv);
}
