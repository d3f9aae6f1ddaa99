#include "tools/cli/members/program_output.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<Descriptor> FileInMemory() {
  Descriptor file(memfd_create("slackline", MFD_CLOEXEC));
  if (file.valid()) return file;
  return absl::UnavailableError(
      absl::StrCat("a file in memory: ", std::strerror(errno)));
}

std::string TailOf(const Descriptor& file, size_t bytes_max) {
  return ReadTail(absl::StrCat("/proc/self/fd/", file.get()), bytes_max);
}

absl::Status WriteAll(int file, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::UnavailableError(
          absl::StrCat("write: ", std::strerror(errno)));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<ProgramOutput> OutputOf(const ProgramRun& run) {
  std::vector<std::string> command = run.command;
  SL_ASSIGN_OR_RETURN(command[0], FindProgram(command[0]));
  SL_ASSIGN_OR_RETURN(const Descriptor output, FileInMemory());
  SL_ASSIGN_OR_RETURN(const Descriptor errors, FileInMemory());
  SL_ASSIGN_OR_RETURN(ChildProcess child,
                      ChildProcess::Start({.command = std::move(command),
                                           .log_path = {},
                                           .environment = run.environment,
                                           .standard_output = output.get(),
                                           .standard_error = errors.get()}));
  const TimeSource time;
  const absl::Time end = time.Now() + run.time_max;
  std::optional<ExitStatus> exit;
  while (!(exit = child.Poll()).has_value()) {
    if (time.Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "it has not ended within ", absl::FormatDuration(run.time_max)));
    }
    absl::SleepFor(kLookEvery);
  }
  return ProgramOutput{.status = *exit,
                       .output = TailOf(output, run.bytes_max),
                       .errors = TailOf(errors, run.bytes_max)};
}

}  // namespace slackline
