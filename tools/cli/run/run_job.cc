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

// A job from its folder to its last process: one run after the other, until one
// is not to be followed by another.
class JobRuns {
 public:
  JobRuns(RunOptions options, config::ClusterConfig config, Display* display)
      : options_(std::move(options)),
        config_(std::move(config)),
        display_(display),
        place_(PlaceOf(options_, config_, display)) {}

  // As RunJob().
  absl::StatusOr<int> Run();

 private:
  // What the job begins with, and where; then there is a folder.
  absl::Status FindAll(bool has_run);
  absl::Status GoToHosts();
  // What is in the folder before the first process is there.
  absl::Status Prepare();
  absl::Status WriteConfig();
  void SayWhatBegins();
  // Why none began, which the folder says, too.
  absl::Status NotBegun(const absl::Status& why);
  // The engine may give others to who goes on. The port of the coordinator
  // stays else, so that who follows the job still finds it.
  absl::Status TakeNewHosts();
  // One run of the job. The exit code, if the job has finished; else `*ended`
  // says why not, and the rest what is known of it.
  absl::StatusOr<std::optional<int>> RunOnce(absl::Status* ended,
                                             Restorer::Lost* lost,
                                             JobPlace::Gone* gone);
  // No other run follows.
  absl::StatusOr<int> EndAfter(const absl::Status& ended,
                               const Restorer::Lost& lost);
  // The user has asked for the end before the next run began.
  absl::StatusOr<int> EndBefore(const Restorer::Restoration& next, bool stops);
  // Of a checkpoint that this program knows of, or one of the coordinator's.
  // Returns the exit code.
  int Suspended(const std::string& why, const std::string& checkpoint,
                bool taken_away);

  // In the order of their lifetimes.
  RunOptions options_;
  config::ClusterConfig config_;
  bool any_port_ = false;
  Display* const display_;
  const std::unique_ptr<JobPlace> place_;
  run::CheckpointRecord beginning_;  // Without a folder: it begins anew.
  std::string data_dir_;
  std::unique_ptr<SignalWatch> signals_;
  std::string out_dir_;
  std::string cluster_file_;
  bool has_config_ = false;  // The folder has that of this run.
  std::optional<MetricsTargetsFile> metrics_targets_;
  std::unique_ptr<RunKey> key_;
  std::unique_ptr<Tracking> tracking_;
  LaunchOptions launch_;
  std::vector<std::string> endpoints_;
  std::optional<Restorer> restorer_;
};

absl::StatusOr<int> JobRuns::Run() {
  SL_RETURN_IF_ERROR(place_->Check());
  SL_RETURN_IF_ERROR(CheckNoOtherSlurmJob(options_));
  bool has_run = false;
  std::optional<int> over;
  SL_RETURN_IF_ERROR(
      LookAtRunInFolder(config_, &options_, &has_run, &over, display_));
  if (over.has_value()) return *over;
  SL_RETURN_IF_ERROR(FindAll(has_run));
  if (const absl::Status prepared = Prepare(); !prepared.ok())
    return NotBegun(prepared);
  SayWhatBegins();
  while (true) {
    if (const absl::Status hosts = TakeNewHosts(); !hosts.ok())
      return NotBegun(hosts);
    absl::Status ended;
    Restorer::Lost lost;
    JobPlace::Gone gone;
    SL_ASSIGN_OR_RETURN(const std::optional<int> code,
                        RunOnce(&ended, &lost, &gone));
    if (code.has_value()) return *code;
    std::optional<Restorer::Restoration> next;
    if (gone.why.empty()) {
      SL_ASSIGN_OR_RETURN(next, restorer_->OnLost(lost));
    }
    if (!next.has_value()) return EndAfter(ended, lost);
    // What comes after this look is met by the next run.
    const SignalWatch::Requests requests = signals_->Wait(absl::ZeroDuration());
    if (lost.suspending || requests.all() > 0)
      return EndBefore(*next, requests.interrupts + requests.quits > 0);
    display_->Print(absl::StrCat("restoring the job: ", next->text));
    WarnOfRecording(config_, next->from, display_);
    beginning_ = next->from;
    launch_.resume = beginning_.folder();
  }
}

absl::Status JobRuns::FindAll(bool has_run) {
  if (!options_.resume.empty()) {
    SL_ASSIGN_OR_RETURN(beginning_,
                        ReadCheckpointOf(options_, config_, display_));
  }
  any_port_ = !PortIsGiven(options_);
  // An earlier run in the folder stays as it is if this one has no key.
  if (!options_.out_dir.empty() && !HasNothingBegun(options_.out_dir))
    SL_RETURN_IF_ERROR(RunKey::Check(config_, options_.key, options_.out_dir));
  SL_ASSIGN_OR_RETURN(data_dir_, place_->FindData());
  SL_ASSIGN_OR_RETURN(signals_, SignalWatch::Create());
  SL_RETURN_IF_ERROR(place_->FindHosts(signals_.get(), &config_));
  SL_RETURN_IF_ERROR(GoToHosts());
  SL_ASSIGN_OR_RETURN(
      out_dir_, ChooseOutFolder(options_, config_, beginning_.folder(), has_run,
                                display_));
  cluster_file_ = absl::StrCat(out_dir_, "/cluster.textproto");
  return absl::OkStatus();
}

