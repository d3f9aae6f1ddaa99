#include "tools/cli/run/run.h"

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/field_origins.h"
#include "common/config/overrides.h"
#include "common/config/parse_text.h"
#include "common/config/shell_line.h"
#include "common/io/atomic_file.h"
#include "common/status.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/data/find_data.h"
#include "tools/cli/display.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/run/capacity.h"
#include "tools/cli/run/local_cluster.h"
#include "tools/cli/run/local_hosts.h"
#include "tools/cli/run/logs.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/summary_table.h"
#include "tools/cli/signals.h"
#include "tools/experiment/replay_spec.h"

namespace slackline {
namespace {

constexpr absl::Duration kWaitMax = absl::Milliseconds(50);
constexpr absl::Duration kStatusEvery = absl::Milliseconds(250);
// An answer that has not come by then is asked for again.
constexpr absl::Duration kStatusAgain = absl::Seconds(1);
constexpr absl::Duration kLineEvery = absl::Seconds(5);
constexpr int kLogLines = 8;

// Time that does not jump when somebody sets the clock.
absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// Whether file or flags name the coordinator's port, or leave it to us.
bool PortIsGiven(const RunOptions& options) {
  std::ifstream file(options.config_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  config::ClusterConfig config;
  FieldOrigins origins(options.config_path);
  return ParseConfigText(text, options.config_path, &config, &origins).ok() &&
         ApplyOverrides(options.overrides, &config, &origins).ok() &&
         config.coordinator().port() != 0 && config.coordinator().has_port();
}

// What one types to start a process: with its environment, if it has one.
std::string LaunchLine(const LocalCluster::Launch& launch) {
  std::vector<std::string> words;
  for (const auto& [name, value] : launch.environment) {
    words.push_back(absl::StrCat(name, "=", value));
  }
  if (!words.empty()) words.insert(words.begin(), "env");
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  return ShellLine(words);
}

// What to start by hand when the job needs more machines than this one.
std::string ByHandText(const RunOptions& options,
                       const config::ClusterConfig& config,
                       const std::vector<std::string>& elsewhere) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  const LocalCluster::Options launches = {
      .bin_dir = options.bin_dir,
      .cluster_file = options.config_path,
      .data_dir = options.data_dir.empty() ? "DATA" : options.data_dir,
      .out_dir = options.out_dir.empty() ? "OUT" : options.out_dir,
      .resume = options.resume,
      .workers = workers};
  std::string text = absl::StrCat(
      absl::StrJoin(elsewhere, ", "), elsewhere.size() == 1 ? " is" : " are",
      " not this machine, and `slackline run` starts processes on this machine "
      "only; start these on their hosts, all with the same config:\n");
  std::string overrides;
  if (!options.overrides.mode.empty()) {
    absl::StrAppend(&overrides, " --mode=", options.overrides.mode);
  }
  if (!options.overrides.delays.empty()) {
    absl::StrAppend(&overrides, " '--delays=", options.overrides.delays, "'");
  }
  for (const std::string& set : options.overrides.sets) {
    absl::StrAppend(&overrides, " '--set=", set, "'");
  }
  const auto add = [&](const std::string& host, const Member& member) {
    absl::StrAppend(&text, "  ", host, ":  ",
                    LaunchLine(LocalCluster::LaunchOf(launches, member)),
                    overrides, "\n");
  };
  for (const ServerProcess& server : ServerProcesses(config)) {
    add(server.host, {.worker = false, .index = server.index});
  }
  for (const WorkerProcess& worker : workers) {
    add(worker.host, {.worker = true, .index = worker.rank});
  }
  absl::StrAppend(&text, "and follow them with `slackline status ",
                  options.config_path, "`");
  return text;
}

// "\nprogram of workers: ./train --fast", one for each group that has one.
std::string OwnProgramsText(const config::ClusterConfig& config) {
  std::string text;
  std::string last;
  for (const config::WorkerGroup& group : config.worker()) {
    if (!group.has_command() || group.command() == last) continue;
    last = group.command();
    absl::StrAppend(&text, "\nprogram of workers: ", last);
  }
  return text;
}

// A job whose processes run, until none does.
class RunningJob {
 public:
  RunningJob(const RunOptions& options, const config::ClusterConfig& config,
             LocalCluster cluster, CoordinatorClient* client,
             SignalWatch* signals, Display* display)
      : options_(options),
        lease_ms_(config.limits().lease_ms()),
        cluster_(std::move(cluster)),
        client_(client),
        signals_(signals),
        display_(display),
        supervisor_(
            {.servers = static_cast<int>(ServerProcesses(config).size()),
             .workers = static_cast<int>(WorkerProcesses(config).size()),
             .restarts_max = options.restart_workers,
             .lease = absl::Milliseconds(lease_ms_),
             .silence_max =
                 absl::Milliseconds(config.limits().start_timeout_ms()) +
                 absl::Seconds(10)},
            SteadyNow()),
        next_line_(SteadyNow() + kLineEvery) {}

