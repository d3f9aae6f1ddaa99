// Where the checkpoints of a run are: <root>/step-00001200, and while one is
// written <root>/.partial-<run>-<cut>. A folder step-* is a whole checkpoint:
// it gets its name when all of it is on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "proto/checkpoint.pb.h"
#include "proto/cluster.pb.h"

namespace slackline {

// The root of a run whose files are in `out`. Empty: there is none, since the
// config names no folder and the run has none.
std::string CheckpointRoot(const config::ClusterConfig& config,
                           const std::string& out);

// In which the parts of a cut are collected.
std::string PartialFolder(const std::string& root, uint64_t run, int32_t cut);

// All parts are in the partial folder: adds the manifest, with its sequence in
// the root, syncs, and gives the folder its name, which is returned; another
// checkpoint of that step is replaced. Then removes all but the newest `keep`
// checkpoints, and what earlier cuts of this run have left; what cannot be
// removed, or has no manifest that can be read, stays. Errors name path, call
// and reason; then the parts stay where they are.
absl::StatusOr<std::string> CompleteCheckpoint(
    const std::string& root, uint64_t run, int32_t cut,
    const checkpoint::Manifest& manifest, int keep);
// The cut was given up, or the run is over: removes what there is of it, and of
// earlier cuts of the run.
void RemovePartial(const std::string& root, uint64_t run, int32_t cut);

// The checkpoint that `path` names: one itself, or the newest one of a root, or
// of the folder of a run: the one that was completed last. `*passed_over` gets
// a sentence for each newer one that cannot be used (StoredCheckpoint::Open()).
// NotFound says what was looked for, DataLoss that none of those which are
// there can be used.
absl::StatusOr<std::unique_ptr<StoredCheckpoint>> OpenCheckpoint(
    const std::string& path, std::vector<std::string>* passed_over);
// Its folder.
absl::StatusOr<std::string> FindCheckpoint(
    const std::string& path, std::vector<std::string>* passed_over);

}  // namespace slackline