absl::Status JobRuns::GoToHosts() {
  SL_RETURN_IF_ERROR(place_->Connect(signals_.get()));
  SL_ASSIGN_OR_RETURN(
      const int port,
      place_->ReservePort(any_port_ ? 0 : config_.coordinator().port()));
  config_.mutable_coordinator()->set_port(port);
  SL_RETURN_IF_ERROR(place_->CheckCapacity(data_dir_));
  return place_->CheckHosts(port);
}

absl::Status JobRuns::Prepare() {
  if (config_.launch().has_slurm() && !options_.out_dir.empty())
    SL_RETURN_IF_ERROR(NoteSlurmJobBegins(options_.slurm, out_dir_));
  // Whoever finds the config looks for the key of the job beside it.
  SL_ASSIGN_OR_RETURN(key_, RunKey::Make(config_, options_.key, out_dir_));
  SL_RETURN_IF_ERROR(WriteConfig());
  if (config_.insecure()) {
    display_->Print(
        "warning: insecure: true: nothing on the wire is encrypted, and "
        "whoever reaches the ports of this job can read, change and stop it");
  }
  if (!key_->note().empty()) display_->Print(key_->note());
  SL_ASSIGN_OR_RETURN(
      tracking_, Tracking::Start(TrackOptionsOf(config_.track(), options_.track,
                                                out_dir_, options_.bin_dir),
                                 display_));
  launch_ = {.bin_dir = options_.bin_dir,
             .cluster_file = cluster_file_,
             .data_dir = data_dir_,
             .out_dir = out_dir_,
             .key_folder = key_->folder(),
             .resume = beginning_.folder(),
             .new_run = true,
             .any_server_takes_over = AnyServerTakesOver(config_),
             .log_bytes_max = int64_t{config_.launch().log_mib()} << 20,
             .servers = static_cast<int>(ServerProcesses(config_).size()),
             .workers = WorkerProcesses(config_)};
  endpoints_ = CoordinatorEndpoints(config_);
  restorer_.emplace(
      Restorer::Options{.enabled = config_.checkpoint().on_server_loss() ==
                                   config::Checkpoint::RESTORE,
                        .out_dir = out_dir_,
                        .checkpoint_root = CheckpointRoot(config_, out_dir_),
                        .began_with = beginning_.folder()},
      display_);
  return absl::OkStatus();
}

absl::Status JobRuns::WriteConfig() {
  const bool any_hosts = options_.overrides.hosts_origin == kOnSlurm ||
                         options_.overrides.hosts_origin == kOnRay;
  metrics_targets_.reset();
  SL_ASSIGN_OR_RETURN(MetricsTargetsFile targets,
                      MetricsTargetsFile::Write(config_, out_dir_));
  metrics_targets_.emplace(std::move(targets));
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      cluster_file_,
      {absl::StrCat("# Written by `slackline run` from ", options_.config_path,
                    ": what was left out is filled in.\n",
                    any_port_ ? kAnyPort : "", any_hosts ? kAnyHosts : ""),
       ToText(config_)}));
  has_config_ = true;
  return absl::OkStatus();
}

void JobRuns::SayWhatBegins() {
  display_->Print(absl::StrCat(
      JobText(config_), ", coordinator at ", endpoints_.front(),
      OwnProgramsText(config_), place_->Text(),
      data_dir_.empty() ? "" : absl::StrCat("\ndata: ", data_dir_),
      "\nfolder: ", out_dir_, " (logs in logs/; `",
      ShellLine({"slackline", "status", out_dir_}), "` shows details)"));
}

absl::Status JobRuns::NotBegun(const absl::Status& why) {
  // What is typed next begins with it.
  if (!has_config_) WriteConfig().IgnoreError();
  return NotStarted(options_, out_dir_, config_, beginning_, why);
}

absl::Status JobRuns::TakeNewHosts() {
  SL_ASSIGN_OR_RETURN(const bool has_others,
                      place_->ReplaceHosts(signals_.get(), &config_));
  if (!has_others) return absl::OkStatus();
  SL_RETURN_IF_ERROR(GoToHosts());
  endpoints_ = CoordinatorEndpoints(config_);
  display_->Print(absl::StrCat("the job goes on elsewhere, coordinator at ",
                               endpoints_.front(), place_->Text()));
  return WriteConfig();
}

