#include "tools/cli/data/data_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "tools/cli/command_output.h"
#include "tools/cli/data/data_location.h"
#include "tools/cli/json.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> DataDirOrCache(const std::string& data_dir) {
  if (!data_dir.empty()) return data_dir;
  return CacheDataDir();
}

void PrintPlace(const DataOptions& options, const std::string& data_dir,
                const std::string& folder, const std::string& sentence) {
  if (options.json) {
    PrintJson({{"folder", folder}, {"data_dir", data_dir}});
  } else {
    PrintResult(absl::StrCat(sentence, " is in ", folder,
                             "; use it with --data-dir ", data_dir, "\n"));
  }
}

}  // namespace

int FetchDataSet(const std::string& name, const DataOptions& options) {
  const absl::StatusOr<std::string> dir = DataDirOrCache(options.data_dir);
  if (!dir.ok()) return Fail("data fetch", dir.status());
  if (name == "a9a") {
    return Fail("data fetch", absl::UnimplementedError(A9aHelp(*dir)));
  }
  if (name != kMnistFolder) {
    return Fail("data fetch",
                absl::InvalidArgumentError(absl::StrCat(
                    "data set '", name, "' is not known; mnist and a9a are")));
  }
  const std::string folder = (fs::path(*dir) / kMnistFolder).string();
  const absl::Status fetched = FetchMnist(folder, Say);
  if (!fetched.ok()) return Fail("data fetch", fetched);
  PrintPlace(options, *dir, folder, "MNIST");
  return kExitDone;
}

int WriteStandIn(const DataOptions& options) {
  const std::string folder =
      (fs::path(options.data_dir) / kMnistFolder).string();
  const absl::Status written = WriteStandInMnist(folder, StandInOptions());
  if (!written.ok()) return Fail("data stand-in", written);
  PrintPlace(options, options.data_dir, folder,
             "a generated stand-in for MNIST, which is not MNIST,");
  return kExitDone;
}

}  // namespace slackline
