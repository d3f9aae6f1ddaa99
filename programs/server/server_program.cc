#include "programs/server/server_program.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/endpoint.h"
#include "common/host_port.h"
#include "common/inspection/stack_taker.h"
#include "common/inspection/timeline_source.h"
#include "common/net/host_id.h"
#include "common/net/resolve.h"
#include "common/process/join_request.h"
#include "common/process/logging.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "common/timeline/event_names.h"
#include "common/utf8.h"
#include "common/version.h"
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
  options.core = {.job = config.job(),
                  .run = RandomToken(),
                  .config_hash = ConfigHash(config),
                  .config = config,
                  .server_hosts = HostsOf(ServerProcesses(config)),
                  .worker_hosts = HostsOf(WorkerProcesses(config)),
                  .protocol = kProtocol,
                  .build = ThisBuild(),
                  .servers = static_cast<int>(ServerProcesses(config).size()),
                  .workers = static_cast<int>(WorkerProcesses(config).size()),
                  .shard_elements = ShardElements(config.limits()),
                  .mode = ModeText(config)};
  options.core.try_links = true;
  options.core.host_server = flags.index;
  options.core.found_within = CoordinatorWatch::FoundWithin(
      CoordinatorEndpoints(config).size(), options.core.lease());
  options.endpoint = endpoint;
  options.folder = flags.out;
  options.folder_token = RandomToken();
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

const std::string& CoordinatorName(const config::ClusterConfig& config) {
  const config::Coordinator& coordinator = config.coordinator();
  return coordinator.has_listen() ? coordinator.listen() : coordinator.host();
}

const std::string& ListenName(const ServerProcess& self) {
  return self.listen.empty() ? self.host : self.listen;
}

}  // namespace

ServerProcess SelfOf(const MemberFlags& flags,
                     const config::ClusterConfig& config) {
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  if (!flags.add) return servers[flags.index];
  ServerProcess self = servers.back();
  self.index = flags.index;
  self.first_port = 0;
  if (!flags.host.empty()) {
    self.host = flags.host;
    self.listen.clear();  // Of the config's host.
  }
  if (flags.threads > 0) self.threads = flags.threads;
  return self;
}

std::vector<std::string> OwnNames(const MemberFlags& flags,
                                  const config::ClusterConfig& config) {
  std::vector<std::string> names = {ListenName(SelfOf(flags, config))};
  if (flags.index == 0) names.push_back(CoordinatorName(config));
  return names;
}

ServerProgram::ServerProgram(const MemberFlags& flags,
                             const config::ClusterConfig& config,
                             const TimeSource& time, Transport& transport)
    : flags_(flags),
      config_(config),
      time_(time),
      transport_(transport),
      self_(SelfOf(flags, config)),
      keeping_{.config = config,
               .out = flags.out,
               .endpoint = {},
               .checkpoint_root = CheckpointRoot(config, flags.out)},
      cut_parts_({.server = flags.index,
                  .root = keeping_.checkpoint_root,
                  .told =
                      [this](wire::CutPart part) {
                        loop_->CutPartDone(std::move(part));
                      },
                  .timeline = &timeline_,
                  .time = time}) {}

absl::Status ServerProgram::Run() {
  SL_RETURN_IF_ERROR(ShowHealth());
  SL_RETURN_IF_ERROR(FindAddresses());
  SL_RETURN_IF_ERROR(LoadDelays());
  SL_RETURN_IF_ERROR(LookForJob());
  if (is_over() && !begun_.recovered.job.has_value())
    return Over(keeping_, begun_.end, begun_.instead);
  SL_RETURN_IF_ERROR(OpenCheckpoint());
  SL_RETURN_IF_ERROR(TakeSeat());
  if (is_over()) return Over(keeping_, ReportEnd(seat_.get()), begun_.instead);
  SayHowItGoesOn();
  if (begins_job()) KeepConfig(flags_, config_);
  SL_RETURN_IF_ERROR(StartShardThreads());
  SL_RETURN_IF_ERROR(StartControlLoop());
  return RunUntilEnd();
}

