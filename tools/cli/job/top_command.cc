#include "tools/cli/job/top_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/run/summary_table.h"
#include "tools/cli/signals.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

constexpr char kClearAndHome[] = "\x1b[2J\x1b[H";

// The first lines of `text` that fit on the terminal, and leave one free for
// the cursor.
std::string FitToScreen(const std::string& text) {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 2 ||
      size.ws_col < 2) {
    return text;
  }
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // Behind the last line end.
  if (lines.size() >= size.ws_row) lines.resize(size.ws_row - 1);
  std::string fitting;
  for (const std::string& line : lines) {
    // A full last column makes some terminals wrap.
    absl::StrAppend(&fitting, FitToWidth(line, size.ws_col - 1), "\n");
  }
  return fitting;
}

bool HasEnded(const JobConnection& job) {
  const wire::JobState state = job.status().view().state();
  return state == wire::FINISHED || state == wire::FAILED;
}

// A coordinator that is gone leaves the summary, if the job has finished.
std::string GoneText(const TopOptions& options, const JobConnection& job) {
  const std::string name = absl::StrCat("job ", job.config().job());
  if (IsRunFolder(options.job.config) &&
      ReadRunResult(options.job.config).ok()) {
    return absl::StrCat(name, " has ended: finished");
  }
  return absl::StrCat(name,
                      " has ended: its coordinator no longer answers; the log "
                      "of server 0 says why");
}

absl::Status Watch(const TopOptions& options) {
  // Before the connection, whose threads must not take the signals.
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  for (int shown = 0;;) {
    const std::string text = StatusTable(job.status(), options.table);
    PrintResult(terminal ? absl::StrCat(kClearAndHome, FitToScreen(text))
                         : absl::StrCat(shown == 0 ? "" : "\n", text));
    ++shown;
    if (HasEnded(job)) {
      PrintResult(absl::StrCat("job ", job.config().job(), " has ended: ",
                               EndText(job.status().view()), "\n"));
      return absl::OkStatus();
    }
    if (shown == options.count) return absl::OkStatus();
    const absl::Time next = TimeSource().Now() + options.interval;
    do {
      if (signals->Wait(next - TimeSource().Now()) > 0) {
        if (terminal) PrintResult("\n");
        return absl::OkStatus();
      }
    } while (TimeSource().Now() < next);
    if (!job.Refresh().ok()) {
      PrintResult(absl::StrCat(GoneText(options, job), "\n"));
      return absl::OkStatus();
    }
  }
}

}  // namespace

int ShowTop(const TopOptions& options) {
  const absl::Status watched = Watch(options);
  return watched.ok() ? kExitDone : Fail("top", watched);
}

}  // namespace slackline
