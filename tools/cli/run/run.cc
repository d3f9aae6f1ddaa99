#include "tools/cli/run/run.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/config/field_origins.h"
#include "common/config/overrides.h"
#include "common/config/parse_text.h"
#include "common/config/shell_line.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/process/exit_code.h"
#include "common/process/interrupted_by.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/utf8.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/display.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/launch/slurm_hosts.h"
#include "tools/cli/launch/slurm_script.h"
#include "tools/cli/launch/slurm_tools.h"
#include "tools/cli/run/by_hand.h"
#include "tools/cli/run/failure.h"
#include "tools/cli/run/job_place.h"
#include "tools/cli/run/local_hosts.h"
#include "tools/cli/run/member_launch.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/restorer.h"
#include "tools/cli/run/running_job.h"
#include "tools/cli/run/slurm_run.h"
#include "tools/cli/run/summary_table.h"
#include "tools/cli/signals.h"
#include "tools/experiment/replay_spec.h"

namespace slackline {
namespace {

constexpr char kInterruptedBetween[] =
    "interrupted by the user before the job was restored";
constexpr char kTerminatedBetween[] =
    "slackline run was told to end (SIGTERM or SIGHUP) before the job was "
    "restored";
// Names of nodes that are not known yet, with a number behind it.
constexpr char kStandInNode[] = "slurm-node-";
constexpr int kNodesMax = 4096;
constexpr char kOnSlurm[] = "--on slurm";
// In a config that was written here: its port is none that somebody has chosen.
constexpr char kAnyPort[] =
    "# coordinator.port was any free one, and is again when this is run.\n";

// Likewise its hosts.
constexpr char kAnyHosts[] =
    "# hosts were those of an allocation of Slurm, and are whatever it gives "
    "when this is run.\n";

}  // namespace

bool PortIsGiven(const RunOptions& options) {
  std::ifstream file(options.config_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  config::ClusterConfig config;
  FieldOrigins origins(options.config_path);
  if (!ParseConfigText(text, options.config_path, &config, &origins).ok())
    return false;
  if (absl::StrContains(text, kAnyPort))
    config.mutable_coordinator()->clear_port();
  return ApplyOverrides(options.overrides, &config, &origins).ok() &&
         config.coordinator().port() != 0 && config.coordinator().has_port();
}

namespace {

void ForgetHosts(config::ClusterConfig* config) {
  config->mutable_coordinator()->clear_host();
  for (config::ServerGroup& group : *config->mutable_server())
    group.clear_host();
  for (config::WorkerGroup& group : *config->mutable_worker())
    group.clear_host();
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

// "job mnist-mlp: mode ssp:3, seed 1, 5 epochs, 2 servers, 4 workers".
std::string JobText(const config::ClusterConfig& config) {
  return absl::StrCat("job ", config.job(), ": mode ", ModeText(config),
                      ", seed ", config.train().seed(), ", ",
                      config.train().has_epochs()
                          ? absl::StrCat(config.train().epochs(), " epochs, ")
                          : "",
                      ServerProcesses(config).size(), " servers, ",
                      WorkerProcesses(config).size(), " workers");
}

// The server with the coordinator writes the summary of a run; if it has died,
// nobody has. Then there is one at least of how the job has ended, and with
// which checkpoint the run began. `host` is that server, if the job was lost
// with it.
absl::Status WriteShortSummary(const std::string& folder,
                               const config::ClusterConfig& config,
                               const run::CheckpointRecord& beginning,
                               wire::JobEnd::Cause cause, int64_t steps,
                               absl::string_view why,
                               absl::string_view host = "") {
  run::Summary summary;
  if (!beginning.folder().empty()) {
    *summary.mutable_resumed_from() = beginning;
    summary.mutable_resumed_from()->set_folder(
        std::filesystem::absolute(beginning.folder())
            .lexically_normal()
            .string());
  }
  summary.set_job(config.job());
  summary.set_ended_at(absl::FormatTime(
      absl::RFC3339_sec, TimeSource().WallNow(), absl::UTCTimeZone()));
  summary.set_state(wire::JobState_Name(wire::FAILED));
  summary.set_cause(wire::JobEnd::Cause_Name(cause));
  summary.set_reason(std::string(why));
  if (!host.empty()) summary.add_about(std::string(host));
  summary.set_steps(steps);
  summary.set_mode(ModeText(config));
  summary.set_seed(config.train().seed());
  summary.set_workers(static_cast<int32_t>(WorkerProcesses(config).size()));
  summary.set_servers(static_cast<int32_t>(ServerProcesses(config).size()));
  return WriteSummaryFile(folder, summary);
}

// The checkpoint that the job goes on from. Says which one, and what is other
// than it was.
absl::StatusOr<run::CheckpointRecord> TakeCheckpoint(
    const RunOptions& options, const config::ClusterConfig& config,
    Display* display) {
  std::string path = options.resume;
  if (options.best) {
    absl::StatusOr<std::string> best = FindBestCheckpoint(path);
    if (!best.ok()) return Annotate(best.status(), "--best");
    path = *std::move(best);
  }
  std::vector<std::string> passed_over;
  const absl::StatusOr<std::unique_ptr<StoredCheckpoint>> stored =
      OpenCheckpoint(path, &passed_over);
  for (const std::string& why : passed_over)
    display->Print(absl::StrCat("warning: passed over: ", why));
  if (!stored.ok()) return Annotate(stored.status(), "--resume");
  const checkpoint::Manifest& manifest = (*stored)->manifest();
  display->Print(absl::StrCat("goes on from step ", manifest.clock(), " of ",
                              (*stored)->folder()));
  const run::CheckpointRecord beginning = RecordOf(**stored);
  if (manifest.run() == 0) return beginning;  // Of `import`.
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
  return beginning;
}

// The folder of the run; see MakeOutFolder() and CheckFolderOfRun().
absl::StatusOr<std::string> ChooseOutFolder(const RunOptions& options,
                                            const config::ClusterConfig& config,
                                            const std::string& resume,
                                            bool has_run) {
  if (has_run && (resume.empty() || options.new_run)) {
    if (!HasRecords(options.out_dir)) {
      // What a run that did not begin has left.
      std::error_code error;
      std::filesystem::remove(absl::StrCat(options.out_dir, "/summary.json"),
                              error);
      std::filesystem::remove(FailurePath(options.out_dir), error);
      return options.out_dir;
    }
    SL_RETURN_IF_ERROR(
        PutRunAside(options.out_dir, /*with_checkpoints=*/resume.empty())
            .status());
    return options.out_dir;
  }
  if (!resume.empty() && !options.out_dir.empty() &&
      !HasNothingBegun(options.out_dir)) {
    SL_RETURN_IF_ERROR(CheckFolderOfRun(options.out_dir, resume));
    SL_RETURN_IF_ERROR(KeepEarlier(options.out_dir));
    return options.out_dir;
  }
  return MakeOutFolder(
      options.out_dir, config.job(),
      config.sync().has_delays()
          ? absl::StrCat("delays-", ReplayName(config.sync().delays().given()))
          : ModeText(config));
}

// Whether the checkpoint to go on from is below the folder of the run.
bool ResumesOwn(const RunOptions& options) {
  if (options.resume.empty()) return false;
  const auto whole = [](const std::string& path) {
    std::error_code error;
    std::string text = std::filesystem::weakly_canonical(path, error).string();
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    return absl::StrCat(text, "/");
  };
  return absl::StartsWith(whole(options.resume), whole(options.out_dir));
}

// The same command may have been given before. Changes what is asked for to
// what is left of it; `*over`: nothing is, and the exit code. `*has_run`: the
// folder of --out has a run, and may be taken.
absl::Status TakeRunInFolder(const config::ClusterConfig& config,
                             RunOptions* options, bool* has_run,
                             std::optional<int>* over, Display* display) {
  const std::string& out = options->out_dir;
  if (out.empty()) return absl::OkStatus();
  const bool started_again = SlurmJobHasBegun(options->slurm, out);
  std::string began_with;
  if (started_again) {
    // What it was begun with does not count twice.
    options->new_run = false;
    began_with = std::exchange(options->resume, "");
  }
  if (!options->new_run && ResumesOwn(*options)) return absl::OkStatus();
  const absl::StatusOr<std::optional<RunInFolder>> found =
      FindRunIn(out, config,
                {.new_run = options->new_run, .started_again = started_again});
  // Then a checkpoint of its run was named, perhaps, with another config.
  if (!found.ok() && !options->resume.empty() && !options->new_run)
    return absl::OkStatus();
  if (!found.ok()) return Annotate(found.status(), "--out");
  if (!found->has_value()) return absl::OkStatus();
  if ((*found)->how == Beginning::kOver) {
    const absl::StatusOr<RunResult> result = ReadRunResult(out);
    if (!result.ok()) return result.status();
    const std::string text =
        absl::StrCat("the run in ", out,
                     " has ended before this: ", EndText(result->summary),
                     "; nothing is begun: ", (*found)->instead);
    if (result->summary.state() != wire::JobState_Name(wire::FINISHED))
      return absl::FailedPreconditionError(text);
    display->Print(text);
    const std::string table = SummaryTable({*result});
    std::fwrite(table.data(), 1, table.size(), stdout);
    *over = kExitDone;
    return absl::OkStatus();
  }
  *has_run = true;
  if (started_again && (*found)->checkpoints.empty()) {
    display->Print(absl::StrCat("Slurm has started job ", options->slurm.job_id,
                                " again before it had a checkpoint; the run "
                                "begins anew"));
    options->new_run = true;
    options->resume = began_with;
  }
  if (options->new_run || (*found)->checkpoints.empty())
    return absl::OkStatus();
  display->Print(absl::StrCat("the run in ", out,
                              " has not finished, and goes on from its last "
                              "checkpoint (--new-run begins anew)"));
  options->resume = (*found)->checkpoints;
  options->best = false;
  return absl::OkStatus();
}

// What one types so that the job goes on from a checkpoint; of an empty name,
// from the newest one of its own.
std::string GoOnLine(const RunOptions& options, const std::string& cluster_file,
                     const std::string& out_dir, const std::string& root,
                     const std::string& checkpoint) {
  const bool in_root = checkpoint.empty() ||
                       std::filesystem::path(checkpoint).parent_path() == root;
  std::vector<std::string> words = {"slackline", "run", cluster_file,
                                    "--resume", in_root ? root : checkpoint};
  // The folder of a run takes only what goes on from its own checkpoints.
  bool is_own = checkpoint.empty();
  if (!is_own) {
    const absl::StatusOr<checkpoint::Manifest> manifest =
        ReadManifest(checkpoint);
    is_own =
        manifest.ok() && HasRecordsOf(out_dir, manifest->run()).value_or(false);
  }
  if (is_own) words.insert(words.end(), {"--out", out_dir});
  words.insert(words.end(), options.flags_again.begin(),
               options.flags_again.end());
  return ShellLine(words);
}

// What one types after the run in the folder has failed: it goes on from its
// last checkpoint, or begins anew if there is none.
std::string LineAfterFailure(const RunOptions& options,
                             const config::ClusterConfig& config,
                             const std::string& out_dir) {
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  const std::string root = CheckpointRoot(config, out_dir);
  const bool has_own = HasCheckpoint(root, [&](const auto& manifest) {
    return HasRecordsOf(out_dir, manifest.run()).value_or(false);
  });
  if (has_own) return GoOnLine(options, cluster_file, out_dir, root, "");
  std::vector<std::string> words = {"slackline", "run",   cluster_file,
                                    "--out",     out_dir, "--new-run"};
  if (!options.resume.empty())
    words.insert(words.end(), {"--resume", options.resume});
  words.insert(words.end(), options.flags_again.begin(),
               options.flags_again.end());
  return ShellLine(words);
}

// Once no process of it is left: OK if the job has finished and its summary is
// there. Else why not, and there is a summary with that and its failure.txt;
// `*lost` is what else is known of it.
absl::Status EndOfRun(const RunOptions& options, const std::string& out_dir,
                      const config::ClusterConfig& config,
                      const run::CheckpointRecord& beginning,
                      const RunningJob& job, absl::Status ended,
                      Restorer::Lost* lost) {
  const Supervisor& supervisor = job.supervisor();
  if (!job.missing_files().empty()) {
    return absl::UnavailableError(absl::StrCat(
        "the result of the run is not complete here: ", job.missing_files()));
  }
  // A server that was killed with its summary on its lips.
  const bool unsaid = ended.ok() && supervisor.lost_a_process() &&
                      absl::IsNotFound(ReadRunResult(out_dir).status());
  const std::string host = supervisor.host().ToString();
  if (unsaid)
    ended = absl::AbortedError(absl::StrCat(host, " died at the job's end"));
  if (ended.ok()) return ended;
  const wire::JobEnd::Cause cause =
      unsaid ? wire::JobEnd::SERVER_LOST : supervisor.Cause();
  const bool coordinator_says =
      !absl::IsNotFound(ReadRunResult(out_dir).status());
  if (!std::filesystem::exists(absl::StrCat(out_dir, "/summary.json"))) {
    SL_RETURN_IF_ERROR(WriteShortSummary(
        out_dir, config, beginning, cause, job.steps(), ended.message(),
        cause == wire::JobEnd::SERVER_LOST ? host : std::string()));
  }
  // A job may begin and end between two looks at it; the summary knows.
  const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
  const bool says_why =
      result.ok() &&
      result->summary.state() == wire::JobState_Name(wire::FAILED) &&
      result->summary.cause() !=
          wire::JobEnd::Cause_Name(wire::JobEnd::STOPPED);
  const absl::Status why =
      says_why ? absl::AbortedError(result->summary.reason()) : ended;
  *lost = {
      .end = {.cause = cause,
              .about = {},
              .coordinator_says = coordinator_says && !supervisor.gave_up(),
              .asked_for = supervisor.asked_to_end() || job.ends_early(),
              .ran = supervisor.ran(),
              .lost_a_process = supervisor.lost_a_process(),
              .dead = supervisor.dead()},
      .why = std::string(why.message()),
      .run = job.run(),
      .steps = job.steps(),
      .since = job.SinceLastStep(),
      .suspending = supervisor.suspending()};
  if (result.ok()) {
    const run::Summary& summary = result->summary;
    wire::JobEnd::Cause_Parse(summary.cause(), &lost->end.cause);
    lost->end.about = {summary.about().begin(), summary.about().end()};
    lost->steps = std::max(lost->steps, summary.steps());
  }
  const absl::Status failed =
      Annotate(why, absl::StrCat("the job failed (logs: ", out_dir, "/logs)"));
  if (!result.ok() || !HasFailed(result->summary)) return failed;
  FailureFacts facts = {.folder = out_dir,
                        .summary = result->summary,
                        .command = LineAfterFailure(options, config, out_dir)};
  facts.summary.set_reason(lost->why);
  const std::string text = LeaveFailurePage(
      std::move(facts),
      ExitsAtFault(result->summary, job.exits(), supervisor.dead()));
  if (supervisor.asked_to_end()) return failed;  // They know why.
  return absl::AbortedError(absl::StrCat(failed.message(), "\n", text));
}

// The folder of a run whose processes could not be started says so, too.
absl::Status NotStarted(const RunOptions& options, const std::string& out_dir,
                        const config::ClusterConfig& config,
                        const run::CheckpointRecord& beginning,
                        const absl::Status& why) {
  if (absl::IsCancelled(why)) return why;
  SL_RETURN_IF_ERROR(WriteShortSummary(out_dir, config, beginning,
                                       wire::JobEnd::NOT_FORMED,
                                       beginning.clock(), why.message()));
  const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
  if (!result.ok()) return why;
  const std::string text =
      LeaveFailurePage({.folder = out_dir,
                        .summary = result->summary,
                        .command = LineAfterFailure(options, config, out_dir)},
                       {});
  return absl::Status(why.code(), absl::StrCat(why.message(), "\n", text));
}

absl::Status DryRun(const RunOptions& options,
                    const config::ClusterConfig& config,
                    const std::vector<std::string>& elsewhere,
                    Display* display) {
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  const bool is_remote = !place->Text().empty();
  // They are not known before Slurm has given them.
  const bool has_stand_ins =
      absl::StartsWith(config.server(0).host(), kStandInNode);
  SL_RETURN_IF_ERROR(place->Check());
  if (!options.resume.empty())
    SL_RETURN_IF_ERROR(TakeCheckpoint(options, config, display).status());
  std::string data_dir;
  if (!options.data_dir.empty()) {  // Else it might have to be fetched.
    SL_ASSIGN_OR_RETURN(data_dir, place->FindData());
  }
  // Of a job on several machines this one has a part.
  if (!elsewhere.empty()) {
    display->Print(ByHandText(options, config, elsewhere));
  } else if (!is_remote) {
    SL_RETURN_IF_ERROR(place->CheckCapacity(data_dir));
  }
  display->Print(absl::StrCat(
      JobText(config), OwnProgramsText(config),
      has_stand_ins ? "\nhosts: those that Slurm gives" : place->Text(),
      "\nnothing is started: --dry-run"));
  config::ClusterConfig shown = config;
  if (has_stand_ins) ForgetHosts(&shown);
  const std::string text =
      absl::StrCat(PortIsGiven(options) ? "" : kAnyPort, ToText(shown));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return absl::OkStatus();
}

// The exit code of a job that has finished. The programs of workers may do more
// after that, and what goes wrong there is the user's to know.
int AfterTheEnd(const config::ClusterConfig& config,
                const run::Summary& summary, const Supervisor& supervisor,
                Display* display) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  // One that has left the job before its end has been judged by it.
  const auto left_before = [&](const Member& worker) {
    return absl::c_any_of(summary.workers_lost(),
                          [&](const std::string& sentence) {
                            return absl::StartsWith(
                                sentence, absl::StrCat(worker.ToString(), " "));
                          });
  };
  int code = kExitDone;
  for (const MemberExit& exit : supervisor.failed_after_end()) {
    if (workers[static_cast<size_t>(exit.member.index)].command.empty() ||
        left_before(exit.member)) {
      continue;
    }
    display->Print(absl::StrCat(
        exit.ToString(), " after the job had finished, whose model is there",
        exit.error_line.empty() ? "" : absl::StrCat(": ", exit.error_line)));
    code = kExitFailed;
  }
  return code;
}

// A job that waits for its turn will run in its folder.
absl::Status CheckNoOtherSlurmJob(const RunOptions& options) {
  if (options.out_dir.empty()) return absl::OkStatus();
  const absl::StatusOr<std::optional<std::string>> job =
      SlurmJobOfRun(options.out_dir);
  // Where Slurm does not answer nothing is known of its jobs.
  if (!job.ok() || !job->has_value() || **job == options.slurm.job_id)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--out: the run in ", options.out_dir, " is Slurm job ", **job,
      ", which has not ended; choose another folder, or end that job: scancel ",
      **job));
}

// Everything after the checks of what the user asked for. Returns the exit code
// of a job that has finished, whose result goes to stdout, or is suspended.
absl::StatusOr<int> RunJob(RunOptions options, config::ClusterConfig config,
                           Display* display) {
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  SL_RETURN_IF_ERROR(place->Check());
  SL_RETURN_IF_ERROR(CheckNoOtherSlurmJob(options));
  bool has_run = false;
  std::optional<int> over;
  SL_RETURN_IF_ERROR(
      TakeRunInFolder(config, &options, &has_run, &over, display));
  if (over.has_value()) return *over;
  run::CheckpointRecord beginning;  // Without a folder: it begins anew.
  if (!options.resume.empty()) {
    SL_ASSIGN_OR_RETURN(beginning, TakeCheckpoint(options, config, display));
  }
  const bool any_port = !PortIsGiven(options);
  SL_ASSIGN_OR_RETURN(const std::string data_dir, place->FindData());
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_RETURN_IF_ERROR(place->Connect(signals.get()));
  SL_ASSIGN_OR_RETURN(
      const int port,
      place->TakePort(any_port ? 0 : config.coordinator().port()));
  config.mutable_coordinator()->set_port(port);
  SL_RETURN_IF_ERROR(place->CheckCapacity(data_dir));
  SL_RETURN_IF_ERROR(place->CheckHosts(port));
  SL_ASSIGN_OR_RETURN(
      const std::string out_dir,
      ChooseOutFolder(options, config, beginning.folder(), has_run));
  if (config.launch().has_slurm() && !options.out_dir.empty())
    SL_RETURN_IF_ERROR(NoteSlurmJobBegins(options.slurm, out_dir));
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      cluster_file,
      {absl::StrCat(
           "# Written by `slackline run` from ", options.config_path,
           ": what was left out is filled in.\n", any_port ? kAnyPort : "",
           options.overrides.hosts_origin == kOnSlurm ? kAnyHosts : ""),
       ToText(config)}));

  LaunchOptions cluster_options = {
      .bin_dir = options.bin_dir,
      .cluster_file = cluster_file,
      .data_dir = data_dir,
      .out_dir = out_dir,
      .resume = beginning.folder(),
      .new_run = true,
      .any_server_takes_over = AnyServerTakesOver(config),
      .servers = static_cast<int>(ServerProcesses(config).size()),
      .workers = WorkerProcesses(config)};
  const std::vector<std::string> endpoints = CoordinatorEndpoints(config);
  display->Print(absl::StrCat(
      JobText(config), ", coordinator at ", endpoints.front(),
      OwnProgramsText(config), place->Text(),
      data_dir.empty() ? "" : absl::StrCat("\ndata: ", data_dir),
      "\nfolder: ", out_dir, " (logs in logs/; `",
      ShellLine({"slackline", "status", out_dir}), "` shows details)"));
  Restorer restorer({.enabled = config.checkpoint().on_server_loss() ==
                                config::Checkpoint::RESTORE,
                     .out_dir = out_dir,
                     .checkpoint_root = CheckpointRoot(config, out_dir),
                     .began_with = beginning.folder()},
                    display);
  // Of a checkpoint that this program knows of, or one of the coordinator's.
  const auto suspended = [&](const std::string& why,
                             const std::string& checkpoint,
                             bool taken_away) -> absl::StatusOr<int> {
    display->Print(
        absl::StrCat("the job is suspended: ", why, "\nto go on: ",
                     GoOnLine(options, cluster_file, out_dir,
                              CheckpointRoot(config, out_dir), checkpoint)));
    // Who has asked for the end does not want it again.
    if (config.launch().slurm().requeue() && taken_away)
      display->Print(QueueAgain(options.slurm));
    return kExitSuspended;
  };
  // Runs of the job, until one is not to be followed by another. The port of
  // the coordinator stays, so that who follows the job still finds it.
  while (true) {
    absl::StatusOr<std::unique_ptr<Cluster>> started =
        place->Start(cluster_options, config);
    if (!started.ok()) {
      return NotStarted(options, out_dir, config, beginning, started.status());
    }
    std::unique_ptr<Cluster> cluster = *std::move(started);
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                        CoordinatorClient::Connect(endpoints, config.job()));
    Restorer::Lost lost;
    absl::Status ended;
    {
      RunningJob job(options, config, std::move(cluster), client.get(),
                     signals.get(), display);
      ended = job.Await();
      ended = EndOfRun(options, out_dir, config, beginning, job,
                       std::move(ended), &lost);
      if (ended.ok()) {
        SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(out_dir));
        const std::string table = SummaryTable({result});
        std::fwrite(table.data(), 1, table.size(), stdout);
        if (job.supervisor().interrupted()) return kExitInterrupted;
        return AfterTheEnd(config, result.summary, job.supervisor(), display);
      }
    }  // No process is left.
    SL_ASSIGN_OR_RETURN(const std::optional<Restorer::Restoration> next,
                        restorer.OnLost(lost));
    if (!next.has_value()) {
      if (const std::string text = restorer.Text(); !text.empty())
        display->Print(text);
      if (lost.end.cause == wire::JobEnd::SUSPENDED)
        return suspended(lost.why, "",
                         lost.suspending || IsTakenAway(lost.why));
      const bool taken_away = IsTakenAway(lost.why);
      const bool before_it_ran =
          !lost.end.ran &&
          ((lost.suspending && lost.end.cause == wire::JobEnd::STOPPED) ||
           taken_away);
      if (!before_it_ran || beginning.folder().empty()) {
        // Slurm starts it once more, and it begins anew.
        if (before_it_ran && config.launch().slurm().requeue())
          display->Print(QueueAgain(options.slurm));
        return ended;
      }
      // The job is where it was before this run.
      const std::string why =
          absl::StrCat(lost.why, " before the job ran; it can go on from step ",
                       beginning.clock(), " of ", beginning.folder());
      SL_RETURN_IF_ERROR(WriteShortSummary(out_dir, config, beginning,
                                           wire::JobEnd::SUSPENDED,
                                           beginning.clock(), why));
      return suspended(why, beginning.folder(), /*taken_away=*/true);
    }
    // What comes after this look is met by the next run.
    const SignalWatch::Requests requests = signals->Wait(absl::ZeroDuration());
    if (lost.suspending || requests.all() > 0) {
      const bool stops = requests.interrupts + requests.quits > 0;
      const std::string& from = next->from.folder();
      const std::string why =
          stops ? kInterruptedBetween
                : absl::StrCat(
                      kTerminatedBetween, ": ",
                      from.empty() ? "it has no checkpoint yet" : next->text);
      const bool goes_on = !stops && !from.empty();
      // The run that has not begun is where it would have begun.
      SL_RETURN_IF_ERROR(WriteShortSummary(
          out_dir, config, next->from,
          goes_on ? wire::JobEnd::SUSPENDED : wire::JobEnd::STOPPED,
          next->from.clock(), why));
      if (goes_on) return suspended(why, from, /*taken_away=*/true);
      return absl::AbortedError(why);
    }
    display->Print(absl::StrCat("restoring the job: ", next->text));
    beginning = next->from;
    cluster_options.resume = beginning.folder();
  }
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

