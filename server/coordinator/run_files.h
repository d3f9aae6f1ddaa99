// What a run leaves behind beside the model: metrics.jsonl, moves.jsonl and
// modes.jsonl, one JSON object per record, summary.json, for a failed run
// failure.txt, and runs.txt, which names the runs that the records are of.
// Field names are those of proto/run.proto.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/io/descriptor.h"
#include "proto/cluster.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// A file of lines, each there whole or not at all.
class LineFile {
 public:
  // Starts `path` empty; or, to `keep` it, after its last whole line.
  static absl::StatusOr<std::unique_ptr<LineFile>> Create(
      const std::string& path, bool keep = false);
  // Goes on after what was kept of it; what is behind that is cut off. What a
  // shorter file lacks counts as one lost line.
  static absl::StatusOr<std::unique_ptr<LineFile>> GoOn(
      const std::string& path, const coordinator::FilesState::File& kept);
  // What was kept of it is in another folder: counts as one more lost line.
  void LackOthers(const coordinator::FilesState::File& kept);

  // The line is in the file when the call returns, unless it fails: then it is
  // left out, and counted, and the next one is tried again.
  absl::Status Append(const std::string& line);
  int64_t lost() const { return lost_; }
  int64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Why a line was left out for the first time.
  const absl::Status& why() const { return why_; }

 private:
  LineFile(std::string path, Descriptor file, int64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}
  const std::string path_;
  const Descriptor file_;
  int64_t bytes_ = 0;  // Of whole lines.
  int64_t lost_ = 0;
  absl::Status why_;
};

// Writes summary.json into the folder, whole or not at all; and of a run that
// has failed failure.txt (failure_page.h), which is removed else, and which
// says nothing of what the config has already.
absl::Status WriteSummaryFile(const std::string& folder,
                              const run::Summary& summary,
                              config::Checkpoint::Loss on_server_loss);

// The runs that the records in this folder are of, in their order, each of
// which has gone on from one before it; none, if there is no file that says so.
// Errors name the file; DataLoss: it is larger than kRunsFileBytesMax.
inline constexpr int64_t kRunsFileBytesMax = 1 << 20;  // Fits 25,000 runs.
absl::StatusOr<std::vector<uint64_t>> RunsIn(const std::string& folder);
// Whether the run is one of them. Never for run 0.
absl::StatusOr<bool> HasRecordsOf(const std::string& folder, uint64_t run);

// How the run in a folder has ended, as its summary says. NotFound: it has no
// summary. DataLoss: that is none.
struct RunEnd {
  std::string job;
  std::string config_hash;  // Empty: an earlier version has written it.
  int64_t steps = 0;
  bool finished = false;
  wire::JobEnd end;  // Cause and reason.
};
absl::StatusOr<RunEnd> EndIn(const std::string& folder);
// Whether a run has left records there: it has come so far that somebody may
// want them.
bool HasRecords(const std::string& folder);

// Moves what a run has left in the folder into replaced-1 there, or the first
// such folder that is free, which is returned: its files, its model, and
// `with_checkpoints` these. Its logs stay. Errors name both folders.
absl::StatusOr<std::string> PutRunAside(const std::string& folder,
                                        bool with_checkpoints);

// Which steps of a run are not done anew by the one that goes on from it.
struct LastSteps {
  Clock all = 0;
  std::map<int32_t, Clock> own = {};  // What holds for these ranks instead.
};

class RunFiles {
 public:
  struct Origin {
    uint64_t run = 0;  // That of wire.Header; 0: nobody will go on from it.
    // The run that took the checkpoint that this one goes on from; 0: none.
    uint64_t goes_on_from = 0;
    // Random: tells the folder from others with records of the same run.
    uint64_t folder = 0;
    // It begins with a checkpoint, of whichever run.
    bool has_checkpoint = false;
  };
  // Creates `folder` if need be, starts the files of records, and removes an
  // earlier run's summary and failure.txt. If the folder HasRecordsOf() the run
  // that this one goes on from, all of these are kept, and come before this
  // one's. Else what another run has left there, if it has left records, goes
  // into replaced-1, or the first such folder that is free: its files, its
  // model, and its checkpoints unless this one begins with one.
  static absl::StatusOr<std::unique_ptr<RunFiles>> Create(
      const std::string& folder, const Origin& origin);
  // The folder into which Create() has put what was there; empty: none.
  const std::string& replaced() const { return replaced_; }

  // Goes on with the run, whose coordinator has died: what that has written
  // behind what it kept, which nobody was told of, is cut off. A summary stays.
  // If it has written into another folder, this one is begun as by Create(),
  // and WhatIsMissing() says so.
  static absl::StatusOr<std::unique_ptr<RunFiles>> GoOn(
      const std::string& folder, const Origin& origin,
      const coordinator::FilesState& kept);
  // What GoOn() needs.
  coordinator::FilesState Kept() const;

  // Removes, of the records which were kept, those of steps that are done anew.
  // To be called before this run's first record. Errors name path, call and
  // reason; then they stay.
  absl::Status DropAfter(const LastSteps& last);
  bool dropped() const { return dropped_; }  // DropAfter() was called.

  // Appends a line. A failure is returned for the first line of a file that
  // cannot be written, and only then: it is to be said once.
  absl::Status AppendMetric(const run::MetricRecord& record);
  absl::Status AppendMove(const run::MoveRecord& record);
  absl::Status AppendMode(const run::ModeRecord& record);
  // "run/metrics.jsonl lacks 12 records: write ...: No space left on device";
  // empty: every record is in its file.
  std::string WhatIsMissing() const;
  bool HasSummary() const;
  void RemoveSummary();
  absl::Status WriteSummary(const run::Summary& summary,
                            config::Checkpoint::Loss on_server_loss) {
    return WriteSummaryFile(folder_, summary, on_server_loss);
  }

 private:
  RunFiles(std::string folder, uint64_t token, bool kept)
      : folder_(std::move(folder)), token_(token), kept_(kept) {}
  const std::string folder_;
  const uint64_t token_;  // Origin::folder, of who began it.
  const bool kept_;       // Records of an earlier run.
  bool dropped_ = false;
  std::string replaced_;
  std::unique_ptr<LineFile> metrics_;
  std::unique_ptr<LineFile> moves_;
  std::unique_ptr<LineFile> modes_;
};

}  // namespace slackline