  // OK if the coordinator declared the job finished; else why not. Unavailable
  // if the connection to it breaks for good.
  absl::Status Await() {
    while (!supervisor_.Over()) {
      const SignalWatch::Requests requests = signals_->Wait(kWaitMax);
      for (int i = 0; i < requests.interrupts; ++i)
        Say(supervisor_.OnInterrupt(SteadyNow()));
      for (int i = 0; i < requests.terminations; ++i)
        Say(supervisor_.OnTermination(SteadyNow()));
      for (const MemberExit& exit : cluster_.Reap()) {
        supervisor_.OnExit(exit, SteadyNow());
      }
      SL_RETURN_IF_ERROR(PollStatus());
      SL_RETURN_IF_ERROR(Perform(supervisor_.Tick(SteadyNow())));
      ShowProgress();
    }
    display_->Redraw({});
    if (supervisor_.finished()) return absl::OkStatus();
    return absl::AbortedError(supervisor_.Reason());
  }

  // Once Await() has failed: why, as far as this process knows.
  wire::JobEnd::Cause cause() const { return supervisor_.Cause(); }
  bool interrupted() const { return supervisor_.interrupted(); }

 private:
  void Say(const std::string& text) {
    if (!text.empty()) display_->Print(text);
  }

  absl::Status PollStatus() {
    const absl::Time now = SteadyNow();
    if (now >= next_ask_) {
      // A full queue means that nobody is there to answer.
      const absl::Status sent = client_->AskStatus();
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
      next_ask_ = now + kStatusAgain;
      asked_ = now;
    }
    while (true) {
      SL_ASSIGN_OR_RETURN(const std::optional<wire::StatusReply> status,
                          client_->Receive());
      if (const std::string refused = client_->TakeFinishRefused();
          !refused.empty()) {
        Say(supervisor_.OnFinishRefused(refused, SteadyNow()));
      }
      if (!status.has_value()) return absl::OkStatus();
      state_ = status->view().state();
      supervisor_.OnStatus(*status, now);
      SayFailedCheckpoint(*status);
      progress_.Update(*status, now);
      known_ = true;
      next_ask_ = std::min(next_ask_, asked_ + kStatusEvery);
    }
  }

  // Each once: only the log of server 0 would have it else.
  void SayFailedCheckpoint(const wire::StatusReply& status) {
    if (status.checkpoint_failed() == checkpoint_failed_) return;
    checkpoint_failed_ = status.checkpoint_failed();
    if (!checkpoint_failed_.empty()) {
      display_->Print(
          absl::StrCat("warning: no checkpoint: ", checkpoint_failed_));
    }
  }

