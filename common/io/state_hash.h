// Fingerprints of parameters and optimizer state, by which two processes see
// that they have the same bits. Not for cryptography.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/payload.h"

namespace slackline {

// XXH3 (64 bits) of a shard's version, values and optimizer slots, in this
// order.
uint64_t StateHash(Version version, const Payload& values,
                   absl::Span<const Payload> slots);

// Of a whole model, from the StateHash() of each shard by id. Never 0.
uint64_t ModelHash(absl::Span<const uint64_t> shard_hashes);

}  // namespace slackline
