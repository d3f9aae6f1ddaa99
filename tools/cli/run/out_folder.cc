#include "tools/cli/run/out_folder.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/time/time_source.h"

namespace slackline {

namespace fs = std::filesystem;

std::string RunName(const std::string& job, const std::string& mode,
                    absl::Time now) {
  const bool phases = absl::StrContains(mode, ' ');
  return absl::StrCat(
      job, "-", phases ? "phases" : absl::StrReplaceAll(mode, {{":", "-"}}),
      "-", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
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
  const bool empty = !error && fs::is_empty(out_dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "--out: folder ", out_dir, " cannot be made: ", error.message()));
  }
  if (!empty) {
    return absl::AlreadyExistsError(
        absl::StrCat("--out: folder ", out_dir,
                     " is not empty, and runs are never overwritten; choose "
                     "another or remove it"));
  }
  return out_dir;
}

}  // namespace slackline
