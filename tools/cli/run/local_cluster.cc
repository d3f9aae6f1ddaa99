#include "tools/cli/run/local_cluster.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"
#include "common/process/member_environment.h"
#include "common/status.h"
#include "tools/cli/installed.h"
#include "tools/cli/run/logs.h"

namespace slackline {
namespace {

constexpr char kServerProgram[] = "slackline_server";
constexpr char kWorkerProgram[] = "slackline_worker";

// A program may change its folder before it reads its environment.
std::string Absolute(const std::string& path) {
  std::error_code ignored;
  return path.empty() ? path
                      : std::filesystem::absolute(path, ignored).string();
}

}  // namespace

LocalCluster::Launch LocalCluster::LaunchOf(const Options& options,
                                            const Member& member) {
  const std::string& own =
      member.worker ? options.workers[member.index].command : std::string();
  if (!own.empty()) {
    const auto words = SplitShellLine(own);
    SL_CHECK(words.ok(), "the config's checks have seen the command");
    return {.command = *words,
            .environment = {{kClusterVariable, options.cluster_file},
                            {kIndexVariable, absl::StrCat(member.index)},
                            {kOutVariable, options.out_dir},
                            {kDataDirVariable, options.data_dir}}};
  }
  Launch launch = {
      .command = {absl::StrCat(options.bin_dir, "/",
                               member.worker ? kWorkerProgram : kServerProgram),
                  absl::StrCat("--cluster=", options.cluster_file),
                  absl::StrCat("--index=", member.index)},
      .environment = {}};
  if (member.worker) {
    launch.command.push_back(absl::StrCat("--data-dir=", options.data_dir));
  } else if (!options.resume.empty()) {
    launch.command.push_back(absl::StrCat("--resume=", options.resume));
  }
  launch.command.push_back(absl::StrCat("--out=", options.out_dir));
  if (member.worker) return launch;
  if (options.new_run && member.index == 0)
    launch.command.emplace_back("--new-run");
  if (options.recover && options.any_server_takes_over && member.index != 0)
    launch.command.emplace_back("--recover");
  return launch;
}

absl::Status LocalCluster::CheckPrograms(const std::string& bin_dir,
                                         const config::ClusterConfig& config) {
  SL_RETURN_IF_ERROR(CheckInstalled(bin_dir, kServerProgram));
  for (int i = 0; i < config.worker_size(); ++i) {
    const std::string field = absl::StrCat("worker[", i, "].command");
    if (config.worker(i).has_command()) {
      const auto words = SplitShellLine(config.worker(i).command());
      SL_CHECK(words.ok(), "the config's checks have seen the command");
      SL_RETURN_IF_ERROR(Annotate(FindProgram(words->front()).status(), field));
    } else if (config.has_model()) {
      SL_RETURN_IF_ERROR(CheckInstalled(bin_dir, kWorkerProgram));
    } else {
      return absl::FailedPreconditionError(absl::StrCat(
          field,
          ": is missing; the config has no model and data, so its workers are "
          "programs of their own: name the program there, or after --, as in "
          "slackline run CONFIG -- python3 train.py"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalCluster> LocalCluster::Start(const Options& options) {
  const std::string logs = absl::StrCat(options.out_dir, "/logs");
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("folder ", logs, " cannot be made: ", error.message()));
  }
  LocalCluster cluster(options);
  // Loads beside the start of the servers.
  std::optional<ForkServerClient> workers;
  if (std::any_of(options.workers.begin(), options.workers.end(),
                  [](const WorkerProcess& w) { return w.command.empty(); })) {
    workers.emplace(absl::StrCat(options.bin_dir, "/", kWorkerProgram));
  }
  const auto start = [&](const Member& member) {
    const bool forked =
        member.worker && options.workers[member.index].command.empty();
    return cluster.StartMember(member, LaunchOf(options, member),
                               forked ? &*workers : nullptr);
  };
  for (int i = 0; i < options.servers; ++i) {
    SL_RETURN_IF_ERROR(start({.worker = false, .index = i}));
  }
  for (int i = 0; i < static_cast<int>(options.workers.size()); ++i) {
    SL_RETURN_IF_ERROR(start({.worker = true, .index = i}));
  }
  return cluster;
}

absl::Status LocalCluster::StartMember(const Member& member, Launch launch,
                                       ForkServerClient* fork_server) {
  do {
    ++starts_[member];
  } while (std::filesystem::exists(LogPath(member)));
  for (auto& [name, value] : launch.environment) {
    if (name != kIndexVariable) value = Absolute(value);
  }
  SL_ASSIGN_OR_RETURN(launch.command[0], FindProgram(launch.command[0]));
  SL_ASSIGN_OR_RETURN(
      ChildProcess child,
      fork_server != nullptr
          ? fork_server->Start(launch.command, LogPath(member))
          : ChildProcess::Start({.command = launch.command,
                                 .log_path = LogPath(member),
                                 .environment = launch.environment}));
  children_.insert_or_assign(member, std::move(child));
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const Member& member) {
  Options options = options_;
  options.resume.clear();  // The checkpoint may be gone by now.
  options.new_run = false;
  options.recover = true;
  return Annotate(StartMember(member, LaunchOf(options, member), nullptr),
                  member.ToString());
}

std::vector<MemberExit> LocalCluster::Reap() {
  std::vector<MemberExit> exits;
  for (auto& [member, child] : children_) {
    const std::optional<ExitStatus> status = child.Poll();
    if (!status.has_value()) continue;
    exits.push_back({.member = member,
                     .pid = child.pid(),
                     .status = *status,
                     .error_line = ErrorLine(ReadTail(LogPath(member)))});
  }
  return exits;
}

void LocalCluster::Signal(const Member& member, int signal) {
  const auto found = children_.find(member);
  if (found != children_.end()) found->second.Signal(signal);
}

void LocalCluster::SignalAllBut(const Member& member, int signal) {
  for (auto& [other, child] : children_) {
    if (other != member) child.Signal(signal);
  }
}

std::string LocalCluster::LogPath(const Member& member) const {
  const int starts = starts_.at(member);
  return absl::StrCat(options_.out_dir, "/logs/",
                      member.worker ? "worker-" : "server-", member.index,
                      starts == 1 ? "" : absl::StrCat(".", starts), ".log");
}

}  // namespace slackline
