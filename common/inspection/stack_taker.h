// Where the threads of this process are, and those of the processes that it has
// started: what `slackline status --stacks` shows.
//
// Of a process with Python in it the stacks come from Python's own
// faulthandler, which needs no GIL: a signal has it write them into a memfd, in
// a handler that is registered for nothing else. So they come, too, from a
// thread that holds the GIL in C, and nothing is done while nobody asks.
// Nothing is attached to anybody (ptrace).
//
// The signal would end a process that does not expect it. It is sent
//
// | to                             | if                                       |
// | ------------------------------ | ---------------------------------------- |
// | the main thread of this one    | the handler is still the one that was    |
// |                                | registered, and the memfd is still there |
// | the main thread of a process   | it is of this user, has lived for        |
// | that this one has forked       | kYoungest, catches the signal, and has   |
// |                                | the memfd under the same number          |
//
// What a process has become by exec has neither handler nor memfd, and what is
// about to call exec has not lived that long. Of all others there is one line:
// who it is, and its state. A thread that has not taken the last signal yet is
// sent no second one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/inspection/python_dump.h"
#include "common/mutex.h"
#include "common/time/time_source.h"
#include "proto/inspection.pb.h"

namespace slackline {

// Of a process with Python in it.
struct PythonStacks {
  // faulthandler has registered it, with all_threads and without chain, for
  // `descriptor`, a memfd that appends.
  int signal = 0;
  int descriptor = -1;
  PythonLibraries libraries;
  // Processes that are younger may be about to become other programs.
  absl::Duration youngest = absl::Seconds(1);
};

// A real-time signal that nothing in this process handles; nullopt: there is
// none.
std::optional<int> FreeSignal();

// Thread-safe: stacks are taken one after the other.
class StackTaker {
 public:
  // Longer texts are shortened.
  static constexpr size_t kTextBytesMax = 64 << 10;
  // What it takes to ask all processes together, and at most half of it for
  // one.
  static constexpr absl::Duration kTimeMax = absl::Seconds(1);

  explicit StackTaker(const TimeSource& time,
                      absl::Duration time_max = kTimeMax)
      : time_(time), time_max_(time_max) {}
  // Takes handler and memfd for the right ones as they are now.
  // InvalidArgument: they are not there.
  static absl::StatusOr<std::unique_ptr<StackTaker>> OfPython(
      const TimeSource& time, const PythonStacks& python,
      absl::Duration time_max = kTimeMax);
  StackTaker(const StackTaker&) = delete;
  StackTaker& operator=(const StackTaker&) = delete;

  // Any thread, but where Python is in this process not the main thread while
  // it blocks the signal.
  wire::Stacks Take();

 private:
  using Handler = void (*)(int);
  // Without initializers: Clang takes no std::optional of a nested class that
  // has some.
  struct Python {
    PythonStacks stacks;
    Handler handler;
    dev_t device;  // Of the memfd.
    ino_t file;
  };
  // Of a process that this one has started.
  struct Child {
    std::string text;
    std::string place;  // Where it loads; empty: it does not, or is not known.
  };

  // Empty, or why the signal is not sent there.
  std::string WhyUnreached(pid_t process) const;
  bool HasMemfd(pid_t process) const;
  // What a process writes. Unavailable: why there is nothing.
  absl::StatusOr<PythonDump> DumpOf(pid_t process, absl::Time until) const;
  Child LookAt(pid_t process, absl::Time until) const;

  const TimeSource time_;
  const absl::Duration time_max_;
  std::optional<Python> python_;  // Fixed after construction.
  Mutex taking_;                  // The memfd is one.
};

// What an Inspector asks (Inspector::Sources::stacks).
std::function<wire::Stacks()> StacksBy(std::shared_ptr<StackTaker> taker);

}  // namespace slackline