absl::StatusOr<std::optional<int>> JobRuns::RunOnce(absl::Status* ended,
                                                    Restorer::Lost* lost,
                                                    JobPlace::Gone* gone) {
  absl::StatusOr<std::unique_ptr<Cluster>> started =
      place_->Start(launch_, config_);
  if (!started.ok()) return NotBegun(started.status());
  std::unique_ptr<Cluster> cluster = *std::move(started);
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
      CoordinatorClient::Connect(endpoints_, config_.job(), key_->source());
  if (!client.ok()) {
    cluster.reset();  // Ends what it has started.
    return NotBegun(client.status());
  }
  // Of the first run.
  std::optional<TimelineOfRun> timeline;
  if (options_.timeline_seconds > 0) {
    timeline.emplace(TimelineOfRun::Options{
        .endpoints = endpoints_,
        .job = config_.job(),
        .keys = key_->source(),
        .time = absl::Seconds(std::exchange(options_.timeline_seconds, 0)),
        .folder = out_dir_});
  }
  RunningJob job(options_, config_, std::move(cluster), client->get(),
                 key_.get(), signals_.get(), display_);
  if (timeline.has_value()) job.Follow(&*timeline);
  *ended = job.Await();
  if (timeline.has_value()) {
    if (const std::string said = timeline->Finish(); !said.empty())
      display_->Print(said);
  }
  if (!ended->ok() && !job.supervisor().asked_to_end() &&
      job.supervisor().Cause() != wire::JobEnd::SUSPENDED) {
    *gone = place_->WhatIsGone();
  }
  *ended = EndOfRun(options_, out_dir_, config_, beginning_, job, *gone,
                    std::move(*ended), lost);
  if (!ended->ok()) return std::nullopt;
  SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(out_dir_));
  const std::string table = SummaryTable({result});
  std::fwrite(table.data(), 1, table.size(), stdout);
  if (job.supervisor().interrupted()) return kExitInterrupted;
  return AfterTheEnd(config_, result.summary, job.supervisor(), display_);
}

absl::StatusOr<int> JobRuns::EndAfter(const absl::Status& ended,
                                      const Restorer::Lost& lost) {
  if (const std::string text = restorer_->Text(); !text.empty())
    display_->Print(text);
  const bool taken_away = IsTakenAway(lost.why);
  if (lost.end.cause == wire::JobEnd::SUSPENDED)
    return Suspended(lost.why, "", lost.suspending || taken_away);
  const bool before_it_ran =
      !lost.end.ran &&
      ((lost.suspending && lost.end.cause == wire::JobEnd::STOPPED) ||
       taken_away);
  if (!before_it_ran || beginning_.folder().empty()) {
    // Slurm starts it once more, and it begins anew.
    if (before_it_ran && config_.launch().slurm().requeue())
      display_->Print(QueueAgain(options_.slurm));
    return ended;
  }
  // The job is where it was before this run.
  const std::string why =
      absl::StrCat(lost.why, " before the job ran; it can go on from step ",
                   beginning_.clock(), " of ", beginning_.folder());
  SL_RETURN_IF_ERROR(WriteShortSummary(out_dir_, config_, beginning_,
                                       wire::JobEnd::SUSPENDED,
                                       beginning_.clock(), why));
  return Suspended(why, beginning_.folder(), /*taken_away=*/true);
}

absl::StatusOr<int> JobRuns::EndBefore(const Restorer::Restoration& next,
                                       bool stops) {
  const std::string& from = next.from.folder();
  const std::string why =
      stops
          ? kInterruptedBetween
          : absl::StrCat(kTerminatedBetween, ": ",
                         from.empty() ? "it has no checkpoint yet" : next.text);
  const bool goes_on = !stops && !from.empty();
  // The run that has not begun is where it would have begun.
  SL_RETURN_IF_ERROR(WriteShortSummary(
      out_dir_, config_, next.from,
      goes_on ? wire::JobEnd::SUSPENDED : wire::JobEnd::STOPPED,
      next.from.clock(), why));
  if (goes_on) return Suspended(why, from, /*taken_away=*/true);
  return absl::AbortedError(why);
}

int JobRuns::Suspended(const std::string& why, const std::string& checkpoint,
                       bool taken_away) {
  display_->Print(
      absl::StrCat("the job is suspended: ", why, "\nto go on: ",
                   GoOnLine(options_, cluster_file_, out_dir_,
                            CheckpointRoot(config_, out_dir_), checkpoint)));
  // Who has asked for the end does not want it again.
  if (config_.launch().slurm().requeue() && taken_away)
    display_->Print(QueueAgain(options_.slurm));
  return kExitSuspended;
}

}  // namespace

absl::StatusOr<int> RunJob(RunOptions options, config::ClusterConfig config,
                           Display* display) {
  return JobRuns(std::move(options), std::move(config), display).Run();
}

}  // namespace slackline