absl::Status ServerProgram::ShowHealth() {
  if (const std::string why = WhyOnAnotherHost(
          absl::StrCat("server ", flags_.index), self_.host, self_.listen);
      !flags_.add && !why.empty()) {
    spdlog::warn("{}", why);
  }
  SL_ASSIGN_OR_RETURN(
      health_, HealthPage::Start(config_, {.is_server = true,
                                           .index = flags_.index,
                                           .port_given = flags_.health_port,
                                           .time = time_}));
  return absl::OkStatus();
}

absl::Status ServerProgram::FindAddresses() {
  SL_ASSIGN_OR_RETURN(address_, ResolveHost(ListenName(self_)));
  // Where it is if it is in this process.
  std::string coordinator_address = address_;
  if (flags_.index == 0) {
    SL_ASSIGN_OR_RETURN(coordinator_address,
                        ResolveHost(CoordinatorName(config_)));
  }
  if (self_.listen.empty()) WarnOfLoopback(config_, self_.host, address_);
  if (flags_.index == 0 && !config_.coordinator().has_listen())
    WarnOfLoopback(config_, config_.coordinator().host(), coordinator_address);
  keeping_.endpoint =
      TcpEndpoint(coordinator_address, config_.coordinator().port());
  return absl::OkStatus();
}

absl::Status ServerProgram::LoadDelays() {
  const sync::Mode mode = ConfiguredMode(config_.sync());
  const std::string given = RuleOf(mode).GivenDelaysOf(mode);
  if (given.empty()) return absl::OkStatus();
  absl::StatusOr<DelaySource> loaded = DelaySource::Load(given);
  if (!loaded.ok()) {
    return Annotate(loaded.status(),
                    "sync.delays.given (every server reads it, on its host)");
  }
  delays_ = std::make_shared<const DelaySource>(*std::move(loaded));
  return absl::OkStatus();
}

absl::Status ServerProgram::LookForJob() {
  if (flags_.index != 0) return absl::OkStatus();
  if (!flags_.new_run) {
    SL_ASSIGN_OR_RETURN(is_led_, JobIsLed(keeping_));
  }
  if (is_led_) return absl::OkStatus();
  absl::StatusOr<BegunJob> job = BeginJob(
      keeping_, {.new_run = flags_.new_run,
                 .from_checkpoint = flags_.restore || !flags_.resume.empty()});
  // Another server may have been faster.
  if (absl::IsFailedPrecondition(job.status()) && !flags_.new_run) {
    SL_ASSIGN_OR_RETURN(is_led_, JobIsLed(keeping_));
    if (is_led_) return absl::OkStatus();
  }
  SL_ASSIGN_OR_RETURN(begun_, std::move(job));
  return absl::OkStatus();
}

absl::Status ServerProgram::OpenCheckpoint() {
  if (begun_.recovered.job.has_value()) {
    SL_ASSIGN_OR_RETURN(stored_, OpenKept(*begun_.recovered.job));
    return absl::OkStatus();
  }
  SL_ASSIGN_OR_RETURN(stored_,
                      OpenAskedFor(flags_, config_, keeping_.checkpoint_root,
                                   /*joins=*/!begins_job()));
  return absl::OkStatus();
}

absl::StatusOr<CoordinatorThread::Options> ServerProgram::CoordinatorHere() {
  CoordinatorThread::Options options =
      CoordinatorOptions(flags_, config_, keeping_.endpoint);
  options.time = time_;
  options.track = timeline_.TrackOf(timeline_names::kCoordinator);
  options.core.clock = {.name = HostId(),
                        .to_wall = time_.WallNow() - time_.Now()};
  options.core.delays = delays_;
  options.core.checkpoint_root = keeping_.checkpoint_root;
  if (health_ != nullptr) {
    options.watch = [board = health_->board()](
                        std::shared_ptr<const wire::StatusReply> status) {
      board->Counted(std::move(status));
    };
  }
  if (begun_.recovered.job.has_value()) {
    GoOnWith(*begun_.recovered.job, &options.core);
  } else if (stored_ != nullptr) {
    SL_RETURN_IF_ERROR(GoOnFrom(stored_, &options.core));
  }
  return options;
}

