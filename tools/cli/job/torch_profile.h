// What torch.profiler has written of a worker (export_chrome_trace()), beside
// what we have of it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/timeline/part_reader.h"

namespace slackline {

// Its threads and streams become threads of `timeline`. Its times are of the
// time of day, and become those of the process' clock by
// ProcessTimeline::from_wall_nanos; what would lie before the beginning of that
// clock is left out.
//
// Errors name the file: it cannot be read, is larger than 1 GiB, has more than
// four million events, or is no profile. `*timeline` is unchanged then.
absl::Status AddTorchProfile(const std::string& path,
                             ProcessTimeline* timeline);

}  // namespace slackline
