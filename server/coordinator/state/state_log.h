// The log of a coordinator's state, as bytes: a header, then batches
// (state_batch.h), each of which changes what those before it made. Whoever
// keeps it appends a batch at a time, and may be stopped in the middle of that.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// The header of a log that begins with a batch of so many bytes, durable before
// anything is appended.
std::string StateLogHeader(size_t batch_bytes);

// What the log holds. A last batch that is not all there, or ends in zeros, is
// left out: a crash leaves either of one that was being appended. DataLoss
// names the log and the offset of anything else that is not as it is written.
absl::StatusOr<CoordinatorState> ReadStateLog(const std::string& name,
                                              absl::string_view log);

}  // namespace slackline
