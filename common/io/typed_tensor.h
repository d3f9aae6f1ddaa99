// A tensor of any type, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace slackline {

struct TypedTensor {
  std::string name;              // Unique in its file, not "__metadata__".
  std::string type;              // In safetensors' words: F32, I64, BOOL, ...
  std::vector<int64_t> shape;    // Each at least 0; empty for one number.
  std::vector<std::byte> bytes;  // Row-major, little-endian.
};

}  // namespace slackline
