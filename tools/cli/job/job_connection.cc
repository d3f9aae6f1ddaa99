#include "tools/cli/job/job_connection.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/process/job_key.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/cli/job/at_once.h"
#include "tools/cli/job/lost_run.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/reach.h"
#include "tools/cli/job/summary_table.h"

namespace slackline {

namespace fs = std::filesystem;

KeyPlace KeyPlaceOf(KeyPlace place, const std::string& config) {
  if (!place.given.empty() || !IsRunFolder(config)) return place;
  std::string file = JobKeyFileOf(config);
  std::error_code error;
  if (fs::exists(file, error)) place.given = std::move(file);
  return place;
}

absl::StatusOr<std::optional<KeySource>> KeyOfJob(
    const KeyPlace& place, const std::string& path,
    const config::ClusterConfig& config) {
  return KeysHere(config, Role::kOperator, KeyPlaceOf(place, path));
}

namespace {

// What is where the coordinator may be.
struct Places {
  std::string text;       // "\n  tcp://..." for each address.
  bool is_nobody = true;  // All their hosts say that nobody listens there.
};
Places LookAt(const std::vector<std::string>& endpoints) {
  constexpr absl::Duration kLookMax = absl::Seconds(1);
  std::vector<Reach> reached(endpoints.size());
  std::vector<std::string> details(endpoints.size());
  ForEachAtOnce(endpoints.size(), [&](size_t i) {
    reached[i] = TryToReach(endpoints[i], kLookMax, &details[i]);
  });
  Places places;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    places.is_nobody &= reached[i] == Reach::kRefused;
    absl::StrAppend(&places.text, "\n  ",
                    ReachText(reached[i], endpoints[i], details[i]));
  }
  return places;
}

// How the job is found by the folder of its run, of which this config is not:
// by the newest one that has not ended in the folder in which `slackline run`
// makes them, if there is one.
std::string ByItsFolder(const std::string& job) {
  std::string newest = "runs/NAME";
  std::error_code error;
  fs::file_time_type newest_at = fs::file_time_type::min();
  // A disk that fails here ends the search, and nothing else.
  fs::directory_iterator at("runs", error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string folder = at->path().string();
    std::error_code none;
    const fs::file_time_type written =
        fs::last_write_time(ClusterFileOf(folder), none);
    if (none || written <= newest_at || HasEnded(folder)) continue;
    const absl::StatusOr<config::ClusterConfig> config =
        LoadJobConfig(ClusterFileOf(folder));
    if (!config.ok() || config->job() != job) continue;
    newest = folder;
    newest_at = written;
  }
  return absl::StrCat(
      "; one that `slackline run` has started has its address in the folder of "
      "the run, as in `",
      ShellLine({"slackline", "status", newest}), "`");
}

// Only `slackline run` and `slackline servers add` write logs into the folder.
std::string WhereLogsAre(const std::string& folder) {
  const fs::path logs = fs::path(folder) / "logs";
  std::error_code error;
  return fs::is_directory(logs, error)
             ? absl::StrCat("see the logs in ", logs.string())
             : "they were not started by `slackline run`, so their logs are "
               "where whoever started them has sent what they write to stderr";
}

// Why nobody answers for the run in this folder.
std::string WhyNobodyOf(const std::string& folder, bool is_nobody) {
  const std::string lost = is_nobody ? LostRunText(folder) : "";
  if (lost.empty()) {
    return absl::StrCat(folder,
                        " has no summary.json: the job has not begun, or its "
                        "processes were killed; ",
                        WhereLogsAre(folder));
  }
  return absl::StrCat("unless its coordinator is being started again now, ",
                      lost, "; ", LostRunAdvice(folder), "; ",
                      WhereLogsAre(folder));
}

}  // namespace

absl::StatusOr<JobConnection> JobConnection::Open(const JobOptions& options) {
  if (HasEnded(options.config)) {
    SL_ASSIGN_OR_RETURN(const RunResult run, ReadRunResult(options.config));
    return absl::FailedPreconditionError(absl::StrCat(
        "the run in ", options.config, " has ended: ", EndText(run.summary)));
  }
  if (const std::string waits = WaitsInSlurm(options.config); !waits.empty())
    return absl::FailedPreconditionError(waits);
  absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(ClusterFileOf(options.config));
  if (!config.ok()) {
    return absl::InvalidArgumentError(config.status().message());
  }
  SL_ASSIGN_OR_RETURN(const std::optional<KeySource> keys,
                      KeyOfJob(options.key, options.config, *config));
  SL_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorClient> client,
                      CoordinatorClient::Connect(CoordinatorEndpoints(*config),
                                                 config->job(), keys));
  JobConnection job(options, *std::move(config), std::move(client));
  const absl::Status asked = job.Refresh();
  if (absl::IsDeadlineExceeded(asked)) {
    const Places places = LookAt(CoordinatorEndpoints(job.config()));
    return absl::DeadlineExceededError(absl::StrCat(
        asked.message(),
        IsRunFolder(options.config)
            ? absl::StrCat(", and ",
                           WhyNobodyOf(options.config, places.is_nobody))
            : ByItsFolder(job.config().job()),
        places.text));
  }
  SL_RETURN_IF_ERROR(asked);
  return job;
}

absl::Status JobConnection::Refresh() {
  SL_ASSIGN_OR_RETURN(wire::StatusReply status,
                      client_->GetStatus(options_.wait_max));
  if (status.view().job() != config_.job()) {
    return absl::FailedPreconditionError(absl::StrCat(
        CoordinatorEndpointAt(config_, 0), " is the coordinator of job '",
        status.view().job(), "', not of '", config_.job(), "'",
        IsRunFolder(options_.config) ? "" : ByItsFolder(config_.job())));
  }
  status_ = std::move(status);
  return absl::OkStatus();
}

bool IsOver(const wire::View& view) {
  return view.state() == wire::FINISHED || view.state() == wire::FAILED;
}

std::string EndText(const wire::View& view) {
  if (view.end().cause() == wire::JobEnd::SUSPENDED)
    return absl::StrCat("suspended: ", view.end().reason());
  return view.state() == wire::FAILED && !view.end().reason().empty()
             ? absl::StrCat("failed: ", view.end().reason())
             : StateName(view.state());
}

}  // namespace slackline
