#include "tools/cli/commands.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "tools/cli/coordinator_client.h"
#include "tools/cli/data_location.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/status_table.h"
#include "tools/cli/summary_table.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

void PrintResult(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void Say(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

int Fail(absl::string_view command, const absl::Status& status,
         int exit_code = kExitFailed) {
  Say(absl::StrCat("slackline ", command, ": ", status.message()));
  return exit_code;
}

absl::StatusOr<config::ClusterConfig> LoadConfigOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return LoadClusterConfig(path);
  return LoadClusterConfig((fs::path(path) / "cluster.textproto").string());
}

absl::StatusOr<std::string> DataDirOrCache(const std::string& data_dir) {
  if (!data_dir.empty()) return data_dir;
  return CacheDataDir();
}

}  // namespace

int ShowStatus(const StatusOptions& options) {
  const absl::StatusOr<config::ClusterConfig> config =
      LoadConfigOf(options.config);
  if (!config.ok()) return Fail("status", config.status(), kExitUsage);
  const auto client = CoordinatorClient::Connect(CoordinatorEndpoint(*config));
  if (!client.ok()) return Fail("status", client.status());
  const absl::StatusOr<wire::StatusReply> status =
      (*client)->GetStatus(options.wait_max);
  if (!status.ok()) return Fail("status", status.status());
  if (status->view().job() != config->job()) {
    return Fail(
        "status",
        absl::FailedPreconditionError(absl::StrCat(
            CoordinatorEndpoint(*config), " is the coordinator of job '",
            status->view().job(), "', not of '", config->job(), "'")));
  }
  PrintResult(options.json ? StatusJson(*status) : StatusTable(*status));
  return kExitDone;
}

int StopJob(const StopOptions& options) {
  const absl::StatusOr<config::ClusterConfig> config =
      LoadConfigOf(options.config);
  if (!config.ok()) return Fail("stop", config.status(), kExitUsage);
  const std::string endpoint = CoordinatorEndpoint(*config);
  const auto client = CoordinatorClient::Connect(endpoint);
  if (!client.ok()) return Fail("stop", client.status());
  // First a look at who is there: another job is not ours to stop.
  const absl::StatusOr<wire::StatusReply> status =
      (*client)->GetStatus(options.wait_max);
  if (!status.ok()) return Fail("stop", status.status());
  const wire::View& view = status->view();
  if (view.job() != config->job()) {
    return Fail("stop", absl::FailedPreconditionError(absl::StrCat(
                            endpoint, " is the coordinator of job '",
                            view.job(), "', not of '", config->job(), "'")));
  }
  const absl::Status stopped =
      (*client)->Stop(options.reason, options.wait_max);
  if (!stopped.ok()) return Fail("stop", stopped);
  PrintResult(
      absl::StrCat("job ", view.job(), " stops: ", options.reason, "\n"));
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
                    "data set '", name, "' is not known; mnist and a9a are")),
                kExitUsage);
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
