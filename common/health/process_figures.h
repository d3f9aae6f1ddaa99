// What the kernel says of this process.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace slackline {

struct ProcessFigures {
  double cpu_seconds = 0;
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double threads = 0;
  double open_files = 0;
  double open_files_max = 0;  // Of the process; infinite: no limit.
};

// Of /proc; nullopt where there is none.
std::optional<ProcessFigures> ReadProcessFigures();

}  // namespace slackline
