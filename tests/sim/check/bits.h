// What the twins of the checker share: names for people, and bits.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/ids.h"
#include "common/payload.h"
#include "common/view/shard_map.h"

namespace slackline::sim {

inline std::string Name(Rank rank, Incarnation incarnation) {
  return absl::StrCat("rank ", static_cast<int>(rank), "/", incarnation);
}

using Life = std::pair<Rank, Incarnation>;

inline std::string Name(const Life& life) {
  return Name(life.first, life.second);
}

inline std::string Name(Owner owner) {
  return absl::StrCat("server ", owner.server, " thread ", owner.thread);
}

inline std::string ShardName(const std::string& table, int64_t begin,
                             int64_t end) {
  return absl::StrCat(table, "[", begin, ", ", end, ")");
}

inline std::vector<float> FloatsOf(const Payload& payload) {
  std::vector<float> values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), values.size() * sizeof(float));
  return values;
}

// Whether the payload is these values as workers pull them (RoundParameters).
inline bool IsRounded(wire::Encoding::Kind kind, const Payload& payload,
                      const std::vector<float>& values) {
  PayloadMemory memory;
  const Payload rounded = RoundParameters(
      kind, Payload::Copy(values.data(), values.size() * sizeof(float)),
      memory);
  return payload.size() == rounded.size() &&
         std::memcmp(payload.data(), rounded.data(), rounded.size()) == 0;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace slackline::sim
