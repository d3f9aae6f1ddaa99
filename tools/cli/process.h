// A child process of this program: started, watched, and left behind only on
// purpose.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "tools/cli/exit_status.h"

namespace slackline {

// The path of a program as a shell finds it: `name` itself if it has a '/',
// else in the folders of PATH. NotFound or PermissionDenied names it.
absl::StatusOr<std::string> FindProgram(const std::string& name);

// A log to append to. The error names it and the reason.
absl::StatusOr<Descriptor> OpenLog(const std::string& path);

// Both ends are closed with exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};
absl::StatusOr<Pipe> OpenPipe();

// How often the kernel has killed a process for lack of memory, on the whole
// machine, so far. 0 where it does not say.
int64_t OutOfMemoryKills();

// Belongs to the thread that started it: the child dies with that thread,
// however this program ends, unless it is detached. Move-only; the destructor
// kills the child if it still runs, and waits for its end.
class ChildProcess {
 public:
  struct Options {
    // Program (a path; no search) and arguments.
    std::vector<std::string> command;
    // Its stdout and stderr, appended. Empty: those of this program.
    std::string log_path;
    // Names and values that it finds in its environment beside, or in place of,
    // those of this program.
    std::map<std::string, std::string> environment = {};
    // -1: it is empty.
    int standard_input = -1;
    // In place of what log_path says. -1: as that says.
    int standard_output = -1;
    int standard_error = -1;
    // In a session of its own, away from the terminal, so that it can be
    // Release()d.
    bool detached = false;
  };
  // The child runs in its own process group, so that the terminal's Ctrl-C
  // does not reach it, with default signal handling and an empty stdin. What it
  // has started and left in its group is killed when it ends. The error names
  // the program or the log and the reason.
  static absl::StatusOr<ChildProcess> Start(const Options& options);
  // A child of this process that somebody else has made, as Start() makes one.
  // `kills_before`: OutOfMemoryKills() before that.
  static ChildProcess Adopt(pid_t pid, int64_t kills_before) {
    return ChildProcess(pid, kills_before);
  }

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }  // Also after its end.
  bool running() const { return running_; }
  // How it ended, once: nullopt while it runs and after it was told.
  std::optional<ExitStatus> Poll();
  // Waits for the end, however long; for a child that runs.
  ExitStatus Wait();
  // To its whole process group. Without effect after its end.
  void Signal(int signal);
  // A detached child lives on, and is nobody's from here on.
  void Release() { running_ = false; }

 private:
  ChildProcess(pid_t pid, int64_t kills_before)
      : pid_(pid), running_(true), kills_before_(kills_before) {}
  void KillAndWait();
  // After the end of the child, which has not been waited for: nobody else can
  // have its number yet.
  ExitStatus KillGroupAndReap();

  pid_t pid_ = 0;
  bool running_ = false;
  bool killed_ = false;       // By us.
  int64_t kills_before_ = 0;  // Of the kernel, for lack of memory.
};

}  // namespace slackline