  absl::Status Perform(const Supervisor::Effects& effects) {
    for (const MemberExit& death : effects.deaths) Report(death, effects);
    for (const std::string& note : effects.notes) display_->Print(note);
    for (const Member& worker : effects.restarts) {
      const absl::Status started = cluster_.Restart(worker);
      supervisor_.OnRestart(worker, started.ok());
      display_->Print(started.ok()
                          ? absl::StrCat("started ", worker.ToString(),
                                         " again; it joins when the lease of "
                                         "the old one has run out")
                          : std::string(started.message()));
    }
    if (!effects.finish_reason.empty()) {
      const absl::Status sent = client_->AskFinish(effects.finish_reason);
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
    }
    if (!effects.stop_reason.empty()) {
      const absl::Status sent = client_->AskStop(effects.stop_reason);
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) return sent;
    }
    if (effects.signal != 0) cluster_.SignalAll(effects.signal);
    return absl::OkStatus();
  }

  void Report(const MemberExit& death, const Supervisor::Effects& effects) {
    const std::string log = cluster_.LogPath(death.member);
    std::string text = death.ToString();
    if (death.member.worker && state_ == wire::RUNNING &&
        effects.restarts.empty()) {
      absl::StrAppend(&text,
                      "; the others go on without it after its lease of ",
                      lease_ms_, " ms");
    }
    absl::StrAppend(&text, "; the end of ", log, ":");
    const std::vector<std::string> lines = LastLines(ReadTail(log), kLogLines);
    for (const std::string& line : lines) {
      absl::StrAppend(&text, "\n  | ", line);
    }
    if (lines.empty()) absl::StrAppend(&text, " it is empty");
    display_->Print(text);
  }

  void ShowProgress() {
    if (!options_.progress || !known_) return;
    for (const std::string& evaluation : progress_.TakeEvaluations()) {
      display_->Print(evaluation);
    }
    if (display_->terminal()) {
      display_->Redraw(progress_.Block(display_->width()));
      return;
    }
    const absl::Time now = SteadyNow();
    if (now < next_line_) return;
    next_line_ = now + kLineEvery;
    display_->Print(progress_.Line());
  }

