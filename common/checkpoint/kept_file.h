// What a worker keeps in a checkpoint beside the parameters, checkpoint.Kept of
// the manifest: a file of bytes that only its program reads, and one with what
// error feedback has kept of its gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/shard_state.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

struct WorkerState {
  std::optional<std::string> program;  // None: it keeps nothing.
  // By table, each whole and without slots; only tables that have some.
  std::vector<ShardState> residuals = {};
};

// Writes `folder`/worker-3.state and worker-3.residuals.safetensors, if there
// is something for them, creating the folder if need be: under temporary names,
// synced, renamed. Errors name path, call and reason; InvalidArgument: the
// program has more than kKeptBytesMax bytes.
absl::StatusOr<checkpoint::Kept> WriteKept(const std::string& folder,
                                           int32_t rank,
                                           const WorkerState& state);

// All that is in them. DataLoss names the file, and what of it is not as `kept`
// says: it is not there, is no file, or has another size or hash.
absl::StatusOr<WorkerState> ReadKept(const std::string& folder,
                                     const checkpoint::Kept& kept);
// The same errors, whatever the size in little memory.
absl::Status CheckKept(const std::string& folder, const checkpoint::Kept& kept);

// What this rank has in the checkpoint of this folder, whose manifest has this
// hash; nothing if it has none of this rank. Errors name the file and what to
// do: the process may be on a host that does not see the folder.
absl::StatusOr<WorkerState> FindKept(const std::string& folder,
                                     const std::string& manifest_sha256,
                                     int32_t rank);

}  // namespace slackline
