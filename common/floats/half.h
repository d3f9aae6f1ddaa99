// Floats of 16 bits: what gradients are rounded to where that is asked for, so
// that half as many bytes travel.
//
//              exponent  fraction
//   bfloat16   8 bits    7 bits     the range of float32, 3 digits at most
//   float16    5 bits    10 bits    IEEE 754 binary16: up to 65504, 4 digits
//
// Every value of both types is a float32, so only rounding loses anything. Free
// of everything but the language, so that nvcc compiles it, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace slackline {

enum class HalfType { kBfloat16, kFloat16 };

// The nearest value, of two equally near ones the one with an even last bit.
// Too large ones become infinity, a NaN stays one, with its sign.
SL_HOST_DEVICE inline uint16_t RoundToBfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  // A NaN's first bits may be those of infinity: one more makes it quiet.
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  // The carry may go into the exponent: that is the next larger value, too.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

SL_HOST_DEVICE inline uint16_t RoundToFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  // 65520 lies between 65504, the largest, and 65536.
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Below 2^-14, values are multiples of 2^-24, as floats in [0.5, 1) are:
    // the sum is rounded to one, and its last bits count them.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 0.5f;
    std::memcpy(&magnitude, &shifted, sizeof(magnitude));
    return static_cast<uint16_t>(sign | (magnitude - 0x3f000000));
  }
  magnitude += 0xfff + ((magnitude >> 13) & 1);
  // Exponents are biased by 127 and 15.
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
}

SL_HOST_DEVICE inline uint16_t RoundToHalf(HalfType type, float value) {
  return type == HalfType::kBfloat16 ? RoundToBfloat16(value)
                                     : RoundToFloat16(value);
}

// `in` and `out`: so many little-endian values at any alignment, disjoint. The
// nearest value, except that what is finite stays so: beyond the largest value
// of the type it becomes that. A NaN stays one.
void RoundToFiniteHalf(HalfType type, const std::byte* in, size_t elements,
                       std::byte* out);

// `in`: `elements` little-endian values at any alignment; disjoint from `out`.
// Exact; a NaN stays one.
void ExpandHalf(HalfType type, const std::byte* in, size_t elements,
                float* out);

}  // namespace slackline
