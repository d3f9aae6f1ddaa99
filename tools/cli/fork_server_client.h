// Starts processes of a program that loads slowly, with one load for all
// (common/process/fork_server.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "tools/cli/process.h"

namespace slackline {

// Belongs to the thread that made it, as its processes do; they outlive it.
class ForkServerClient {
 public:
  // Begins to load the program (a path; no search), whose main() begins with
  // ForkServerArguments. What goes wrong shows in Start().
  explicit ForkServerClient(const std::string& program);

  // As ChildProcess::Start() of `command`, whose first word is the program. If
  // the fork server cannot make a process, for whatever reason, the program is
  // started: it says best itself what is wrong.
  absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command,
                                     const std::string& log_path);

 private:
  // nullopt: it cannot.
  std::optional<pid_t> Fork(const std::vector<std::string>& command, int log);

  Descriptor socket_;
  std::optional<ChildProcess> server_;
};

}  // namespace slackline
