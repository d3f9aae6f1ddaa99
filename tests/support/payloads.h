// Bytes to send, for tests.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/payload.h"
#include "common/rng.h"

namespace slackline {

// The same for the same seed.
inline Payload RandomPayload(size_t bytes, uint64_t seed) {
  Rng rng(seed);
  Payload payload = Payload::Allocate(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t value = rng.Next();
    std::memcpy(payload.MutableData() + i, &value,
                std::min<size_t>(8, bytes - i));
  }
  return payload;
}

inline bool SameBytes(const Payload& a, const Payload& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace slackline
