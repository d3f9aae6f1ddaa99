#include "tools/cli/run/run_beginning.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/delays/delay_trace.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "job/job_config.h"
#include "server/coordinator/failure_page.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/display.h"
#include "tools/cli/job/lost_run.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/run_records.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/restorer.h"
#include "tools/cli/run/slurm_run.h"
#include "tools/experiment/replay_spec.h"

namespace slackline {
namespace {

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

// Of the folder of a run, or of its checkpoints, in which there is none: how
// far the run was and what can be done; empty if it is no such folder.
std::string WhatInstead(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path folder = fs::path(path).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  const auto config_in = [](const fs::path& at) {
    return (at / "cluster.textproto").string();
  };
  std::error_code error;
  if (!fs::exists(config_in(folder), error)) folder = folder.parent_path();
  if (folder.empty()) return "";
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(config_in(folder));
  if (!config.ok()) return "";
  const std::string run = folder.string();
  const absl::StatusOr<RunResult> ended = ReadRunResult(run);
  const RecordsEnd records =
      PutRecordsOf(run, /*from_step=*/0, /*summary=*/nullptr);
  return absl::StrCat(
      "\nthe run in ", run,
      ended.ok() ? absl::StrCat(" has ended: ", EndText(ended->summary))
                 : absl::StrCat(" was killed, or runs still (`",
                                ShellLine({"slackline", "status", run}), "`)"),
      records.records == 0
          ? "; it had done no step that is in its records"
          : absl::StrCat("; its records end at ", records.ToString()),
      config->has_checkpoint()
          ? ", before a checkpoint was complete (checkpoint { "
            "every_steps, every_epochs or every_seconds } says how often one "
            "is taken)"
          : ", and its config has no checkpoint block, so none was taken",
      "; to begin it anew: ",
      ShellLine(
          {"slackline", "run", config_in(folder), "--out", run, "--new-run"}));
}

}  // namespace

absl::StatusOr<run::CheckpointRecord> ReadCheckpointOf(
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
  if (!stored.ok()) {
    return absl::Status(
        stored.status().code(),
        absl::StrCat("--resume: ", stored.status().message(),
                     absl::IsNotFound(stored.status()) ? WhatInstead(path)
                                                       : std::string()));
  }
  const checkpoint::Manifest& manifest = (*stored)->manifest();
  display->Print(absl::StrCat("goes on from step ", manifest.clock(), " of ",
                              (*stored)->folder()));
  const run::CheckpointRecord beginning = RecordOf(**stored);
  if (manifest.run() == 0) return beginning;  // Of `import`.
  WarnOfRecording(config, beginning, display);
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

void WarnOfRecording(const config::ClusterConfig& config,
                     const run::CheckpointRecord& from, Display* display) {
  if (!config.train().trace() || from.folder().empty()) return;
  display->Print(absl::StrCat(
      "warning: train.trace records from step ", from.clock(),
      " on: a recording that lacks the steps before cannot be replayed, nor "
      "given as --delays"));
}

absl::StatusOr<std::string> ChooseOutFolder(const RunOptions& options,
                                            const config::ClusterConfig& config,
                                            const std::string& resume,
                                            bool has_run, Display* display) {
  if (has_run && (resume.empty() || options.new_run)) {
    // A recording begins before the first record, and is no part of another.
    if (!HasRecords(options.out_dir) &&
        RecordedTraceFiles(options.out_dir).empty()) {
      // What a run that did not begin has left.
      std::error_code error;
      std::filesystem::remove(absl::StrCat(options.out_dir, "/summary.json"),
                              error);
      std::filesystem::remove(FailurePath(options.out_dir), error);
      return options.out_dir;
    }
    SL_ASSIGN_OR_RETURN(
        const std::string aside,
        PutRunAside(options.out_dir, /*with_checkpoints=*/resume.empty()));
    SL_RETURN_IF_ERROR(MoveRecording(options.out_dir, aside));
    return options.out_dir;
  }
  if (!resume.empty() && !options.out_dir.empty() &&
      !HasNothingBegun(options.out_dir)) {
    SL_ASSIGN_OR_RETURN(const std::string unknown,
                        CheckFolderOfRun(options.out_dir, resume));
    const std::string text =
        unknown.empty() ? "" : UnknownRunText(options.out_dir, unknown);
    if (!text.empty()) display->Print(text);
    SL_RETURN_IF_ERROR(KeepEarlier(options.out_dir));
    return options.out_dir;
  }
  const sync::Mode mode = ConfiguredMode(config.sync());
  const std::string given = RuleOf(mode).GivenDelaysOf(mode);
  return MakeOutFolder(options.out_dir, config.job(),
                       given.empty()
                           ? ModeText(config)
                           : absl::StrCat("delays-", ReplayName(given)));
}

absl::Status LookAtRunInFolder(const config::ClusterConfig& config,
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
  const std::string unknown =
      (*found)->unknown.empty() ? "" : UnknownRunText(out, (*found)->unknown);
  if (options->new_run || (*found)->checkpoints.empty()) {
    if (!unknown.empty()) display->Print(unknown);
    return absl::OkStatus();
  }
  const std::string what = unknown.empty() ? LostRunText(out) : unknown;
  display->Print(absl::StrCat(
      what.empty() ? absl::StrCat("the run in ", out, " has not finished, and")
                   : absl::StrCat(what, "; it"),
      " goes on from its last checkpoint (--new-run begins anew)"));
  options->resume = (*found)->checkpoints;
  options->best = false;
  return absl::OkStatus();
}

}  // namespace slackline
