#include "tools/cli/run/local_cluster.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/cli/run/logs.h"

namespace slackline {
namespace {

std::string Program(const std::string& bin_dir, bool worker) {
  return absl::StrCat(bin_dir,
                      worker ? "/slackline_worker" : "/slackline_server");
}

}  // namespace

std::vector<std::string> LocalCluster::Command(const Options& options,
                                               const Member& member) {
  std::vector<std::string> command = {
      Program(options.bin_dir, member.worker),
      absl::StrCat("--cluster=", options.cluster_file),
      absl::StrCat("--index=", member.index)};
  if (member.worker) {
    command.push_back(absl::StrCat("--data-dir=", options.data_dir));
  }
  command.push_back(absl::StrCat("--out=", options.out_dir));
  return command;
}

absl::Status LocalCluster::CheckPrograms(const std::string& bin_dir) {
  for (const bool worker : {false, true}) {
    const std::string program = Program(bin_dir, worker);
    if (access(program.c_str(), X_OK) == 0) continue;
    return absl::NotFoundError(
        absl::StrCat(program,
                     " is not there; it is built and installed together with "
                     "slackline, --bin-dir names another folder"));
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
  for (int i = 0; i < options.servers; ++i) {
    SL_RETURN_IF_ERROR(cluster.StartMember({.worker = false, .index = i}));
  }
  for (int i = 0; i < options.workers; ++i) {
    SL_RETURN_IF_ERROR(cluster.StartMember({.worker = true, .index = i}));
  }
  return cluster;
}

absl::Status LocalCluster::StartMember(const Member& member) {
  ++starts_[member];
  absl::StatusOr<ChildProcess> child = ChildProcess::Start(
      {.command = Command(options_, member), .log_path = LogPath(member)});
  if (!child.ok()) return child.status();
  children_.insert_or_assign(member, *std::move(child));
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const Member& member) {
  return Annotate(StartMember(member), member.ToString());
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

void LocalCluster::SignalAll(int signal) {
  for (auto& [member, child] : children_) child.Signal(signal);
}

std::string LocalCluster::LogPath(const Member& member) const {
  const int starts = starts_.at(member);
  return absl::StrCat(options_.out_dir, "/logs/",
                      member.worker ? "worker-" : "server-", member.index,
                      starts == 1 ? "" : absl::StrCat(".", starts), ".log");
}

}  // namespace slackline
