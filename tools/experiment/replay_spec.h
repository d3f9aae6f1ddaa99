// Which delays a replay uses, as experiments and `slackline replay` write it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace slackline {

struct ReplaySpec {
  // As slackline_replay takes it: "uniform:8", or the absolute path of a
  // folder.
  std::string text;
  // Of the recorded delays; empty without. Two folders with equal recordings
  // have equal ones.
  std::string fingerprint;
};

// A name with the largest delay in clocks (ParseSyntheticDelays()), or the
// folder of a run with its traces, relative to `folder`. Reads the traces.
// InvalidArgument: neither of them; the error says what is wrong.
absl::StatusOr<ReplaySpec> ParseReplaySpec(const std::string& spec,
                                           const std::string& folder);

// For a file name: "uniform-8"; of a folder its last part.
std::string ReplayName(const std::string& spec);

}  // namespace slackline
