#include "tools/cli/data/find_data.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/cli/data/data_location.h"
#include "worker/data/stand_in.h"

namespace slackline {

absl::StatusOr<std::string> FindData(const config::ClusterConfig& config,
                                     const std::string& data_dir,
                                     Display* display) {
  if (!config.has_data()) {
    std::error_code ignored;
    if (data_dir.empty() || std::filesystem::is_directory(data_dir, ignored)) {
      return data_dir;
    }
    return absl::NotFoundError(
        absl::StrCat("--data-dir: ", data_dir, " is no folder"));
  }
  const config::Data& data = config.data();
  // Generated data need no folder, but the workers' flag wants one.
  if (data.has_teacher_student()) return data_dir.empty() ? "." : data_dir;
  DataLocationOptions location;
  location.data_dir = data_dir;
  location.say = [display](const std::string& text) { display->Print(text); };
  location.fetch_mnist = [&](const std::string& folder) {
    return FetchMnist(folder, location.say);
  };
  location.write_stand_in = [&](const std::string& folder) {
    location.say(absl::StrCat("writing a stand-in for MNIST to ", folder));
    return WriteStandInMnist(folder, StandInOptions());
  };
  if (data_dir.empty()) {
    SL_ASSIGN_OR_RETURN(location.cache_dir, CacheDataDir());
  }
  return LocateData(data, location);
}

}  // namespace slackline
