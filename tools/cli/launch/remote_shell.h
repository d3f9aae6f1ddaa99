// How a command is started on another host: all that engines differ in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"

namespace slackline {

struct RemoteShell {
  std::string name;  // As --on takes it: "ssh".
  // The command here whose stdin and stdout are those of `command` on the host.
  std::function<std::vector<std::string>(
      const std::string& host, const std::vector<std::string>& command)>
      line;
  // What to do about `output`, what the command has said before any agent
  // answered; empty: it says so itself.
  std::function<std::string(const std::string& host, absl::string_view output)>
      advice;
};

// Of the config's launch block. An empty name: the processes are started here.
// That of Ray has no line: RayBridge::Shell() leads to the nodes that it gives.
RemoteShell ShellOf(const config::Launch& launch);

RemoteShell SshShell(const config::Ssh& ssh);
RemoteShell SlurmShell(const config::Slurm& slurm);

}  // namespace slackline
