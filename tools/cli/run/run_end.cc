#include "tools/cli/run/run_end.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/display.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/run_records.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/run/failure.h"
#include "tools/cli/run/restorer.h"
#include "tools/cli/run/running_job.h"

namespace slackline {
namespace {

// The checkpoint of the run itself that was completed last, if there is one.
void PutLastCheckpoint(const config::ClusterConfig& config,
                       const std::string& out_dir, run::Summary* summary) {
  int64_t newest = -1;
  std::error_code error;
  // A disk that fails here ends the search, and nothing else.
  std::filesystem::directory_iterator at(CheckpointRoot(config, out_dir),
                                         error);
  for (; !error && at != std::filesystem::directory_iterator();
       at.increment(error)) {
    const std::string folder = at->path().string();
    if (!IsCheckpointName(at->path().filename().string())) continue;
    const absl::StatusOr<checkpoint::Manifest> manifest = ReadManifest(folder);
    if (!manifest.ok() || manifest->sequence() <= newest ||
        !HasRecordsOf(out_dir, manifest->run()).value_or(false)) {
      continue;
    }
    newest = manifest->sequence();
    run::CheckpointRecord& last = *summary->mutable_last_checkpoint();
    last.set_folder(folder);
    last.set_clock(manifest->clock());
    last.set_bytes(BytesOf(*manifest));
    last.set_seconds(manifest->seconds());
  }
}

}  // namespace

absl::Status WriteShortSummary(const std::string& folder,
                               const config::ClusterConfig& config,
                               const run::CheckpointRecord& beginning,
                               wire::JobEnd::Cause cause, int64_t steps,
                               absl::string_view why, absl::string_view host) {
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
  PutLastCheckpoint(config, folder, &summary);
  // Before its first step the folder has those of the run that it goes on from.
  // Of a run that goes on from none all are its own, also where it was over
  // before anybody had heard of a step.
  const bool has_own = beginning.folder().empty() || steps > beginning.clock();
  const RecordsEnd end = has_own
                             ? PutRecordsOf(folder, beginning.clock(), &summary)
                             : RecordsEnd();
  if (end.records > 0) {
    summary.set_files_incomplete(absl::StrCat(
        "the records end early, at ", end.ToString(),
        ", with the coordinator; the figures here are theirs, and those that "
        "only the coordinator had (staleness, traffic, retries, what servers "
        "and workers counted) are 0"));
  }
  return WriteSummaryFile(folder, summary,
                          config.checkpoint().on_server_loss());
}

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

namespace {

bool HasOwnCheckpoint(const config::ClusterConfig& config,
                      const std::string& out_dir) {
  return HasCheckpoint(
      CheckpointRoot(config, out_dir), [&](const auto& manifest) {
        return HasRecordsOf(out_dir, manifest.run()).value_or(false);
      });
}

// What one types after the run in the folder has failed: it goes on from its
// last checkpoint, or begins anew if there is none.
std::string LineAfterFailure(const RunOptions& options,
                             const config::ClusterConfig& config,
                             const std::string& out_dir) {
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  const std::string root = CheckpointRoot(config, out_dir);
  if (HasOwnCheckpoint(config, out_dir))
    return GoOnLine(options, cluster_file, out_dir, root, "");
  std::vector<std::string> words = {"slackline", "run",   cluster_file,
                                    "--out",     out_dir, "--new-run"};
  if (!options.resume.empty())
    words.insert(words.end(), {"--resume", options.resume});
  words.insert(words.end(), options.flags_again.begin(),
               options.flags_again.end());
  return ShellLine(words);
}

// What one can still use of the folder of a run that was stopped. The chief
// writes a model whole or not at all, and before the job counts as finished.
std::string WhatIsUsable(const std::string& out_dir) {
  const auto written_at = [&](const char* name) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(
        absl::StrCat(out_dir, "/", name), error);
    return error ? std::filesystem::file_time_type::min() : time;
  };
  // One that an earlier run has left is older than the config.
  const bool has_model =
      written_at("model.safetensors") > written_at("cluster.textproto");
  const RecordsEnd end =
      PutRecordsOf(out_dir, /*from_step=*/0, /*summary=*/nullptr);
  return absl::StrCat(
      "\nwhat ", out_dir, " has: ",
      has_model ? "model.safetensors, whole, which is the model at the job's "
                  "early end (the job was stopped before its figures were in "
                  "summary.json); "
                : "no model; ",
      end.records == 0
          ? "no records"
          : absl::StrCat("records in metrics.jsonl up to step ", end.step));
}

// Files of the run are on another host. If its summary is one of them, a short
// one says so.
absl::Status NotComplete(const std::string& out_dir,
                         const config::ClusterConfig& config,
                         const run::CheckpointRecord& beginning, int64_t steps,
                         wire::JobEnd::Cause cause,
                         const std::string& missing_files) {
  const absl::Status why = absl::UnavailableError(absl::StrCat(
      "the result of the run is not complete here: ", missing_files));
  if (!absl::IsNotFound(ReadRunResult(out_dir).status())) return why;
  SL_RETURN_IF_ERROR(WriteShortSummary(out_dir, config, beginning, cause, steps,
                                       why.message()));
  const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
  if (!result.ok()) return why;
  const std::string text = LeaveFailurePage(
      {.folder = out_dir,
       .summary = result->summary,
       .command = ShellLine({"slackline", "summary", out_dir}),
       .what_to_do = "copy the files that are named from that host into this "
                     "folder, over what is there: they say how the job ended"},
      {});
  return absl::Status(why.code(), absl::StrCat(why.message(), "\n", text));
}

}  // namespace

