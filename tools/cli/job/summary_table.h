// The results of runs, for people.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/run.pb.h"

namespace slackline {

struct RunResult {
  std::string folder;
  run::Summary summary;
  // Runs before it in the same folder, from whose checkpoints it goes on:
  // FOLDER/earlier-1 and so on.
  int earlier = 0;
  // What it did once more of their steps, as far as they tell.
  int64_t steps_anew = 0;
};

// Reads FOLDER/summary.json. NotFound: there is none, so the run has not
// ended; DataLoss: it is no summary.
absl::StatusOr<RunResult> ReadRunResult(const std::string& folder);
// The same as {"folder": FOLDER, "summary": all that the file holds}.
absl::StatusOr<nlohmann::ordered_json> ReadRunJson(const std::string& folder);

// "finished", or how and why else: "failed: server 1 is dead".
std::string EndText(const run::Summary& summary);

// "step 120 is in FOLDER (accuracy 0.9731 at step 118)"
std::string BestCheckpointText(const run::BestCheckpoint& best);

// One table with a line for each run, then a note for each that has failed, for
// each lost worker and best checkpoint, and on the data. Lines end in "\n".
std::string SummaryTable(const std::vector<RunResult>& runs);

}  // namespace slackline
