// Fingerprints of parameters and optimizer state, by which two processes see
// that they have the same bits. Not for cryptography.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/payload.h"

namespace slackline {

// XXH3 (64 bits) of a shard's version, values and optimizer slots, in this
// order.
uint64_t StateHash(Version version, const Payload& values,
                   absl::Span<const Payload> slots);

// The same of a shard whose bytes come in pieces: the values, then each slot.
// Thread-compatible.
class StateHasher {
 public:
  explicit StateHasher(Version version);
  ~StateHasher();
  StateHasher(const StateHasher&) = delete;
  StateHasher& operator=(const StateHasher&) = delete;

  void Add(const void* data, size_t bytes);
  uint64_t Hash() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// XXH3 (64 bits) of any bytes.
uint64_t BytesHash(const void* data, size_t bytes);

// Of a whole model, from the StateHash() of each shard by id. Never 0.
uint64_t ModelHash(absl::Span<const uint64_t> shard_hashes);

}  // namespace slackline