absl::Status ServerProgram::TakeSeat() {
  SL_ASSIGN_OR_RETURN(CoordinatorThread::Options options, CoordinatorHere());
  CoordinatorThread::Keeping& kept = begun_.recovered.keeping;
  if (begins_job()) {
    if (kept.store == nullptr) {
      SL_ASSIGN_OR_RETURN(kept, KeepNewJob(keeping_));
    }
    options.core.coordinator_may_return = kept.store != nullptr;
  } else if (!AnyServerTakesOver(config_) || flags_.add) {
    return absl::OkStatus();
  }
  seat_ = std::make_unique<CoordinatorSeat>(
      transport_,
      CoordinatorSeat::Options{.coordinator = options, .keeping = keeping_});
  if (!begins_job()) return absl::OkStatus();
  const absl::Status started = seat_->Begin(std::move(kept));
  if (!started.ok()) return Annotate(started, "cannot start the coordinator");
  spdlog::info("coordinator listens at {}", keeping_.endpoint);
  return absl::OkStatus();
}

void ServerProgram::SayHowItGoesOn() const {
  if (begun_.recovered.job.has_value()) {
    spdlog::info("goes on with the job that is in {}", KeepingPlace(keeping_));
  } else if (is_led_) {
    spdlog::info(
        "the job that is in {} runs, and had a coordinator not long "
        "ago: this server joins it, and goes on as the coordinator when nobody "
        "else does",
        KeepingPlace(keeping_));
  } else if (flags_.recover && flags_.index != 0) {
    spdlog::info(
        "--recover: this server joins the job that is in {}, and goes on as "
        "the coordinator when nobody else does",
        KeepingPlace(keeping_));
  }
}

ShardThread::Options ServerProgram::ShardThreadOptions(
    int thread, const StaleRules& stale) {
  ShardThread::Options options;
  options.core = {.self = {.server = flags_.index, .thread = thread},
                  .seed = static_cast<uint64_t>(config_.train().seed()),
                  .trace = config_.train().trace(),
                  .stale = stale,
                  .delays = delays_,
                  .workers = static_cast<int>(WorkerProcesses(config_).size()),
                  .stored = stored_,
                  .nonfinite = config_.train().nonfinite()};
  if (config_.train().has_gradient_bound()) {
    options.core.gradient_bound =
        GradientBound(config_.train().gradient_bound());
  }
  options.time = time_;
  options.host = address_;
  if (!self_.listen.empty()) options.announced_host = self_.host;
  options.port = self_.first_port == 0 ? 0 : self_.first_port + thread;
  options.transport = config_.limits().transport();
  options.wait.spin_max = absl::Microseconds(config_.limits().spin_us());
  options.unread_bytes_max =
      UnreadBytesMax(config_.limits(), options.core.feed.link);
  options.slowdown = self_.slowdown;
  options.track = timeline_.TrackOf(absl::StrCat("shard ", thread));
  options.on_cut = [this, thread](ShardCore::CutState state) {
    cut_parts_.OnCut(thread, std::move(state));
  };
  return options;
}

absl::Status ServerProgram::StartShardThreads() {
  SL_ASSIGN_OR_RETURN(const StaleRules stale,
                      StaleRules::Create(config_.sync()));
  for (int thread = 0; thread < self_.threads; ++thread) {
    SL_ASSIGN_OR_RETURN(
        shard_threads_.emplace_back(),
        ShardThread::Start(transport_, ShardThreadOptions(thread, stale),
                           config_.schedule()));
    spdlog::info("shard thread {} listens at {}{}", thread,
                 NetworkEndpoint(shard_threads_.back()->endpoints()),
                 self_.listen.empty() ? "" : ", here at " + address_);
  }
  return absl::OkStatus();
}

