// The Python programs that lie beside this one: slackline_report.py and
// slackline_track.py.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace slackline {

struct PythonScript {
  std::string bin_dir;  // Where it lies.
  std::string name;
  // What it imports, if all of its flags are as they are here.
  std::vector<std::string> modules;
  std::vector<std::string> arguments;
};

// The whole command: with the user's Python or, if only that has all modules,
// the system's, to which the distribution's packages belong. Where neither has,
// the script says what the user's one lacks. NotFound: the script is not there.
absl::StatusOr<std::vector<std::string>> CommandOf(const PythonScript& script);

// The exit code of a command as CommandOf() has it, if there is no python3.
inline constexpr int kNoPython = 127;

}  // namespace slackline
