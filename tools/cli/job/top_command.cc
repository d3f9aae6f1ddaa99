#include "tools/cli/job/top_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/job/status_command.h"
#include "tools/cli/json.h"
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

void Say(const TopOptions& options, const JobConnection& job,
         const std::string& end) {
  if (options.json) return;  // The last status, or the summary, has it.
  PrintResult(
      absl::StrCat("job ", job.config().job(), " has ended: ", end, "\n"));
}

// A coordinator that is gone leaves the summary.
absl::Status OnGone(const TopOptions& options, const JobConnection& job) {
  const std::string& config = options.job.config;
  if (HasEnded(config)) return ShowEnd(config, options.json, true);
  Say(options, job,
      absl::StrCat("its coordinator no longer answers; the log of server ",
                   job.status().coordinator_server(), " says why"));
  return absl::OkStatus();
}

// For how long another coordinator may come.
absl::Duration PatienceWith(const config::ClusterConfig& config) {
  return config.replicas() == 0
             ? absl::ZeroDuration()
             : absl::Milliseconds(config.limits().coordinator_timeout_ms());
}

absl::Status Watch(const TopOptions& options) {
  if (HasEnded(options.job.config))
    return ShowEnd(options.job.config, options.json, true);
  // Before the connection, whose threads must not take the signals.
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SignalWatch> signals,
                      SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  const Configured configured = ConfiguredBy(job.config());
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  absl::Time heard = TimeSource().Now();
  bool heard_now = true;
  for (int shown = 0;;) {
    if (!heard_now) {
      slackline::Say(
          absl::StrCat("job ", job.config().job(),
                       ": no coordinator answers; another one may go on "
                       "with the job (docs/manual/coordinator.md)"));
    } else if (options.json) {
      PrintJsonLine(StatusJson(job.status(), configured));
    } else {
      const std::string text =
          StatusTable(job.status(), configured, options.table);
      PrintResult(terminal ? absl::StrCat(kClearAndHome, FitToScreen(text))
                           : absl::StrCat(shown == 0 ? "" : "\n", text));
    }
    shown += heard_now;
    if (heard_now && IsOver(job.status().view())) {
      Say(options, job, EndText(job.status().view()));
      return absl::OkStatus();
    }
    if (shown == options.count) return absl::OkStatus();
    const absl::Time next = TimeSource().Now() + options.interval;
    do {
      if (signals->Wait(next - TimeSource().Now()).all() > 0) {
        if (terminal && !options.json) PrintResult("\n");
        return absl::OkStatus();
      }
    } while (TimeSource().Now() < next);
    heard_now = job.Refresh().ok();
    if (heard_now) {
      heard = TimeSource().Now();
    } else if (HasEnded(options.job.config) ||
               TimeSource().Now() - heard > PatienceWith(job.config())) {
      return OnGone(options, job);
    }
  }
}

}  // namespace

int ShowTop(const TopOptions& options) {
  const absl::Status watched = Watch(options);
  return watched.ok() ? kExitDone : Fail("top", watched);
}

}  // namespace slackline