wire::JoinRequest ServerProgram::Join() const {
  wire::JoinRequest join = JoinRequestOf(wire::JoinRequest::SERVER,
                                         flags_.index, self_.host, config_);
  if (delays_ != nullptr) join.set_delays_sha256(delays_->sha256());
  if (stored_ != nullptr) join.set_checkpoint_sha256(stored_->sha256());
  for (const auto& shard_thread : shard_threads_)
    *join.add_thread() = shard_thread->endpoints();
  return join;
}

absl::Status ServerProgram::ShardThreadFailure() const {
  for (const auto& shard_thread : shard_threads_) {
    if (const absl::Status failure = shard_thread->failure(); !failure.ok())
      return failure;
  }
  return absl::OkStatus();
}

void ServerProgram::ConnectSeat(ControlLoop::Options* control) {
  control->coordinator_failure = [this] { return seat_->failure(); };
  control->coordinator_over = [this] { return seat_->over(); };
  control->coordinator_refused = [this] { return seat_->refused(); };
  control->offer_seat = [this](const ServerCore::Candidacy& candidacy) {
    return seat_->Offer({.may_host = candidacy.may_host,
                         .leaves = candidacy.leaves,
                         .run = candidacy.run});
  };
}

ControlLoop::Options ServerProgram::ControlOptions() {
  const config::Limits& limits = config_.limits();
  ControlLoop::Options control;
  MemberCore::Options& member = control.core.member;
  member.join = Join();
  member.coordinators = CoordinatorEndpoints(config_);
  member.start_timeout = absl::Milliseconds(limits.start_timeout_ms());
  member.lease = absl::Milliseconds(limits.lease_ms());
  member.coordinator_timeout =
      absl::Milliseconds(limits.coordinator_timeout_ms());
  // Its job is the one in etcd, whether it has begun that or goes on with it.
  control.core.may_host_before_joining =
      (flags_.index == 0 || flags_.recover) && AnyServerTakesOver(config_);
  control.time = time_;
  control.via = limits.transport();
  control.shard_threads = self_.threads;
  control.give_view = [this](const std::shared_ptr<const View>& view) {
    for (const auto& shard_thread : shard_threads_) shard_thread->Follow(view);
  };
  control.thread_failure = [this] { return ShardThreadFailure(); };
  if (health_ != nullptr) control.health = health_->board();
  control.inspection.stacks = StacksBy(std::make_shared<StackTaker>(time_));
  TellTimelinesOf(&timeline_, time_, &control.inspection);
  if (seat_ != nullptr) ConnectSeat(&control);
  if (config_.train().trace() && !flags_.out.empty()) {
    control.trace_file =
        absl::StrCat(flags_.out, "/trace-server-", flags_.index, ".jsonl");
    if (stored_ != nullptr && stored_->manifest().run() != 0) {
      spdlog::warn(
          "train.trace: {} has what comes from step {} on, where the job goes "
          "on; a recording that lacks the steps before cannot be replayed",
          control.trace_file, stored_->manifest().clock());
    }
  }
  return control;
}

absl::Status ServerProgram::StartControlLoop() {
  SL_ASSIGN_OR_RETURN(loop_, ControlLoop::Create(transport_, ControlOptions()));
  return absl::OkStatus();
}

void ServerProgram::OnSignal(SignalWish wish, const std::string& reason) {
  if (wish == SignalWish::kNothing) return;
  if (wish == SignalWish::kSuspend) return loop_->Retire(reason);
  loop_->Interrupt(reason);
  if (seat_ != nullptr) seat_->StopSaving();
}

absl::Status ServerProgram::RunUntilEnd() {
  SignalWishes wishes = WishesOfSignals(config_);
  const StopSignal stop_signal([&](int signal) {
    OnSignal(wishes.Of(signal, time_.Now()),
             InterruptedBy("server", flags_.index, signal));
  });
  joins_ = true;
  if (seat_ != nullptr && AnyServerTakesOver(config_)) seat_->StandBy();
  const absl::Status ran = loop_->Run();
  if (seat_ == nullptr) return ran;
  if (loop_->gave_up()) seat_->GiveUp();
  SL_RETURN_IF_ERROR(ran);
  return seat_->Finish();
}

}  // namespace slackline