absl::Status EndOfRun(const RunOptions& options, const std::string& out_dir,
                      const config::ClusterConfig& config,
                      const run::CheckpointRecord& beginning,
                      const RunningJob& job, const JobPlace::Gone& gone,
                      absl::Status ended, Restorer::Lost* lost) {
  const Supervisor& supervisor = job.supervisor();
  if (!job.missing_files().empty()) {
    return NotComplete(
        out_dir, config, beginning, job.steps(),
        ended.ok() ? wire::JobEnd::CAUSE_UNSPECIFIED : supervisor.Cause(),
        job.missing_files());
  }
  // A server that was killed with its summary on its lips.
  const bool unsaid = ended.ok() && supervisor.lost_a_process() &&
                      absl::IsNotFound(ReadRunResult(out_dir).status());
  const std::string host = supervisor.host().ToString();
  if (unsaid)
    ended = absl::AbortedError(absl::StrCat(host, " died at the job's end"));
  if (ended.ok()) return ended;
  if (!gone.why.empty()) ended = absl::AbortedError(gone.why);
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
      gone.why.empty() && result.ok() &&
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
  // As Ctrl-C before anything was started: the user did not want this run.
  const bool cancelled = supervisor.interrupted() && !supervisor.ran();
  const absl::Status failed =
      Annotate(cancelled ? absl::CancelledError(why.message()) : why,
               absl::StrCat("the job failed (logs: ", out_dir, "/logs)"));
  if (!result.ok() || !HasFailed(result->summary)) return failed;
  const std::string command = LineAfterFailure(options, config, out_dir);
  FailureFacts facts = {.folder = out_dir,
                        .summary = result->summary,
                        .command = command,
                        .on_server_loss = config.checkpoint().on_server_loss(),
                        .what_to_do = gone.what_to_do};
  facts.summary.set_reason(lost->why);
  // Who ends because the job was to stop is at no fault.
  const bool is_stopped = supervisor.asked_to_end() &&
                          result->summary.cause() ==
                              wire::JobEnd::Cause_Name(wire::JobEnd::STOPPED);
  const std::string text = LeaveFailurePage(
      std::move(facts), is_stopped ? std::vector<LoggedExit>()
                                   : ExitsAtFault(result->summary, job.exits(),
                                                  supervisor.dead()));
  // They know why, and may not know what is left.
  if (supervisor.asked_to_end()) {
    if (!supervisor.ran()) return failed;
    const std::string usable = WhatIsUsable(out_dir);
    if (!config.has_checkpoint()) {
      return absl::Status(failed.code(),
                          absl::StrCat(failed.message(), usable));
    }
    return absl::Status(
        failed.code(),
        absl::StrCat(
            failed.message(), usable,
            HasOwnCheckpoint(config, out_dir)
                ? "\nto go on from its last checkpoint: "
                : "\nit has no checkpoint of its own; to begin again: ",
            command));
  }
  return absl::AbortedError(absl::StrCat(failed.message(), "\n", text));
}

absl::Status NotStarted(const RunOptions& options, const std::string& out_dir,
                        const config::ClusterConfig& config,
                        const run::CheckpointRecord& beginning,
                        const absl::Status& why) {
  SL_RETURN_IF_ERROR(WriteShortSummary(
      out_dir, config, beginning,
      absl::IsCancelled(why) ? wire::JobEnd::STOPPED : wire::JobEnd::NOT_FORMED,
      beginning.clock(), why.message()));
  const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
  if (!result.ok()) return why;
  const std::string text =
      LeaveFailurePage({.folder = out_dir,
                        .summary = result->summary,
                        .command = LineAfterFailure(options, config, out_dir),
                        .on_server_loss = config.checkpoint().on_server_loss()},
                       {});
  if (absl::IsCancelled(why)) return why;  // Whoever did that knows the rest.
  return absl::Status(why.code(), absl::StrCat(why.message(), "\n", text));
}

int AfterTheEnd(const config::ClusterConfig& config,
                const run::Summary& summary, const Supervisor& supervisor,
                Display* display) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  // One that has left the job before its end has been judged by it.
  const auto left_before = [&](const JobProcess& worker) {
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

}  // namespace slackline
