#include "tools/cli/data/data_command.h"

#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/command_output.h"
#include "tools/cli/data/data_location.h"
#include "tools/cli/exit_code.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> DataDirOrCache(const std::string& data_dir) {
  if (!data_dir.empty()) return data_dir;
  return CacheDataDir();
}

}  // namespace

int FetchDataSet(const std::string& name, const std::string& data_dir) {
  const absl::StatusOr<std::string> dir = DataDirOrCache(data_dir);
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
  PrintResult(absl::StrCat("MNIST is in ", folder, "; use it with --data-dir ",
                           *dir, "\n"));
  return kExitDone;
}

int WriteStandIn(const std::string& data_dir) {
  const std::string folder = (fs::path(data_dir) / kMnistFolder).string();
  const absl::Status written = WriteStandInMnist(folder, StandInOptions());
  if (!written.ok()) return Fail("data stand-in", written);
  PrintResult(
      absl::StrCat("a generated stand-in for MNIST, which is not MNIST, is in ",
                   folder, "; use it with --data-dir ", data_dir, "\n"));
  return kExitDone;
}

}  // namespace slackline
