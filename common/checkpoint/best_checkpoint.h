// The best checkpoint of a run: the one whose clock is nearest to that of the
// best evaluation. <root>/best.json says which one that is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"

namespace slackline {

inline constexpr char kBestFile[] = "best.json";

// As in run::BestCheckpoint: "accuracy" or "loss".
std::string MeasureName(config::Checkpoint::Measure measure);

// What best.json in a root says, with the folder of the checkpoint. NotFound:
// there is no such file. DataLoss: it is damaged, or what it names is no
// checkpoint with a manifest that can be read and of that clock.
absl::StatusOr<run::BestCheckpoint> ReadBest(const std::string& root);

// The same for a run that is to write there. FailedPrecondition: the best one
// is of another lineage. InvalidArgument: it is by another measure.
absl::StatusOr<run::BestCheckpoint> ReadBestOf(
    const std::string& root, uint64_t lineage,
    config::Checkpoint::Measure measure);

// The folder of the best checkpoint, which `path` names as for
// OpenCheckpoint(): a root, or the folder of a run. InvalidArgument: it is one
// checkpoint. NotFound says what was looked for.
absl::StatusOr<std::string> FindBestCheckpoint(const std::string& path);

// Which of a lineage's checkpoints in a root is the best one. One thread.
class BestKeeper {
 public:
  // `earlier`: as ReadBestOf() has it. That checkpoint stays the best one until
  // there is a better evaluation.
  BestKeeper(std::string root, uint64_t lineage,
             std::optional<run::BestCheckpoint> earlier);

  // An evaluation that is better than all before it. Then as Update().
  void Keep(const run::BestCheckpoint& evaluation);
  // There are other checkpoints than before: chooses the one that is nearest to
  // the evaluation, of two equally near ones the later, and writes best.json if
  // it says something else.
  void Update();

  // Nothing, if there was no evaluation, or if there is no checkpoint.
  const std::optional<run::BestCheckpoint>& best() const { return best_; }
  // Why best.json does not say so.
  const absl::Status& error() const { return error_; }

 private:
  const std::string root_;
  const uint64_t lineage_;
  std::optional<run::BestCheckpoint> evaluation_;
  std::optional<run::BestCheckpoint> best_;
  bool of_earlier_run_;
  std::string written_;  // What the file says; empty: not known.
  absl::Status error_;
};

}  // namespace slackline
