// Programs that are run for what they print.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"
#include "tools/cli/exit_status.h"

namespace slackline {

// A file that only its descriptor leads to, for what a child reads or writes.
absl::StatusOr<Descriptor> FileInMemory();
// As ReadTail(), of such a file.
std::string TailOf(const Descriptor& file, size_t bytes_max);

// All of it; Unavailable says what the system says.
absl::Status WriteAll(int file, absl::string_view text);

struct ProgramOutput {
  ExitStatus status;
  // The ends of its stdout and its stderr.
  std::string output;
  std::string errors;
};
struct ProgramRun {
  std::vector<std::string> command;  // As for FindProgram().
  // Beside, or in place of, that of this program.
  std::map<std::string, std::string> environment = {};
  absl::Duration time_max;
  size_t bytes_max = 4 << 10;  // Of each of the two.
};
// Runs it until its end. DeadlineExceeded: it has not ended in time, and is
// killed. Others: it could not be started.
absl::StatusOr<ProgramOutput> OutputOf(const ProgramRun& run);

}  // namespace slackline
