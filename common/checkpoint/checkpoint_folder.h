// Where the checkpoints of a run are: <root>/step-00001200, and while one is
// written <root>/.partial-<run>-<cut>. A folder step-* is a whole checkpoint:
// it gets its name when all of it is on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "proto/checkpoint.pb.h"
#include "proto/cluster.pb.h"

namespace slackline {

class BestKeeper;  // best_checkpoint.h

// The root of a run whose files are in `out`. Empty: there is none, since the
// config names no folder and the run has none.
std::string CheckpointRoot(const config::ClusterConfig& config,
                           const std::string& out);

// In which the parts of a cut are collected.
std::string PartialFolder(const std::string& root, uint64_t run, int32_t cut);

// Whether who completes a checkpoint may still change what is there: asked
// before each change. nullptr: always.
using MayChange = std::function<bool()>;

// All parts are in the partial folder: adds the manifest, with its sequence in
// the root, syncs, and gives the folder its name, which is returned; another
// checkpoint of that step is replaced. Then removes all checkpoints but the
// newest `keep` and the best one, which `best` chooses before that (nullptr:
// there is none), and what earlier cuts of this run have left; what cannot be
// removed, or has no manifest that can be read, stays, and so does what is
// newer than this one. One that lacks a file, or bytes of one, is none of the
// newest `keep`. Errors name path, call and reason; then the parts stay where
// they are. FailedPrecondition: `may_change` has said no; what was not done by
// then is left to whoever may.
absl::StatusOr<std::string> CompleteCheckpoint(
    const std::string& root, uint64_t run, int32_t cut,
    const checkpoint::Manifest& manifest, int keep, BestKeeper* best = nullptr,
    const MayChange& may_change = nullptr);
// The cut was given up, or the run is over: removes what there is of it, and of
// earlier cuts of the run.
void RemovePartial(const std::string& root, uint64_t run, int32_t cut);

// Whether a folder of that name in a root is a checkpoint: step-<digits>.
bool IsCheckpointName(const std::string& name);
struct CheckpointEntry {
  std::string folder;
  int64_t clock = 0;
};
// Those of a lineage with a manifest that can be read, and all files that it
// names, as long as it says, the newest first; none if the root cannot be read.
std::vector<CheckpointEntry> CheckpointsIn(const std::string& root,
                                           uint64_t lineage);
// Where checkpoints may be, if `path` is a root or the folder of a run: itself,
// the folder in it, and the one that its config names. As OpenCheckpoint().
// Fails if there is such a config that is larger than kConfigFileBytesMax, or
// cannot be read.
absl::StatusOr<std::vector<std::string>> RootsAt(const std::string& path);

// The checkpoint that `path` names: one itself, or the newest one of a root, or
// of the folder of a run: the one that was completed last. A run whose own
// folder has none has them where its config says, cluster.textproto there.
// `*passed_over` gets a sentence for each newer one that cannot be used
// (StoredCheckpoint::Open()). NotFound says what was looked for, DataLoss that
// none of those which are there can be used.
absl::StatusOr<std::unique_ptr<StoredCheckpoint>> OpenCheckpoint(
    const std::string& path, std::vector<std::string>* passed_over);
// Whether a checkpoint counts.
using CheckpointFilter = std::function<bool(const checkpoint::Manifest&)>;
// Whether the root has one that counts, whole or not. False also if the root
// cannot be read.
bool HasCheckpoint(const std::string& root, const CheckpointFilter& of_ours);
// From which a job goes on by itself, that is, without a user who names one:
// the newest one of a root that is `of_ours` and can be used; else the one in
// the folder `began_with`, if the job has begun with one; else nullptr, so that
// the job begins anew, but only if it never had a checkpoint. `*passed_over` as
// above. DataLoss: there are some, and none of them can be used; names each
// with its fault, and says what to do. One without a manifest that can be read
// may be of ours, and so counts. Other errors: nobody knows what is in the
// root.
absl::StatusOr<std::unique_ptr<StoredCheckpoint>> CheckpointToGoOnFrom(
    const std::string& root, const CheckpointFilter& of_ours,
    const std::string& began_with, std::vector<std::string>* passed_over);

}  // namespace slackline