// What file and flags say, before it is checked. What is wrong with it is said
// by those who read it in earnest.
std::optional<config::ClusterConfig> WhatIsGiven(const RunOptions& options) {
  const absl::StatusOr<std::string> text =
      ReadRegularFile(options.config_path, kConfigFileBytesMax);
  if (!text.ok()) return std::nullopt;
  config::ClusterConfig config;
  FieldOrigins origins(options.config_path);
  if (!ParseConfigText(*text, options.config_path, &config, &origins).ok())
    return std::nullopt;
  if (absl::StrContains(*text, kAnyHosts)) ForgetHosts(&config);
  if (!ApplyOverrides(options.overrides, &config, &origins).ok())
    return std::nullopt;
  return config;
}

// Its processes are to be somewhere, and not on this machine.
bool NamesOtherHosts(const config::ClusterConfig& config) {
  const auto is_other = [](const auto& group) {
    return group.has_host() && !IsLoopback(group.host());
  };
  return is_other(config.coordinator()) ||
         absl::c_any_of(config.server(), is_other) ||
         absl::c_any_of(config.worker(), is_other);
}

// Where a job of Slurm is begun, and on what.
struct SlurmPlan {
  bool is_slurm = false;
  bool submits = false;         // By a batch script, from outside.
  bool on_named_hosts = false;  // Not on whatever nodes Slurm gives.
};

