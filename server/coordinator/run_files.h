// What a run leaves behind beside the model: metrics.jsonl, moves.jsonl and
// modes.jsonl, one JSON object per record, and summary.json. Field names are
// those of proto/run.proto.
#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/run.pb.h"

namespace slackline {

class RunFiles {
 public:
  // Creates `folder` if need be and starts the files of records, empty.
  static absl::StatusOr<std::unique_ptr<RunFiles>> Create(
      const std::string& folder);

  // Appends a line; it is in the file when the call returns.
  absl::Status AppendMetric(const run::MetricRecord& record);
  absl::Status AppendMove(const run::MoveRecord& record);
  absl::Status AppendMode(const run::ModeRecord& record);
  // Writes summary.json, whole or not at all.
  absl::Status WriteSummary(const run::Summary& summary);

 private:
  explicit RunFiles(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;
  std::ofstream metrics_;
  std::ofstream moves_;
  std::ofstream modes_;
};

}  // namespace slackline
