// Servers and workers as child processes of this program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/cli/fork_server_client.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/members/supervisor.h"
#include "tools/cli/process.h"

namespace slackline {

// Belongs to the thread that made it; its end is the end of all processes.
class MemberProcesses {
 public:
  // Begins to load the program whose processes are `forked`.
  void LoadForkServer(const std::string& program);
  // Processes that are started from here on load their programs themselves.
  void EndForks() { fork_server_.reset(); }

  struct Log {
    std::string path;       // Appended to.
    int64_t bytes_max = 0;  // Beyond that PutLongLogsAside(); 0: never.
  };
  // `forked`: the fork server makes it, if there is one. Of a member that has
  // ended, or was never started.
  absl::Status Start(const JobProcess& member, MemberLaunch launch,
                     const Log& log, bool forked);
  // Puts logs aside that have become longer than their bound, and returns their
  // paths. A log that cannot be put aside goes on, and is tried again when it
  // has grown by as much once more. Takes microseconds where there is none.
  std::vector<std::string> PutLongLogsAside();
  // Those that have ended since the last call, without a line of their logs.
  std::vector<MemberExit> Reap();
  void Signal(const JobProcess& member, int signal);
  void SignalAllBut(const std::optional<JobProcess>& member, int signal);
  bool AnyRuns() const;
  // 0: it was never started.
  int PidOf(const JobProcess& member) const;

 private:
  std::optional<ForkServerClient> fork_server_;
  std::map<JobProcess, ChildProcess> children_;
  struct GrowingLog {
    Log log;
    int64_t aside_above = 0;  // Bytes.
  };
  std::map<JobProcess, GrowingLog> logs_;
};

}  // namespace slackline