// One of them, if any was given.
std::string SlurmFlagOf(const RunOptions& options) {
  if (options.print_script) return "--print";
  if (options.detach) return "--detach";
  if (!options.slurm_options.empty()) return "--slurm-option";
  if (options.slurm_sets.empty()) return "";
  const absl::string_view set = options.slurm_sets.front();
  return absl::StrCat(
      "--", absl::StripPrefix(set.substr(0, set.find('=')), "launch.slurm."));
}

// Takes the flags of Slurm, and sees whether there are any where they do not
// belong.
absl::StatusOr<SlurmPlan> PlanSlurm(RunOptions* options) {
  const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
  SlurmPlan plan;
  // Flags of Slurm are for jobs of Slurm, and are no way to choose it.
  plan.is_slurm = given.has_value() && given->launch().has_slurm();
  if (const std::string flag = SlurmFlagOf(*options);
      given.has_value() && !plan.is_slurm && !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag,
        ": is for jobs of Slurm, and this is none; add --on slurm, or launch { "
        "slurm {} } to the config"));
  }
  options->overrides.sets.insert(options->overrides.sets.end(),
                                 options->slurm_sets.begin(),
                                 options->slurm_sets.end());
  options->overrides.slurm_options = options->slurm_options;
  if (!plan.is_slurm) return plan;
  const bool within = !options->slurm.job_id.empty();
  if (within && options->detach) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--detach: this is within job ", options->slurm.job_id,
        " of Slurm already; leave --detach out, or run it outside"));
  }
  plan.submits = options->print_script || !within;
  plan.on_named_hosts = !options->hosts.empty() ||
                        !options->host_file.empty() || NamesOtherHosts(*given);
  return plan;
}

