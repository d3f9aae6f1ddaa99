#include "tools/cli/launch/remote_shell.h"

namespace slackline {

RemoteShell ShellOf(const config::Launch& launch) {
  switch (launch.engine_case()) {
    case config::Launch::kSsh:
      return SshShell(launch.ssh());
    case config::Launch::kSlurm:
      return SlurmShell(launch.slurm());
    case config::Launch::kRay: {
      RemoteShell shell;
      shell.name = "ray";
      return shell;
    }
    case config::Launch::kKubernetes:  // Starts the processes itself.
    case config::Launch::kHere:
    case config::Launch::ENGINE_NOT_SET:
      break;
  }
  return {};
}

}  // namespace slackline
