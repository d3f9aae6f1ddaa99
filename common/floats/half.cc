#include "common/floats/half.h"

#include <algorithm>

namespace slackline {
namespace {

uint16_t LoadHalf(const std::byte* in, size_t element) {
  uint16_t half;
  std::memcpy(&half, in + element * sizeof(half), sizeof(half));
  return half;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Without branches, so that the compiler makes vectors of it, and without
// subnormal floats, which some processors are slow with.
float ExpandFloat16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // Exponents are biased by 15 and 127.
  uint32_t normal = (magnitude << 13) + (112u << 23);
  normal += magnitude >= 0x7c00 ? 112u << 23 : 0;  // Infinity and NaN.
  // Multiples of 2^-24: the fraction of a float that is at least 2^-14.
  constexpr uint32_t kSmallestNormal = 113u << 23;
  const float difference =
      FloatOf(kSmallestNormal | magnitude << 13) - FloatOf(kSmallestNormal);
  uint32_t subnormal;
  std::memcpy(&subnormal, &difference, sizeof(subnormal));
  return FloatOf(sign | (magnitude < 0x400 ? subnormal : normal));
}

// Likewise without branches; see RoundToBfloat16() and RoundToFloat16().
uint16_t ToFiniteBfloat16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t finite = std::min(magnitude, uint32_t{0x7f7f0000});
  const uint32_t rounded = (finite + 0x7fff + ((finite >> 16) & 1)) >> 16;
  const uint32_t special =
      magnitude > 0x7f800000 ? (magnitude >> 16) | 0x40 : 0x7f80;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) |
                               (magnitude < 0x7f800000 ? rounded : special));
}

uint16_t ToFiniteFloat16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t finite = std::min(magnitude, uint32_t{0x477fe000});
  uint32_t small;
  const float shifted = FloatOf(std::min(finite, uint32_t{0x38800000})) + 0.5f;
  std::memcpy(&small, &shifted, sizeof(small));
  const uint32_t normal =
      (finite + 0xfff + ((finite >> 13) & 1) - (112u << 23)) >> 13;
  const uint32_t rounded = finite < 0x38800000 ? small - 0x3f000000 : normal;
  const uint32_t special =
      magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : 0x7c00;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) |
                               (magnitude < 0x7f800000 ? rounded : special));
}

template <uint16_t (*kRound)(uint32_t)>
void RoundAll(const std::byte* in, size_t elements, std::byte* out) {
  for (size_t i = 0; i < elements; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + i * sizeof(bits), sizeof(bits));
    const uint16_t half = kRound(bits);
    std::memcpy(out + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace

void RoundToFiniteHalf(HalfType type, const std::byte* in, size_t elements,
                       std::byte* out) {
  if (type == HalfType::kBfloat16) {
    RoundAll<ToFiniteBfloat16>(in, elements, out);
  } else {
    RoundAll<ToFiniteFloat16>(in, elements, out);
  }
}

void ExpandHalf(HalfType type, const std::byte* in, size_t elements,
                float* out) {
  if (type == HalfType::kBfloat16) {
    for (size_t i = 0; i < elements; ++i) {
      out[i] = FloatOf(uint32_t{LoadHalf(in, i)} << 16);
    }
  } else {
    for (size_t i = 0; i < elements; ++i) {
      out[i] = ExpandFloat16(LoadHalf(in, i));
    }
  }
}

}  // namespace slackline
