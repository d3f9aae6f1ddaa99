#include "tools/cli/job/servers_command.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/net/resolve.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/installed.h"
#include "tools/cli/json.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kServerProgram[] = "slackline_server";
constexpr absl::Duration kServersLookEvery = absl::Milliseconds(100);

std::vector<std::string> Command(const AddServerOptions& options, int index) {
  std::vector<std::string> command = {
      absl::StrCat(options.bin_dir, "/", kServerProgram),
      absl::StrCat("--cluster=", ClusterFileOf(options.job.config)),
      absl::StrCat("--index=", index), "--add"};
  if (!options.host.empty()) {
    command.push_back(absl::StrCat("--host=", options.host));
  }
  if (options.threads > 0) {
    command.push_back(absl::StrCat("--threads=", options.threads));
  }
  if (IsRunFolder(options.job.config)) {
    command.push_back(absl::StrCat("--out=", options.job.config));
  }
  const std::string key = KeyPlaceOf(options.job.key, options.job.config).given;
  if (!key.empty()) command.push_back(absl::StrCat("--key=", key));
  return command;
}

// A file that is not there yet: an older log would be read as this server's.
absl::StatusOr<std::string> LogPath(const AddServerOptions& options,
                                    int index) {
  if (!options.log.empty()) {
    std::error_code error;
    if (!fs::exists(options.log, error)) return options.log;
    return absl::InvalidArgumentError(absl::StrCat(
        "--log: ", options.log, " is there already; choose another file"));
  }
  fs::path folder = ".";
  std::error_code error;
  if (IsRunFolder(options.job.config)) {
    folder = fs::path(options.job.config) / "logs";
    fs::create_directories(folder, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat(
          "folder ", folder.string(), " cannot be made: ", error.message()));
    }
  }
  fs::path path = folder / absl::StrCat("server-", index, ".log");
  for (int i = 2; fs::exists(path, error); ++i) {
    path = folder / absl::StrCat("server-", index, ".", i, ".log");
  }
  return path.lexically_normal().string();
}

bool Lists(const wire::StatusReply& status, int index, pid_t pid) {
  const bool in_view =
      std::any_of(status.view().server().begin(), status.view().server().end(),
                  [&](const wire::ServerMember& member) {
                    return member.index() == index;
                  });
  // Another one may have taken the index.
  return in_view && std::any_of(status.server().begin(), status.server().end(),
                                [&](const run::ServerStats& stats) {
                                  return stats.index() == index &&
                                         stats.pid() == pid;
                                });
}

// Until the coordinator lists the child.
absl::Status AwaitMember(JobConnection* job, int index, const std::string& log,
                         ChildProcess* child) {
  const absl::Duration wait_max =
      absl::Milliseconds(job->config().limits().start_timeout_ms());
  const absl::Time deadline = TimeSource().Now() + wait_max;
  while (TimeSource().Now() < deadline) {
    if (const std::optional<ExitStatus> exit = child->Poll()) {
      const std::string error_line = ErrorLine(ReadTail(log));
      return absl::AbortedError(absl::StrCat(
          "server ", index, " ", exit->ToString(), " before it was in the job",
          error_line.empty() ? "" : absl::StrCat(": ", error_line),
          " (log: ", log, ")"));
    }
    SL_RETURN_IF_ERROR(job->Refresh());
    if (Lists(job->status(), index, child->pid())) return absl::OkStatus();
    absl::SleepFor(kServersLookEvery);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the coordinator has not taken server ", index, " into the job within ",
      absl::ToInt64Milliseconds(wait_max),
      " ms (limits.start_timeout_ms); it was ended again, see its log ", log));
}

// How the new server gets something to do.
std::string NextStep(const AddServerOptions& options,
                     config::Rebalance::Mode mode) {
  switch (mode) {
    case config::Rebalance::AUTO:
      return "the coordinator moves shards to it by itself";
    case config::Rebalance::OFF:
      return "it stays without shards, since the config has rebalance { mode: "
             "OFF }";
    default:
      return absl::StrCat("it has no shards yet; `slackline rebalance ",
                          options.job.config, "` gives it some");
  }
}

// The new server is on this machine, and its address is the last server's
// unless one is given.
absl::Status CheckHost(const AddServerOptions& options,
                       const config::ClusterConfig& config) {
  if (!options.host.empty()) return absl::OkStatus();
  const std::string last = ServerProcesses(config).back().host;
  const absl::StatusOr<std::string> address = ResolveHost(last);
  if (!address.ok() || IsOwnAddress(*address, OwnAddresses()))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--host: the server is started on this machine, and the last one of the "
      "job is on ",
      last, "; give the name or address by which others reach this machine"));
}

absl::Status Add(const AddServerOptions& options) {
  SL_RETURN_IF_ERROR(CheckInstalled(options.bin_dir, kServerProgram));
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  const wire::View& view = job.status().view();
  if (view.state() != wire::RUNNING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", view.job(), " is ", EndText(view),
                     "; a server can be added while it is running"));
  }
  SL_RETURN_IF_ERROR(CheckHost(options, job.config()));
  const int index = job.status().next_server();
  SL_ASSIGN_OR_RETURN(const std::string log, LogPath(options, index));
  SL_ASSIGN_OR_RETURN(ChildProcess child,
                      ChildProcess::Start({.command = Command(options, index),
                                           .log_path = log,
                                           .detached = true}));
  SL_RETURN_IF_ERROR(AwaitMember(&job, index, log, &child));
  child.Release();
  if (options.json) {
    PrintJson({{"job", job.config().job()},
               {"server", index},
               {"pid", child.pid()},
               {"log", log}});
    return absl::OkStatus();
  }
  PrintResult(
      absl::StrCat("server ", index, " (pid ", child.pid(), ") is in job ",
                   job.config().job(), "; log: ", log, "\n",
                   NextStep(options, job.config().rebalance().mode()), "\n"));
  return absl::OkStatus();
}

}  // namespace

int AddServer(const AddServerOptions& options) {
  const absl::Status added = Add(options);
  return added.ok() ? kExitDone : Fail("servers add", added);
}

}  // namespace slackline
