#include "common/io/state_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace slackline {

uint64_t StateHash(Version version, const Payload& values,
                   absl::Span<const Payload> slots) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const uint64_t number = version;  // Little-endian, like all of our machines.
  XXH3_64bits_update(state.get(), &number, sizeof(number));
  XXH3_64bits_update(state.get(), values.data(), values.size());
  for (const Payload& slot : slots)
    XXH3_64bits_update(state.get(), slot.data(), slot.size());
  return XXH3_64bits_digest(state.get());
}

uint64_t ModelHash(absl::Span<const uint64_t> shard_hashes) {
  return std::max<uint64_t>(
      1,
      XXH3_64bits(shard_hashes.data(), shard_hashes.size() * sizeof(uint64_t)));
}

}  // namespace slackline
