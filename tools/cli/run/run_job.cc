#include "tools/cli/run/run_job.h"

#include <signal.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/io/atomic_file.h"
#include "common/process/exit_code.h"
#include "common/process/interrupted_by.h"
#include "common/process/job_key.h"
#include "common/status.h"
#include "tools/cli/display.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/launch/slurm_tools.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/run/given_config.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/run/job_place.h"
#include "tools/cli/run/job_text.h"
#include "tools/cli/run/metrics_targets.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/restorer.h"
#include "tools/cli/run/run_beginning.h"
#include "tools/cli/run/run_end.h"
#include "tools/cli/run/run_key.h"
#include "tools/cli/run/running_job.h"
#include "tools/cli/run/slurm_run.h"
#include "tools/cli/run/timeline_of_run.h"
#include "tools/cli/run/track_command.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

constexpr char kInterruptedBetween[] =
    "interrupted by the user before the job was restored";
constexpr char kTerminatedBetween[] =
    "slackline run was told to end (SIGTERM or SIGHUP) before the job was "
    "restored";

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

}  // namespace

absl::StatusOr<int> RunJob(RunOptions options, config::ClusterConfig config,
                           Display* display) {
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  SL_RETURN_IF_ERROR(place->Check());
  SL_RETURN_IF_ERROR(CheckNoOtherSlurmJob(options));
  bool has_run = false;
  std::optional<int> over;
  SL_RETURN_IF_ERROR(
      LookAtRunInFolder(config, &options, &has_run, &over, display));
  if (over.has_value()) return *over;
  run::CheckpointRecord beginning;  // Without a folder: it begins anew.
  if (!options.resume.empty()) {
    SL_ASSIGN_OR_RETURN(beginning, ReadCheckpointOf(options, config, display));
  }
  const bool any_port = !PortIsGiven(options);
  // An earlier run in the folder stays as it is if this one has no key.
  if (!options.out_dir.empty() && !HasNothingBegun(options.out_dir))
    SL_RETURN_IF_ERROR(RunKey::Check(config, options.key, options.out_dir));
  SL_ASSIGN_OR_RETURN(const std::string data_dir, place->FindData());
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  const auto go_there = [&]() -> absl::Status {
    SL_RETURN_IF_ERROR(place->Connect(signals.get()));
    SL_ASSIGN_OR_RETURN(
        const int port,
        place->ReservePort(any_port ? 0 : config.coordinator().port()));
    config.mutable_coordinator()->set_port(port);
    SL_RETURN_IF_ERROR(place->CheckCapacity(data_dir));
    return place->CheckHosts(port);
  };
  SL_RETURN_IF_ERROR(place->FindHosts(signals.get(), &config));
  SL_RETURN_IF_ERROR(go_there());
  SL_ASSIGN_OR_RETURN(
      const std::string out_dir,
      ChooseOutFolder(options, config, beginning.folder(), has_run, display));
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  const bool any_hosts = options.overrides.hosts_origin == kOnSlurm ||
                         options.overrides.hosts_origin == kOnRay;
  std::optional<MetricsTargetsFile> metrics_targets;
  bool has_config = false;  // The folder has that of this run.
  const auto write_config = [&]() -> absl::Status {
    metrics_targets.reset();
    SL_ASSIGN_OR_RETURN(MetricsTargetsFile targets,
                        MetricsTargetsFile::Write(config, out_dir));
    metrics_targets.emplace(std::move(targets));
    SL_RETURN_IF_ERROR(WriteFileAtomically(
        cluster_file,
        {absl::StrCat("# Written by `slackline run` from ", options.config_path,
                      ": what was left out is filled in.\n",
                      any_port ? kAnyPort : "", any_hosts ? kAnyHosts : ""),
         ToText(config)}));
    has_config = true;
    return absl::OkStatus();
  };
  // There is a folder of the run from here on, and it says why none began.
  const auto not_started = [&](const absl::Status& why) {
    // What is typed next begins with it.
    if (!has_config) write_config().IgnoreError();
    return NotStarted(options, out_dir, config, beginning, why);
  };
  std::unique_ptr<RunKey> key;
  std::unique_ptr<Tracking> tracking;
  const auto prepare = [&]() -> absl::Status {
    if (config.launch().has_slurm() && !options.out_dir.empty())
      SL_RETURN_IF_ERROR(NoteSlurmJobBegins(options.slurm, out_dir));
    // Whoever finds the config looks for the key of the job beside it.
    SL_ASSIGN_OR_RETURN(key, RunKey::Make(config, options.key, out_dir));
    SL_RETURN_IF_ERROR(write_config());
    if (config.insecure()) {
      display->Print(
          "warning: insecure: true: nothing on the wire is encrypted, and "
          "whoever reaches the ports of this job can read, change and stop it");
    }
    if (!key->note().empty()) display->Print(key->note());
    SL_ASSIGN_OR_RETURN(
        tracking, Tracking::Start(TrackOptionsOf(config.track(), options.track,
                                                 out_dir, options.bin_dir),
                                  display));
    return absl::OkStatus();
  };
  if (const absl::Status prepared = prepare(); !prepared.ok())
    return not_started(prepared);

  LaunchOptions cluster_options = {
      .bin_dir = options.bin_dir,
      .cluster_file = cluster_file,
      .data_dir = data_dir,
      .out_dir = out_dir,
      .key_folder = key->folder(),
      .resume = beginning.folder(),
      .new_run = true,
      .any_server_takes_over = AnyServerTakesOver(config),
      .log_bytes_max = int64_t{config.launch().log_mib()} << 20,
      .servers = static_cast<int>(ServerProcesses(config).size()),
      .workers = WorkerProcesses(config)};
  std::vector<std::string> endpoints = CoordinatorEndpoints(config);
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
  // the coordinator stays, so that who follows the job still finds it, unless
  // the engine gives other hosts.
  while (true) {
    const auto take_new_hosts = [&]() -> absl::Status {
      SL_ASSIGN_OR_RETURN(const bool has_others,
                          place->ReplaceHosts(signals.get(), &config));
      if (!has_others) return absl::OkStatus();
      SL_RETURN_IF_ERROR(go_there());
      endpoints = CoordinatorEndpoints(config);
      display->Print(absl::StrCat("the job goes on elsewhere, coordinator at ",
                                  endpoints.front(), place->Text()));
      return write_config();
    };
    if (const absl::Status hosts = take_new_hosts(); !hosts.ok())
      return not_started(hosts);
    absl::StatusOr<std::unique_ptr<Cluster>> started =
        place->Start(cluster_options, config);
    if (!started.ok()) return not_started(started.status());
    std::unique_ptr<Cluster> cluster = *std::move(started);
    absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
        CoordinatorClient::Connect(endpoints, config.job(), key->source());
    if (!client.ok()) {
      cluster.reset();  // Ends what it has started.
      return not_started(client.status());
    }
    Restorer::Lost lost;
    JobPlace::Gone gone;
    absl::Status ended;
    // Of the first one of these runs.
    std::optional<TimelineOfRun> timeline;
    if (options.timeline_seconds > 0) {
      timeline.emplace(TimelineOfRun::Options{
          .endpoints = endpoints,
          .job = config.job(),
          .keys = key->source(),
          .time = absl::Seconds(std::exchange(options.timeline_seconds, 0)),
          .folder = out_dir});
    }
    {
      RunningJob job(options, config, std::move(cluster), client->get(),
                     key.get(), signals.get(), display);
      if (timeline.has_value()) job.Follow(&*timeline);
      ended = job.Await();
      if (timeline.has_value()) {
        if (const std::string said = timeline->Finish(); !said.empty())
          display->Print(said);
      }
      if (!ended.ok() && !job.supervisor().asked_to_end() &&
          job.supervisor().Cause() != wire::JobEnd::SUSPENDED) {
        gone = place->WhatIsGone();
      }
      ended = EndOfRun(options, out_dir, config, beginning, job, gone,
                       std::move(ended), &lost);
      if (ended.ok()) {
        SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(out_dir));
        const std::string table = SummaryTable({result});
        std::fwrite(table.data(), 1, table.size(), stdout);
        if (job.supervisor().interrupted()) return kExitInterrupted;
        return AfterTheEnd(config, result.summary, job.supervisor(), display);
      }
    }  // No process is left.
    std::optional<Restorer::Restoration> next;
    if (gone.why.empty()) {
      SL_ASSIGN_OR_RETURN(next, restorer.OnLost(lost));
    }
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
    WarnOfRecording(config, next->from, display);
    beginning = next->from;
    cluster_options.resume = beginning.folder();
  }
}

}  // namespace slackline
