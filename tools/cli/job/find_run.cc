#include "tools/cli/job/find_run.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/shell_line.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/run/run_lock.h"
#include "tools/cli/run/run_records.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Each has a config; sorted.
std::vector<std::string> FoldersOfRuns() {
  std::vector<std::string> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    std::error_code ignored;
    const std::string folder = entry.path().string();
    if (IsRunFolder(folder) &&
        fs::is_regular_file(ClusterFileOf(folder), ignored)) {
      folders.push_back(folder);
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

std::string MissingConfigHint(const std::string& given) {
  std::error_code error;
  if (fs::exists(given, error)) return "";
  const std::string name = fs::path(given).filename().string();
  // Those of the job NAME begin with NAME-MODE-TIME, so the last is the newest.
  std::vector<std::string> meant;
  for (const std::string& folder : FoldersOfRuns()) {
    const std::string of = fs::path(folder).filename().string();
    if (of == name) return absl::StrCat("; did you mean ", folder, "?");
    if (absl::StartsWith(of, absl::StrCat(name, "-"))) meant.push_back(folder);
  }
  if (meant.empty()) {
    return "; name the config of the job, or the folder of its run, as in "
           "runs/NAME";
  }
  return absl::StrCat(
      "; did you mean ", meant.back(), "?",
      meant.size() == 1
          ? ""
          : absl::StrCat(" (the last of ", meant.size(), " in runs)"));
}

std::vector<std::string> RunningRunsOf(const std::string& job) {
  std::vector<std::string> running;
  for (const std::string& folder : FoldersOfRuns()) {
    const std::string file = ClusterFileOf(folder);
    if (RunLock::HolderOf(file) != RunLock::Holder::kLives ||
        HasEnded(folder)) {
      continue;
    }
    const absl::StatusOr<config::ClusterConfig> config = LoadJobConfig(file);
    if (config.ok() && config->job() == job) running.push_back(folder);
  }
  return running;
}

std::string LostRunText(const std::string& folder) {
  const std::string file = ClusterFileOf(folder);
  const absl::StatusOr<config::ClusterConfig> config = LoadJobConfig(file);
  if (!config.ok() || RunLock::HolderOf(file) != RunLock::Holder::kGone)
    return "";
  const bool has_checkpoint =
      HasCheckpoint(CheckpointRoot(*config, folder), [&](const auto& manifest) {
        return HasRecordsOf(folder, manifest.run()).value_or(false);
      });
  std::vector<std::string> command = {"slackline", "run", file, "--out",
                                      folder};
  if (!has_checkpoint) command.emplace_back("--new-run");
  const RecordsEnd end =
      PutRecordsOf(folder, /*from_step=*/0, /*summary=*/nullptr);
  return absl::StrCat(
      "the `slackline run` of ", folder,
      " has ended without summary.json and failure.txt, which it leaves at "
      "every end that it sees: it was killed by SIGKILL, as when memory runs "
      "out, or its host went down, and its processes end with it; ",
      end.records == 0 ? "there are no records, so the job has hardly begun"
                       : absl::StrCat("its records end at ", end.ToString()),
      "; see the logs in ", folder, "/logs\nto ",
      has_checkpoint ? "go on from its last checkpoint: "
                     : "begin again, since it has no checkpoint: ",
      ShellLine(command));
}

}  // namespace slackline
