#include "common/io/state_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace slackline {

struct StateHasher::State {
  XXH3_state_t* const xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

StateHasher::StateHasher(Version version) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(state_->xxh3);
  const uint64_t number = version;  // Little-endian, like all of our machines.
  Add(&number, sizeof(number));
}

StateHasher::~StateHasher() = default;

void StateHasher::Add(const void* data, size_t bytes) {
  XXH3_64bits_update(state_->xxh3, data, bytes);
}

uint64_t StateHasher::Hash() const { return XXH3_64bits_digest(state_->xxh3); }

uint64_t StateHash(Version version, const Payload& values,
                   absl::Span<const Payload> slots) {
  StateHasher hasher(version);
  hasher.Add(values.data(), values.size());
  for (const Payload& slot : slots) hasher.Add(slot.data(), slot.size());
  return hasher.Hash();
}

uint64_t BytesHash(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

uint64_t ModelHash(absl::Span<const uint64_t> shard_hashes) {
  return std::max<uint64_t>(
      1,
      XXH3_64bits(shard_hashes.data(), shard_hashes.size() * sizeof(uint64_t)));
}

}  // namespace slackline
