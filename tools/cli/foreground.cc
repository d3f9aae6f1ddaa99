#include "tools/cli/foreground.h"

#include <signal.h>

#include <memory>
#include <optional>

#include "common/status.h"
#include "tools/cli/process.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

// The end of the child is a signal, too, and ends the wait earlier.
constexpr absl::Duration kWaitMax = absl::Milliseconds(250);

}  // namespace

absl::StatusOr<ExitStatus> RunInForeground(
    const std::vector<std::string>& command) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start({.command = command, .log_path = ""}));
  int interrupts = 0;
  while (true) {
    if (const std::optional<ExitStatus> exit = child.Poll(); exit.has_value()) {
      return *exit;
    }
    for (int i = signals->Wait(kWaitMax).all(); i > 0; --i) {
      child.Signal(++interrupts == 1 ? SIGINT : SIGKILL);
    }
  }
}

}  // namespace slackline
