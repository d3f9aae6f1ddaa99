#include "tools/cli/run/out_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/config/cluster_config.h"
#include "common/config/same_job.h"
#include "common/config/shell_line.h"
#include "common/delays/delay_trace.h"
#include "common/host_port.h"
#include "common/net/resolve.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "job/job_config.h"
#include "server/coordinator/failure_page.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/job/at_once.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/reach.h"
#include "tools/cli/launch/slurm_script.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline {

namespace fs = std::filesystem;

std::string RunName(const std::string& job, const std::string& mode,
                    absl::Time now) {
  const bool phases = absl::StrContains(mode, ' ');
  return absl::StrCat(
      job, "-", phases ? "phases" : absl::StrReplaceAll(mode, {{":", "-"}}),
      "-", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
}

bool HasNothingBegun(const std::string& out_dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(out_dir, error)) {
    if (entry.path().filename() != kSlurmFolder) return false;
  }
  return !error || error == std::errc::no_such_file_or_directory;
}

absl::StatusOr<std::string> MakeOutFolder(const std::string& out_dir,
                                          const std::string& job,
                                          const std::string& mode) {
  std::error_code error;
  if (out_dir.empty()) {
    const fs::path base =
        fs::path("runs") / RunName(job, mode, TimeSource().WallNow());
    fs::create_directories(base.parent_path(), error);
    fs::path folder = base;
    // Two runs in one second.
    for (int i = 2; !error && !fs::create_directory(folder, error); ++i) {
      folder = absl::StrCat(base.string(), "-", i);
    }
    if (!error) return folder.string();
    return absl::UnavailableError(absl::StrCat(
        "folder ", base.string(), " cannot be made: ", error.message(),
        "; choose another with --out"));
  }
  fs::create_directories(out_dir, error);
  const bool empty = !error && HasNothingBegun(out_dir);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("--out: folder ", out_dir,
                     " cannot be made: ", error.message(), "; choose another"));
  }
  if (!empty) {
    return absl::AlreadyExistsError(
        absl::StrCat("--out: folder ", out_dir,
                     " is not empty, and runs are never overwritten; choose "
                     "another or remove it"));
  }
  return out_dir;
}

namespace {

constexpr absl::Duration kReachMax = absl::Seconds(2);

// Unavailable: somebody listens there. What is seen if its host does not say
// whether somebody does; empty: nobody does.
absl::StatusOr<std::string> LookForCoordinator(const std::string& endpoint,
                                               int port) {
  const std::string host = SplitHostPort(endpoint).first;
  const absl::StatusOr<std::string> address = ResolveHost(host);
  if (address.ok() && IsOwnAddress(*address, OwnAddresses())) {
    SL_RETURN_IF_ERROR(CheckPortFree(host, port));
    return "";
  }
  std::string detail;
  const Reach reach = TryToReach(endpoint, kReachMax, &detail);
  if (reach == Reach::kSilent) {
    return absl::UnavailableError(
        absl::StrCat("somebody listens at ", endpoint));
  }
  return reach == Reach::kRefused ? "" : ReachText(reach, endpoint, detail);
}

// Unavailable: the folder does not say that its run, of this config, has ended,
// and somebody listens where its coordinator may be. As RunInFolder::unknown.
absl::StatusOr<std::string> LookForRun(const std::string& out_dir,
                                       const config::ClusterConfig& config) {
  const int port = config.coordinator().port();
  if (port == 0 || HasEnded(out_dir)) return "";
  const std::vector<std::string> endpoints = CoordinatorEndpoints(config);
  std::vector<absl::StatusOr<std::string>> seen(endpoints.size(), "");
  ForEachAtOnce(endpoints.size(), [&](size_t i) {
    seen[i] = LookForCoordinator(endpoints[i], port);
  });
  std::vector<std::string> unknown;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (!seen[i].ok()) {
      return absl::Status(
          seen[i].status().code(),
          absl::StrCat(
              seen[i].status().message(), "; at ", endpoints[i],
              " a coordinator of the run in ", out_dir,
              " may be, which has not said that it has ended, and two cannot "
              "write there: `",
              ShellLine({"slackline", "status", out_dir}),
              "` says whether it runs; if another job is there, give another "
              "--out, and --resume ",
              ShellLine({out_dir}), " to go on from its checkpoints"));
    }
    if (!seen[i]->empty()) unknown.push_back(*std::move(seen[i]));
  }
  return absl::StrJoin(unknown, "; ");
}

}  // namespace

