#include "common/floats/half.h"

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

}  // namespace

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