// Nodes that Slurm has not chosen yet.
std::vector<HostSlots> StandIns(int count) {
  std::vector<HostSlots> hosts;
  for (int i = 1; i <= count; ++i) {
    hosts.push_back({.host = absl::StrCat(kStandInNode, i), .slots = 0});
  }
  return hosts;
}

// Reads --hosts or --hostfile, or asks Slurm.
absl::Status TakeHosts(const SlurmPlan& plan, RunOptions* options) {
  if (options->hosts.empty() && options->host_file.empty()) {
    if (!plan.is_slurm || plan.on_named_hosts) return absl::OkStatus();
    options->overrides.hosts_origin = kOnSlurm;
    if (!plan.submits) {
      SL_ASSIGN_OR_RETURN(options->overrides.hosts, SlurmHosts());
      return absl::OkStatus();
    }
    const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
    const int nodes = given.has_value() && given->launch().slurm().has_nodes()
                          ? given->launch().slurm().nodes()
                          : 1;
    // What is outside of the bounds is refused with the rest of the config.
    options->overrides.hosts =
        StandIns(options->dry_run ? 1 : std::clamp(nodes, 1, kNodesMax));
    return absl::OkStatus();
  }
  const bool is_file = options->hosts.empty();
  const std::string origin =
      is_file ? absl::StrCat("--hostfile ", options->host_file)
              : absl::StrCat("--hosts ", options->hosts);
  absl::StatusOr<std::vector<HostSlots>> hosts =
      is_file ? ReadHostFile(options->host_file) : ParseHosts(options->hosts);
  if (!hosts.ok())
    return Annotate(hosts.status(), is_file ? "--hostfile" : "--hosts");
  options->overrides.hosts = *std::move(hosts);
  options->overrides.hosts_origin = origin;
  return absl::OkStatus();
}