  const RunOptions& options_;
  const int lease_ms_;
  LocalCluster cluster_;
  CoordinatorClient* const client_;
  SignalWatch* const signals_;
  Display* const display_;
  Supervisor supervisor_;
  Progress progress_;
  bool known_ = false;             // A status has come.
  std::string checkpoint_failed_;  // As of the last one.
  wire::JobState state_ = wire::JOB_STATE_UNSPECIFIED;
  absl::Time asked_ = absl::InfinitePast();
  absl::Time next_ask_ = absl::InfinitePast();
  absl::Time next_line_;
};

// Server 0 writes the summary of a run; if it has died, nobody has. Then there
// is one at least of how the job has ended.
absl::Status WriteSummaryIfNone(const std::string& folder,
                                const config::ClusterConfig& config,
                                wire::JobEnd::Cause cause,
                                const absl::Status& why) {
  if (std::filesystem::exists(folder + "/summary.json"))
    return absl::OkStatus();
  run::Summary summary;
  summary.set_job(config.job());
  summary.set_state(wire::JobState_Name(wire::FAILED));
  summary.set_cause(wire::JobEnd::Cause_Name(cause));
  summary.set_reason(std::string(why.message()));
  if (cause == wire::JobEnd::SERVER_LOST) summary.add_about("server 0");
  summary.set_mode(ModeText(config));
  summary.set_seed(config.train().seed());
  summary.set_workers(static_cast<int32_t>(WorkerProcesses(config).size()));
  summary.set_servers(static_cast<int32_t>(ServerProcesses(config).size()));
  return WriteSummaryFile(folder, summary);
}

// The checkpoint that the job goes on from. Says which one, and what is other
// than it was.
absl::StatusOr<std::string> TakeCheckpoint(const std::string& path,
                                           const config::ClusterConfig& config,
                                           Display* display) {
  std::vector<std::string> passed_over;
  const absl::StatusOr<std::unique_ptr<StoredCheckpoint>> stored =
      OpenCheckpoint(path, &passed_over);
  for (const std::string& why : passed_over)
    display->Print(absl::StrCat("warning: passed over: ", why));
  if (!stored.ok()) return Annotate(stored.status(), "--resume");
  const checkpoint::Manifest& manifest = (*stored)->manifest();
  display->Print(absl::StrCat("goes on from step ", manifest.clock(), " of ",
                              (*stored)->folder()));
  if (manifest.run() == 0) return (*stored)->folder();  // Of `import`.
  if (manifest.seed() != config.train().seed()) {
    display->Print(absl::StrCat(
        "warning: train.seed is ", config.train().seed(),
        ", and that of the checkpoint is ", manifest.seed(),
        ": the examples come in another order than they would have"));
  }
  if (manifest.job() != config.job()) {
    display->Print(absl::StrCat("note: the checkpoint is of the job '",
                                manifest.job(), "'"));
  }
  return (*stored)->folder();
}

// Copies what an earlier run says of itself into a folder beside it, so that it
// is there whatever becomes of the one that goes on.
absl::Status KeepEarlier(const std::string& out_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string folder;
  for (int number = 1; folder.empty() || fs::exists(folder, error); ++number)
    folder = absl::StrCat(out_dir, "/earlier-", number);
  fs::create_directory(folder, error);
  for (const char* const name :
       {"cluster.textproto", "summary.json", "metrics.jsonl", "moves.jsonl",
        "modes.jsonl"}) {
    const std::string file = absl::StrCat(out_dir, "/", name);
    if (error) break;
    if (!fs::exists(file, error)) continue;
    fs::copy_file(file, absl::StrCat(folder, "/", name), error);
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("--out: the files of the earlier run could not be copied "
                   "into ",
                   folder, ": ", error.message()));
}

// The folder of the run; see MakeOutFolder() and CheckFolderOfRun().
absl::StatusOr<std::string> ChooseOutFolder(const RunOptions& options,
                                            const config::ClusterConfig& config,
                                            const std::string& resume) {
  std::error_code error;
  if (!resume.empty() && !options.out_dir.empty() &&
      std::filesystem::exists(options.out_dir, error) &&
      !std::filesystem::is_empty(options.out_dir, error)) {
    SL_RETURN_IF_ERROR(CheckFolderOfRun(options.out_dir, resume));
    SL_RETURN_IF_ERROR(KeepEarlier(options.out_dir));
    // It would say that this job has ended.
    std::filesystem::remove(options.out_dir + "/summary.json", error);
    return options.out_dir;
  }
  return MakeOutFolder(
      options.out_dir, config.job(),
      config.sync().has_delays()
          ? absl::StrCat("delays-", ReplayName(config.sync().delays().given()))
          : ModeText(config));
}

// Everything after the checks of what the user asked for. Returns the exit code
// of a job that has finished; its result goes to stdout.
absl::StatusOr<int> RunJob(const RunOptions& options,
                           config::ClusterConfig config, Display* display) {
  SL_RETURN_IF_ERROR(LocalCluster::CheckPrograms(options.bin_dir, config));
  std::string resume;
  if (!options.resume.empty()) {
    SL_ASSIGN_OR_RETURN(resume,
                        TakeCheckpoint(options.resume, config, display));
  }
  const std::string host = config.coordinator().host();
  std::optional<PortReservation> reservation;
  if (PortIsGiven(options)) {
    SL_RETURN_IF_ERROR(Annotate(
        CheckPortFree(host, config.coordinator().port()),
        "coordinator.port (choose another, or leave it out for any free one)"));
  } else {
    SL_ASSIGN_OR_RETURN(PortReservation free, PortReservation::AnyFree(host));
    reservation.emplace(std::move(free));
    config.mutable_coordinator()->set_port(reservation->port());
  }
  SL_ASSIGN_OR_RETURN(const std::string data_dir,
                      FindData(config, options.data_dir, display));
  const Demand demand = DemandOf(config, data_dir);
  const Capacity here = CapacityHere();
  if (options.check_memory) SL_RETURN_IF_ERROR(CheckMemory(demand, here));
  if (const std::string warning = CoresWarning(demand, here); !warning.empty())
    display->Print(warning);
  SL_ASSIGN_OR_RETURN(const std::string out_dir,
                      ChooseOutFolder(options, config, resume));
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      cluster_file,
      {absl::StrCat("# Written by `slackline run` from ", options.config_path,
                    ": what was left out is filled in.\n"),
       ToText(config)}));

  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  const LocalCluster::Options cluster_options = {
      .bin_dir = options.bin_dir,
      .cluster_file = cluster_file,
      .data_dir = data_dir,
      .out_dir = out_dir,
      .resume = resume,
      .servers = static_cast<int>(ServerProcesses(config).size()),
      .workers = WorkerProcesses(config)};
  const std::string endpoint = CoordinatorEndpoint(config);
  display->Print(absl::StrCat(
      "job ", config.job(), ": mode ", ModeText(config), ", seed ",
      config.train().seed(), ", ",
      config.train().has_epochs()
          ? absl::StrCat(config.train().epochs(), " epochs, ")
          : "",
      cluster_options.servers, " servers, ", cluster_options.workers.size(),
      " workers, coordinator at ", endpoint, OwnProgramsText(config),
      data_dir.empty() ? "" : absl::StrCat("\ndata: ", data_dir),
      "\nfolder: ", out_dir, " (logs in logs/; `slackline status ", out_dir,
      "` shows details)"));
  SL_ASSIGN_OR_RETURN(LocalCluster cluster,
                      LocalCluster::Start(cluster_options));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                      CoordinatorClient::Connect(endpoint));
  RunningJob job(options, config, std::move(cluster), client.get(),
                 signals.get(), display);
  if (const absl::Status ended = job.Await(); !ended.ok()) {
    SL_RETURN_IF_ERROR(WriteSummaryIfNone(out_dir, config, job.cause(), ended));
    // A job may begin and end between two looks at it; the summary knows.
    const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
    const bool says_why =
        result.ok() &&
        result->summary.state() == wire::JobState_Name(wire::FAILED) &&
        result->summary.cause() !=
            wire::JobEnd::Cause_Name(wire::JobEnd::STOPPED);
    return Annotate(
        says_why ? absl::AbortedError(result->summary.reason()) : ended,
        absl::StrCat("the job failed (logs: ", out_dir, "/logs)"));
  }
  SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(out_dir));
  const std::string table = SummaryTable({result});
  std::fwrite(table.data(), 1, table.size(), stdout);
  return job.interrupted() ? kExitInterrupted : kExitDone;
}

