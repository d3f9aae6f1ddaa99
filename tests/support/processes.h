// Processes that a test starts, and waiting for what they do.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/cli/process.h"

namespace slackline {

// Looks every few milliseconds whether `done`. False if it is not after
// `wait_max`.
bool WaitUntil(absl::Duration wait_max, const std::function<bool()>& done);

// A process of the test, killed at the latest by the destructor. Belongs to the
// thread that started it.
class Process {
 public:
  // Program and arguments; stdout and stderr go to the file `log`. Ends the
  // test program if it cannot be started.
  Process(const std::vector<std::string>& command, const std::string& log);

  // How it ended; nullopt, and a failure of the test that names the process, if
  // it still runs after `wait_max`.
  std::optional<ExitStatus> Wait(absl::Duration wait_max);
  // The same as text, for comparisons: "exited with code 0".
  std::string WaitText(absl::Duration wait_max);
  bool running();

  // To this process alone, and only while it runs.
  void Signal(int signal);
  // What it has written so far.
  std::string Output() const;
  pid_t pid() const { return child_->pid(); }

 private:
  const std::string name_;
  const std::string log_;
  std::optional<ChildProcess> child_;
  std::optional<ExitStatus> exit_;
};

// Of every process, other than this one, with `text` in its command line:
// "PID: COMMAND LINE".
std::vector<std::string> ProcessesMentioning(const std::string& text);

}  // namespace slackline