// Hands the job to Slurm, and follows it to its end, as of RunJob().
absl::StatusOr<int> RunBySlurm(RunOptions options, const SlurmPlan& plan,
                               const config::ClusterConfig& config,
                               Display* display) {
  const std::string mode = ModeText(config);
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  const auto script = [&](const std::string& out_dir) {
    std::vector<std::string> command = options.batch_command;
    // The first node runs what the nodes have.
    if (config.launch().has_bin_dir())
      command.front() = absl::StrCat(config.launch().bin_dir(), "/slackline");
    command.insert(command.end(), {"--out", out_dir});
    const std::vector<std::string>& program = options.overrides.worker_command;
    if (!program.empty()) {
      command.emplace_back("--");
      command.insert(command.end(), program.begin(), program.end());
    }
    return SlurmScript({.config = config,
                        .on_these_hosts = plan.on_named_hosts,
                        .command = std::move(command),
                        .folder = folder,
                        .out_dir = out_dir});
  };
  if (options.print_script) {
    const std::string out_dir =
        options.out_dir.empty()
            ? absl::StrCat("runs/",
                           RunName(config.job(), mode, TimeSource().WallNow()))
            : options.out_dir;
    SL_ASSIGN_OR_RETURN(const std::string text, script(out_dir));
    std::fwrite(text.data(), 1, text.size(), stdout);
    display->Print(absl::StrCat(
        "nothing is submitted: --print; sbatch needs the folder of the "
        "output: ",
        ShellLine({"mkdir", "-p", absl::StrCat(out_dir, "/", kSlurmFolder)})));
    return kExitDone;
  }
  std::unique_ptr<SignalWatch> signals;
  if (!options.out_dir.empty()) {
    SL_ASSIGN_OR_RETURN(const std::optional<std::string> before,
                        SlurmJobOfRun(options.out_dir));
    if (before.has_value()) {
      SL_ASSIGN_OR_RETURN(const std::string asked, script(options.out_dir));
      const absl::StatusOr<std::string> submitted = ReadRegularFile(
          SlurmScriptPath(options.out_dir), kConfigFileBytesMax);
      if (submitted.ok() && *submitted != asked) {
        return absl::FailedPreconditionError(absl::StrCat(
            "--out: the run in ", options.out_dir, " is Slurm job ", *before,
            ", which was submitted by another command (",
            SlurmScriptPath(options.out_dir),
            "); choose another folder, or end that job: scancel ", *before));
      }
      display->Print(absl::StrCat("the run in ", options.out_dir,
                                  " is Slurm job ", *before,
                                  " already; nothing is submitted",
                                  WatchText(*before, options.out_dir)));
      if (!options.detach) {
        SL_ASSIGN_OR_RETURN(signals, SignalWatch::Create());
        return FollowRun(*before, options.out_dir, /*from_now=*/true,
                         signals.get(), display);
      }
      std::printf("%s\n", before->c_str());
      return kExitDone;
    }
  }
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  SL_RETURN_IF_ERROR(place->Check());
  bool has_run = false;
  std::optional<int> over;
  SL_RETURN_IF_ERROR(
      TakeRunInFolder(config, &options, &has_run, &over, display));
  if (over.has_value()) return *over;
  if (!options.resume.empty())
    SL_RETURN_IF_ERROR(TakeCheckpoint(options, config, display).status());
  // What is not there yet is fetched here: nodes often have no way out.
  SL_RETURN_IF_ERROR(place->FindData().status());
  std::string out_dir = options.out_dir;
  SL_RETURN_IF_ERROR(script(out_dir).status());
  if (out_dir.empty() || HasNothingBegun(out_dir)) {
    SL_ASSIGN_OR_RETURN(out_dir, MakeOutFolder(out_dir, config.job(), mode));
  }
  SL_ASSIGN_OR_RETURN(const std::string text, script(out_dir));
  // From here on Ctrl-C is for the job, which may be submitted already.
  SL_ASSIGN_OR_RETURN(signals, SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(const std::string id, SubmitRun(text, out_dir));
  const SlurmNeeds needs = NeedsOf(config);
  display->Print(absl::StrCat(
      JobText(config), ": Slurm job ", id, " (", SlurmScriptPath(out_dir),
      "), ", needs.nodes, needs.nodes == 1 ? " node" : " nodes", " with ",
      needs.cpus_per_node, " processors",
      needs.gpus_per_node > 0
          ? absl::StrCat(" and ", needs.gpus_per_node, " GPUs")
          : "",
      needs.nodes > 1 ? " each" : "", "\nfolder: ", out_dir,
      WatchText(id, out_dir)));
  if (options.detach) {
    std::printf("%s\n", id.c_str());
    return kExitDone;
  }
  return FollowRun(id, out_dir, /*from_now=*/false, signals.get(), display);
}

}  // namespace

