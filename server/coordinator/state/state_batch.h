// What stores have in common: state.Batch with its length and hashes, as
// proto/state_batch.proto describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// Stores neither write nor read a state that is longer.
inline constexpr int64_t kStateBytesMax = int64_t{512} << 20;

// A longer one is ResourceExhausted, before any of it is copied.
absl::StatusOr<std::string> EncodeBatch(
    const std::vector<StateChange>& changes);
// A batch that makes an empty state this one.
absl::StatusOr<std::string> EncodeBatch(const CoordinatorState& state);

// Makes the changes of the first batch of the bytes, and returns how many bytes
// it has; 0, and changes nothing, if the bytes end before it does, or if
// they are zeros from one of its bytes on: a crash leaves either. DataLoss: the
// hashes are not those of the bytes.
absl::StatusOr<size_t> ApplyBatch(absl::string_view bytes,
                                  CoordinatorState* state);

void ApplyChanges(const std::vector<StateChange>& changes,
                  CoordinatorState* state);

// "process 123 of host a", for others who find something in its hands.
std::string ThisProcess();

}  // namespace slackline
