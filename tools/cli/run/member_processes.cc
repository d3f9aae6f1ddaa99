#include "tools/cli/run/member_processes.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/process/member_environment.h"
#include "common/status.h"

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

absl::Status MemberProcesses::Start(const Member& member, MemberLaunch launch,
                                    const std::string& log_path, bool forked) {
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
          ? fork_server_->Start(launch.command, log_path)
          : ChildProcess::Start({.command = launch.command,
                                 .log_path = log_path,
                                 .environment = launch.environment}));
  children_.insert_or_assign(member, std::move(child));
  return absl::OkStatus();
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

void MemberProcesses::Signal(const Member& member, int signal) {
  const auto found = children_.find(member);
  if (found != children_.end()) found->second.Signal(signal);
}

void MemberProcesses::SignalAllBut(const std::optional<Member>& member,
                                   int signal) {
  for (auto& [other, child] : children_) {
    if (other != member) child.Signal(signal);
  }
}

bool MemberProcesses::AnyRuns() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const auto& child) { return child.second.running(); });
}

int MemberProcesses::PidOf(const Member& member) const {
  const auto found = children_.find(member);
  return found == children_.end() ? 0 : found->second.pid();
}

}  // namespace slackline