// Given delays: checks that they are there, and writes a folder out in full, so
// that it is found from wherever a server is started.
absl::Status PutWholePath(const RunOptions& options,
                          config::ClusterConfig* config) {
  if (options.restart_workers > 0) {
    return absl::InvalidArgumentError(
        "--restart-workers: a job whose delays are given ends when it loses a "
        "worker, since every gradient has its turn; leave it out");
  }
  sync::Delays& delays = *config->mutable_sync()->mutable_delays();
  const absl::StatusOr<ReplaySpec> found = ParseReplaySpec(delays.given(), "");
  if (!found.ok()) return Annotate(found.status(), "--delays");
  delays.set_given(found->text);
  return absl::OkStatus();
}

}  // namespace

int Run(const RunOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline run: ", text));
  };
  absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(options.config_path, options.overrides);
  if (!config.ok()) {
    complain(config.status().message());
    return kExitUsage;
  }
  if (config->sync().has_delays() && !options.resume.empty()) {
    complain(
        "--resume: a job whose delays are given cannot go on from a "
        "checkpoint, "
        "since every gradient has its turn; leave it out");
    return kExitUsage;
  }
  if (config->sync().has_delays()) {
    if (const absl::Status fit = PutWholePath(options, &*config); !fit.ok()) {
      complain(fit.message());
      return kExitUsage;
    }
  }
  const std::vector<std::string> elsewhere = HostsElsewhere(*config);
  if (!elsewhere.empty()) {
    complain(ByHandText(options, *config, elsewhere));
    return kExitUsage;
  }
  const absl::StatusOr<int> done = RunJob(options, *config, &display);
  if (done.ok()) return *done;
  complain(done.status().message());
  return kExitFailed;
}

}  // namespace slackline
