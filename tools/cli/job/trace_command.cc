#include "tools/cli/job/trace_command.h"

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/display.h"
#include "tools/cli/job/timeline_collection.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kTraceLookEvery = absl::Milliseconds(100);
// Of members that are only slow: the others have told long before.
constexpr absl::Duration kTraceWaitMax = absl::Seconds(60);

using Profiles = std::map<int32_t, std::string>;  // By rank.

absl::StatusOr<Profiles> ProfilesOf(const std::vector<std::string>& given,
                                    const config::ClusterConfig& config) {
  const size_t workers = WorkerProcesses(config).size();
  Profiles profiles;
  for (const std::string& text : given) {
    const size_t equals = text.find('=');
    int32_t rank = -1;
    if (equals == std::string::npos ||
        !absl::SimpleAtoi(text.substr(0, equals), &rank)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--profile: '", text, "' is not RANK=FILE, as in 0=trace.json"));
    }
    if (rank < 0 || static_cast<size_t>(rank) >= workers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--profile: rank ", rank, " is outside [0, ", workers,
                       "), the workers of the job"));
    }
    // It may be written only while the job is recorded.
    if (!profiles.emplace(rank, text.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--profile: rank ", rank, " is given twice; it has one profile"));
    }
  }
  return profiles;
}

absl::Status Trace(const TraceOptions& options) {
  std::string path = options.out;
  if (path.empty()) {
    path = TimelineName(TimeSource().WallNow());
    if (IsRunFolder(options.job.config))
      path = (fs::path(options.job.config) / path).string();
  }
  SL_RETURN_IF_ERROR(CheckTimelinePath(path));
  // Before the connection, whose threads must not take the signals.
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SL_ASSIGN_OR_RETURN(Profiles profiles,
                      ProfilesOf(options.profiles, job.config()));
  SL_ASSIGN_OR_RETURN(
      const std::unique_ptr<TimelineCollection> collection,
      TimelineCollection::Begin(
          &job.client(),
          {.time = options.time, .path = path, .profiles = std::move(profiles)},
          job.wait_max()));
  Display display(absl::ZeroDuration());
  const bool forms = job.status().view().state() == wire::FORMING;
  const absl::Time give_up =
      TimeSource().Now() + options.time + kTraceWaitMax +
      absl::Milliseconds(forms ? job.config().limits().start_timeout_ms() : 0);
  std::string cut_short;
  bool by_user = false;
  while (!collection->over()) {
    const absl::StatusOr<bool> took = collection->ReceivePart(job.wait_max());
    if (!took.ok()) {
      // The job may have ended meanwhile, with its coordinator.
      if (collection->parts() == 0) return took.status();
      cut_short =
          absl::StrCat("only a part of it has come: ", took.status().message());
      break;
    }
    if (*took) continue;
    display.ShowState(collection->Line(TimeSource().Now()));
    if (TimeSource().Now() > give_up) break;
    if (signals->Wait(kTraceLookEvery).all() > 0) {
      cut_short = "ended early by the user";
      by_user = true;
      break;
    }
  }
  display.Redraw({});
  SL_ASSIGN_OR_RETURN(const std::string text, collection->Finish());
  if (!cut_short.empty()) display.Print(cut_short);
  PrintResult(absl::StrCat(text, "\n"));
  // Workers answer when the time is over.
  if (collection->worker_parts() > 0 || by_user) return absl::OkStatus();
  const std::string missing = collection->Missing();
  return absl::DeadlineExceededError(absl::StrCat(
      "no worker has answered",
      missing.empty() ? ""
                      : absl::StrCat(" (nothing has come of ", missing, ")"),
      ", so the file has only what servers and the coordinator did: ",
      "`slackline status ", options.job.config, "` says who is there"));
}

}  // namespace

int TraceJob(const TraceOptions& options) {
  const absl::Status traced = Trace(options);
  return traced.ok() ? kExitDone : Fail("trace", traced);
}

}  // namespace slackline
