#include "tools/cli/members/member_processes.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/process/member_environment.h"
#include "common/status.h"
#include "tools/cli/members/logs.h"

namespace slackline {
namespace {

// A program may change its folder before it reads its environment.
std::string Absolute(const std::string& path) {
  std::error_code ignored;
  return path.empty() ? path
                      : std::filesystem::absolute(path, ignored).string();
}

}  // namespace

void MemberProcesses::LoadForkServer(const std::string& program) {
  fork_server_.emplace(program);
}

absl::Status MemberProcesses::Start(const JobProcess& member,
                                    MemberLaunch launch, const Log& log,
                                    bool forked) {
  for (const char* const name :
       {kClusterVariable, kOutVariable, kDataDirVariable}) {
    const auto found = launch.environment.find(name);
    if (found != launch.environment.end())
      found->second = Absolute(found->second);
  }
  SL_ASSIGN_OR_RETURN(launch.command[0], FindProgram(launch.command[0]));
  SL_ASSIGN_OR_RETURN(
      ChildProcess child,
      forked && fork_server_.has_value()
          ? fork_server_->Start(launch.command, log.path)
          : ChildProcess::Start({.command = launch.command,
                                 .log_path = log.path,
                                 .environment = launch.environment}));
  children_.insert_or_assign(member, std::move(child));
  logs_[member] = {.log = log, .aside_above = log.bytes_max};
  return absl::OkStatus();
}

std::vector<std::string> MemberProcesses::PutLongLogsAside() {
  std::vector<std::string> aside;
  for (auto& [member, growing] : logs_) {
    if (growing.log.bytes_max == 0) continue;
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(growing.log.path, error);
    if (error || bytes <= static_cast<uintmax_t>(growing.aside_above)) continue;
    if (PutLogAside(growing.log.path).ok()) {
      growing.aside_above = growing.log.bytes_max;
      aside.push_back(growing.log.path);
    } else {
      growing.aside_above = static_cast<int64_t>(bytes) + growing.log.bytes_max;
    }
  }
  return aside;
}

std::vector<MemberExit> MemberProcesses::Reap() {
  std::vector<MemberExit> exits;
  for (auto& [member, child] : children_) {
    const std::optional<ExitStatus> status = child.Poll();
    if (!status.has_value()) continue;
    exits.push_back({.member = member,
                     .pid = child.pid(),
                     .status = *status,
                     .error_line = {}});
  }
  return exits;
}

void MemberProcesses::Signal(const JobProcess& member, int signal) {
  const auto found = children_.find(member);
  if (found != children_.end()) found->second.Signal(signal);
}

void MemberProcesses::SignalAllBut(const std::optional<JobProcess>& member,
                                   int signal) {
  for (auto& [other, child] : children_) {
    if (other != member) child.Signal(signal);
  }
}

bool MemberProcesses::AnyRuns() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const auto& child) { return child.second.running(); });
}

int MemberProcesses::PidOf(const JobProcess& member) const {
  const auto found = children_.find(member);
  return found == children_.end() ? 0 : found->second.pid();
}

}  // namespace slackline
