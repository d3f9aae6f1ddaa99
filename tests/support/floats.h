// Tensors as tests want to make and read them.
#pragma once

#include <cstring>
#include <vector>

#include "common/payload.h"

namespace slackline {

// So many times the same value.
inline Payload Floats(float value, int count) {
  const std::vector<float> values(static_cast<size_t>(count), value);
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

inline float First(const Payload& payload) {
  float value = 0;
  std::memcpy(&value, payload.data(), sizeof(value));
  return value;
}

}  // namespace slackline
