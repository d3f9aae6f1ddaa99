#include "tools/cli/job/run_folder.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/launch/slurm_script.h"

namespace slackline {

namespace fs = std::filesystem;

bool IsRunFolder(const std::string& config) {
  std::error_code error;
  return fs::is_directory(config, error);
}

std::string ClusterFileOf(const std::string& config) {
  if (!IsRunFolder(config)) return config;
  return (fs::path(config) / "cluster.textproto").string();
}

bool HasEnded(const std::string& config) {
  return IsRunFolder(config) &&
         !absl::IsNotFound(ReadRunResult(config).status());
}

std::string WaitsInSlurm(const std::string& config) {
  // A run writes its config when it begins.
  std::error_code error;
  if (!IsRunFolder(config) || fs::exists(ClusterFileOf(config), error) ||
      !fs::exists(SlurmScriptPath(config), error)) {
    return "";
  }
  return absl::StrCat("the run in ", config,
                      " has not begun: it is a job of Slurm that waits for its "
                      "turn, or has ended before it (`squeue --me`; ",
                      SlurmScriptPath(config), ")");
}

}  // namespace slackline
