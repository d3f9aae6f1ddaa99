// How a process ended.
#pragma once

#include <cstdint>
#include <string>

namespace slackline {

struct ExitStatus {
  int code = 0;                  // Meaningful if signal is 0.
  int signal = 0;                // The one that killed the process, or 0.
  int64_t memory_bytes_max = 0;  // Resident, of the process at its largest.
  // Nobody here sent it the signal, and the kernel has killed somebody for lack
  // of memory while it ran.
  bool maybe_out_of_memory = false;

  bool ok() const { return code == 0 && signal == 0; }
  // "exited with code 1", "was killed by signal 9 (SIGKILL)", and then, if that
  // may be so, that memory ran out.
  std::string ToString() const;
};

}  // namespace slackline