absl::StatusOr<std::optional<RunInFolder>> FindRunIn(
    const std::string& out_dir, const config::ClusterConfig& config,
    BeginningFlags flags) {
  const absl::StatusOr<config::ClusterConfig> kept =
      LoadJobConfig(absl::StrCat(out_dir, "/cluster.textproto"));
  if (!kept.ok()) return std::nullopt;
  RunInFolder run;
  SL_ASSIGN_OR_RETURN(run.unknown, LookForRun(out_dir, *kept));
  FoundRun found = {.place = out_dir, .why_other = WhyOtherJob(config, *kept)};
  const std::string root = CheckpointRoot(*kept, out_dir);
  found.has_checkpoint = HasCheckpoint(root, [&](const auto& manifest) {
    return HasRecordsOf(out_dir, manifest.run()).value_or(false);
  });
  if (found.has_checkpoint) run.checkpoints = root;
  const bool has_records = HasRecords(out_dir);
  const absl::StatusOr<RunEnd> end = EndIn(out_dir);
  if (end.ok() && end->finished) {
    found.kind = FoundRun::Kind::kFinished;
  } else if (has_records || found.has_checkpoint ||
             (end.ok() && end->steps > 0)) {
    found.kind = end.ok() ? FoundRun::Kind::kFailed : FoundRun::Kind::kLost;
    if (end.ok()) found.reason = end->end.reason();
  }
  // None of its processes is left, as far as is known, so its checkpoints are
  // all that is.
  flags.from_checkpoint = found.why_other.empty() && found.has_checkpoint;
  SL_ASSIGN_OR_RETURN(run.how, HowToBegin(found, flags));
  run.instead = WhatGoesOn(found);
  return run;
}

absl::StatusOr<std::string> CheckFolderOfRun(const std::string& out_dir,
                                             const std::string& checkpoint) {
  const std::string kept = absl::StrCat(out_dir, "/cluster.textproto");
  const absl::StatusOr<config::ClusterConfig> config = LoadJobConfig(kept);
  if (!config.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--out: folder ", out_dir, " is not empty, and not that of a run: ",
        config.status().message(), "; choose a new one"));
  }
  SL_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest,
                      ReadManifest(checkpoint));
  absl::StatusOr<bool> is_its = HasRecordsOf(out_dir, manifest.run());
  if (!is_its.ok()) return Annotate(is_its.status(), "--out");
  if (!*is_its) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out: folder ", out_dir,
                     " is not empty, and its run has not written ", checkpoint,
                     "; choose that run's folder, or a new one"));
  }
  absl::StatusOr<std::string> unknown = LookForRun(out_dir, *config);
  if (!unknown.ok()) return Annotate(unknown.status(), "--out");
  return unknown;
}

absl::Status KeepEarlier(const std::string& out_dir) {
  std::error_code error;
  std::string folder;
  for (int number = 1; folder.empty() || fs::exists(folder, error); ++number)
    folder = absl::StrCat(out_dir, "/earlier-", number);
  fs::create_directory(folder, error);
  for (const char* const name :
       {"cluster.textproto", "summary.json", kFailureFile, "metrics.jsonl",
        "moves.jsonl", "modes.jsonl"}) {
    const std::string file = absl::StrCat(out_dir, "/", name);
    if (error) break;
    if (!fs::exists(file, error)) continue;
    fs::copy_file(file, absl::StrCat(folder, "/", name), error);
  }
  if (!error) fs::remove(absl::StrCat(out_dir, "/summary.json"), error);
  if (!error) fs::remove(FailurePath(out_dir), error);
  if (!error) return MoveRecording(out_dir, folder);
  return absl::UnavailableError(
      absl::StrCat("--out: the files of the earlier run could not be copied "
                   "into ",
                   folder, ": ", error.message()));
}

absl::Status MoveRecording(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const fs::path& file : RecordedTraceFiles(from)) {
    fs::rename(file, fs::path(to) / file.filename(), error);
    if (!error) continue;
    return absl::UnavailableError(absl::StrCat("--out: ", file.string(),
                                               " could not be moved into ", to,
                                               ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace slackline
