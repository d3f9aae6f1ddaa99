// Servers and workers as child processes of this program.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/cli/fork_server_client.h"
#include "tools/cli/process.h"
#include "tools/cli/run/member_launch.h"
#include "tools/cli/run/supervisor.h"

namespace slackline {

// Belongs to the thread that made it; its end is the end of all processes.
class MemberProcesses {
 public:
  // Begins to load the program whose processes are `forked`.
  void LoadForkServer(const std::string& program);
  // Processes that are started from here on load their programs themselves.
  void EndForks() { fork_server_.reset(); }

  // `log_path` is appended to. `forked`: the fork server makes it, if there is
  // one. Of a member that has ended, or was never started.
  absl::Status Start(const Member& member, MemberLaunch launch,
                     const std::string& log_path, bool forked);
  // Those that have ended since the last call, without a line of their logs.
  std::vector<MemberExit> Reap();
  void Signal(const Member& member, int signal);
  void SignalAllBut(const std::optional<Member>& member, int signal);
  bool AnyRuns() const;
  // 0: it was never started.
  int PidOf(const Member& member) const;

 private:
  std::optional<ForkServerClient> fork_server_;
  std::map<Member, ChildProcess> children_;
};

}  // namespace slackline
