// What a run leaves behind beside the model: metrics.jsonl, moves.jsonl and
// modes.jsonl, one JSON object per record, and summary.json. Field names are
// those of proto/run.proto.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace slackline {

// A file of lines, each there whole or not at all.
class LineFile {
 public:
  // Starts `path` empty; or, to `keep` it, after its last whole line.
  static absl::StatusOr<std::unique_ptr<LineFile>> Create(
      const std::string& path, bool keep = false);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // The line is in the file when the call returns, unless it fails: then it is
  // left out, and counted, and the next one is tried again.
  absl::Status Append(const std::string& line);
  int64_t lost() const { return lost_; }
  const std::string& path() const { return path_; }
  // Of the first line that was left out.
  const absl::Status& why() const { return why_; }

 private:
  LineFile(std::string path, int file, int64_t bytes)
      : path_(std::move(path)), file_(file), bytes_(bytes) {}
  const std::string path_;
  const int file_;
  int64_t bytes_ = 0;  // Of whole lines.
  int64_t lost_ = 0;
  absl::Status why_;
};

// Writes summary.json into the folder, whole or not at all.
absl::Status WriteSummaryFile(const std::string& folder,
                              const run::Summary& summary);

// Of the run in `folder`, which goes on from this checkpoint of its own:
// removes the records of steps that it had done since then and does anew. Files
// that are not there are none of them; errors name path, call and reason.
absl::Status DropRecordsAfter(const std::string& folder,
                              const checkpoint::Manifest& checkpoint);

class RunFiles {
 public:
  // What becomes of the records of an earlier run.
  enum class Earlier { kDropped, kKept };
  // Creates `folder` if need be, starts the files of records, empty or after
  // what is kept, and removes an earlier run's summary.
  static absl::StatusOr<std::unique_ptr<RunFiles>> Create(
      const std::string& folder, Earlier earlier = Earlier::kDropped);

  // Appends a line. A failure is returned for the first line of a file that
  // cannot be written, and only then: it is to be said once.
  absl::Status AppendMetric(const run::MetricRecord& record);
  absl::Status AppendMove(const run::MoveRecord& record);
  absl::Status AppendMode(const run::ModeRecord& record);
  // "run/metrics.jsonl lacks 12 records: write ...: No space left on device";
  // empty: every record is in its file.
  std::string WhatIsMissing() const;
  absl::Status WriteSummary(const run::Summary& summary) {
    return WriteSummaryFile(folder_, summary);
  }

 private:
  explicit RunFiles(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;
  std::unique_ptr<LineFile> metrics_;
  std::unique_ptr<LineFile> moves_;
  std::unique_ptr<LineFile> modes_;
};

}  // namespace slackline
