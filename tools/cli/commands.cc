#include "tools/cli/commands.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tools/cli/command_output.h"
#include "tools/cli/data_location.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/summary_table.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> DataDirOrCache(const std::string& data_dir) {
  if (!data_dir.empty()) return data_dir;
  return CacheDataDir();
}

}  // namespace

int ShowStatus(const StatusOptions& options) {
  const absl::StatusOr<JobConnection> job = JobConnection::Open(options.job);
  if (!job.ok()) return Fail("status", job.status());
  PrintResult(options.json ? StatusJson(job->status())
                           : StatusTable(job->status(), options.table));
  return kExitDone;
}

int StopJob(const StopOptions& options) {
  absl::StatusOr<JobConnection> job = JobConnection::Open(options.job);
  if (!job.ok()) return Fail("stop", job.status());
  const absl::Status stopped =
      job->client().Stop(options.reason, job->wait_max());
  if (!stopped.ok()) return Fail("stop", stopped);
  PrintResult(absl::StrCat("job ", job->config().job(),
                           " stops: ", options.reason, "\n"));
  return kExitDone;
}

int ShowSummaries(const std::vector<std::string>& folders) {
  std::vector<RunResult> runs;
  int exit_code = kExitDone;
  for (const std::string& folder : folders) {
    const absl::StatusOr<RunResult> run = ReadRunResult(folder);
    if (run.ok()) {
      runs.push_back(*run);
    } else {
      exit_code = Fail("summary", run.status());
    }
  }
  if (!runs.empty()) PrintResult(SummaryTable(runs));
  return exit_code;
}

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
