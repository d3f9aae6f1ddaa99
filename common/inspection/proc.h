// What the kernel says in /proc of processes and their threads, and of what
// they wait for. Linux. What cannot be read is left out.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace slackline {

struct ProcTask {
  pid_t id = 0;
  std::string name;  // As the thread is named; printable ASCII.
  char state = '?';  // Of proc(5): 'R', 'S', 'D', 'T', 'Z'.
  absl::Duration processor_time;
  absl::Duration age;
  // "futex": what it has called; of a function of the kernel's if there is no
  // more. Empty: it is not known, or it runs.
  std::string waits_in;
};
// "sleeping" for 'S'.
std::string StateText(char state);

// The first `tasks_max` threads of a process; the one that began it is first.
std::vector<ProcTask> TasksOf(pid_t process, size_t tasks_max);
// That one alone; nullopt: there is no such process (any more).
std::optional<ProcTask> FirstTaskOf(pid_t process);

// The signals of the thread that began the process. Signal n is bit n - 1.
struct SignalSets {
  uint64_t pending = 0;
  uint64_t blocked = 0;
  uint64_t caught = 0;  // By the process.
  bool IsPending(int signal) const { return Has(pending, signal); }
  bool IsBlocked(int signal) const { return Has(blocked, signal); }
  bool IsCaught(int signal) const { return Has(caught, signal); }

 private:
  static bool Has(uint64_t set, int signal) {
    return (set >> (signal - 1) & 1) != 0;
  }
};
std::optional<SignalSets> SignalsOf(pid_t process);

// The processes that this one has started, and those that they have, with what
// is nearest first; at most so many.
std::vector<pid_t> DescendantsOf(pid_t process, size_t processes_max);

}  // namespace slackline
