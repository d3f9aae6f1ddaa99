// How a process ended.
#pragma once

#include <string>

namespace slackline {

struct ExitStatus {
  int code = 0;    // Meaningful if signal is 0.
  int signal = 0;  // The one that killed the process, or 0.

  bool ok() const { return code == 0 && signal == 0; }
  // "exited with code 1", "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

}  // namespace slackline