absl::Status TakeKnownHosts(RunOptions* options) {
  SL_ASSIGN_OR_RETURN(SlurmPlan plan, PlanSlurm(options));
  plan.submits = false;
  return TakeHosts(plan, options);
}

int Run(const RunOptions& given) {
  RunOptions options = given;
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline run: ", text));
  };
  for (const auto& [flag, path] : {std::pair("--out", options.out_dir),
                                   std::pair("--resume", options.resume)}) {
    const absl::Status text = CheckPathText(flag, path);
    if (text.ok()) continue;
    complain(text.message());
    return kExitUsage;
  }
  const absl::StatusOr<SlurmPlan> plan = PlanSlurm(&options);
  if (!plan.ok()) {
    complain(plan.status().message());
    return kExitUsage;
  }
  if (const absl::Status hosts = TakeHosts(*plan, &options); !hosts.ok()) {
    complain(hosts.message());
    return kExitUsage;
  }
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
  // Another engine goes to all hosts, and to this one, too.
  std::vector<std::string> elsewhere;
  if (ShellOf(config->launch()).name.empty())
    elsewhere = HostsElsewhere(*config);
  if (!elsewhere.empty() && !options.dry_run) {
    complain(ByHandText(options, *config, elsewhere));
    return kExitUsage;
  }
  if (options.dry_run) {
    const absl::Status checked = DryRun(options, *config, elsewhere, &display);
    if (checked.ok()) return kExitDone;
    complain(checked.message());
    return kExitFailed;
  }
  const absl::StatusOr<int> done =
      plan->submits ? RunBySlurm(options, *plan, *config, &display)
                    : RunJob(options, *config, &display);
  if (done.ok()) return *done;
  complain(done.status().message());
  return absl::IsCancelled(done.status()) ? kExitInterrupted : kExitFailed;
}

}  // namespace slackline
