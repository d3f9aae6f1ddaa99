// Goal: rounding to 16 bits is IEEE 754's "to nearest, ties to even", and
// nothing is lost on the way back. Method: the twin decodes all 65536 patterns
// by the definition, in double, and rounds by looking for the nearest of them.
#include "common/floats/half.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"

namespace slackline::half_test {

struct Format {
  HalfType type;
  int fraction_bits;
  int bias;
};
constexpr Format kFormats[] = {{HalfType::kBfloat16, 7, 127},
                               {HalfType::kFloat16, 10, 15}};

// By the definition. Infinity and NaN are those of double.
double Decode(const Format& format, uint16_t half) {
  const int exponent_max = (1 << (15 - format.fraction_bits)) - 1;
  const int exponent = (half >> format.fraction_bits) & exponent_max;
  const int fraction = half & ((1 << format.fraction_bits) - 1);
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == exponent_max) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const double significand =
      std::ldexp(fraction, -format.fraction_bits) + (exponent > 0 ? 1 : 0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - format.bias);
}

// The patterns without sign from 0 to infinity, which are in the order of their
// values. For infinity there stands what would follow the largest number: that
// is what IEEE 754 rounds large numbers with.
std::vector<double> Magnitudes(const Format& format) {
  std::vector<double> magnitudes;
  uint16_t half = 0;
  for (; std::isfinite(Decode(format, half)); ++half) {
    magnitudes.push_back(Decode(format, half));
  }
  const double last = magnitudes[half - 1];
  magnitudes.push_back(last + (last - magnitudes[half - 2]));
  return magnitudes;
}

uint16_t NaiveRound(const std::vector<double>& magnitudes, float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double wanted = std::fabs(static_cast<double>(value));
  const size_t above =
      std::lower_bound(magnitudes.begin(), magnitudes.end(), wanted) -
      magnitudes.begin();
  if (above == magnitudes.size()) {
    return static_cast<uint16_t>(sign | (above - 1));
  }
  if (above == 0) return sign;
  const double up = magnitudes[above] - wanted;
  const double down = wanted - magnitudes[above - 1];
  const bool take_above = up < down || (up == down && above % 2 == 0);
  return static_cast<uint16_t>(sign | (take_above ? above : above - 1));
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::string Describe(const Format& format, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return absl::StrCat(format.fraction_bits, " bits of fraction, float ", value,
                      " = 0x", absl::Hex(bits));
}

TEST(HalfTest, EveryValueIsExpandedExactly) {
  for (const Format& format : kFormats) {
    std::vector<uint16_t> halves(65536);
    for (size_t i = 0; i < halves.size(); ++i) {
      halves[i] = static_cast<uint16_t>(i);
    }
    std::vector<float> floats(halves.size());
    ExpandHalf(format.type, reinterpret_cast<const std::byte*>(halves.data()),
               halves.size(), floats.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      const double expected = Decode(format, halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i])) << i;
      } else {
        ASSERT_EQ(floats[i], expected) << i;
      }
      ASSERT_EQ(std::signbit(floats[i]), i >= 0x8000) << i;
    }
  }
}

TEST(HalfTest, AnyLengthAtAnyAlignmentIsExpanded) {
  Rng rng(1);
  for (const Format& format : kFormats) {
    for (size_t elements = 0; elements <= 70; ++elements) {
      const size_t shift = rng.Below(16);
      // Exactly as long as needed: a sanitizer sees a read past the end.
      std::vector<std::byte> frame(shift + elements * sizeof(uint16_t));
      for (std::byte& byte : frame) {
        byte = static_cast<std::byte>(rng.Below(60));  // No NaN among them.
      }
      std::vector<float> floats(elements);
      ExpandHalf(format.type, frame.data() + shift, elements, floats.data());
      for (size_t i = 0; i < elements; ++i) {
        uint16_t half;
        std::memcpy(&half, frame.data() + shift + i * sizeof(half),
                    sizeof(half));
        ASSERT_EQ(floats[i], Decode(format, half)) << i << " of " << elements;
      }
    }
  }
}

TEST(HalfTest, ValuesThatNeedNoRoundingStay) {
  for (const Format& format : kFormats) {
    for (int i = 0; i < 65536; ++i) {
      const uint16_t half = static_cast<uint16_t>(i);
      const double value = Decode(format, half);
      if (std::isnan(value)) continue;
      ASSERT_EQ(RoundToHalf(format.type, static_cast<float>(value)), half);
    }
  }
}

TEST(HalfTest, TheNearestValueIsTakenAndTheEvenOneOfTwo) {
  for (const Format& format : kFormats) {
    const std::vector<double> magnitudes = Magnitudes(format);
    for (size_t k = 0; k + 1 < magnitudes.size(); ++k) {
      // Half-way to the next value, and the floats on both sides of that.
      const float middle =
          static_cast<float>((magnitudes[k] + magnitudes[k + 1]) / 2);
      for (const float value :
           {std::nextafterf(middle, 0), middle,
            std::nextafterf(middle, std::numeric_limits<float>::infinity())}) {
        for (const float signed_value : {value, -value}) {
          ASSERT_EQ(RoundToHalf(format.type, signed_value),
                    NaiveRound(magnitudes, signed_value))
              << Describe(format, signed_value);
        }
      }
    }
  }
}

TEST(HalfTest, AnyFloatIsRoundedAsByTheTwin) {
  Rng rng(2);
  for (const Format& format : kFormats) {
    const std::vector<double> magnitudes = Magnitudes(format);
    for (int i = 0; i < 300000; ++i) {
      const float value = FloatOf(static_cast<uint32_t>(rng.Below(1ull << 32)));
      if (std::isnan(value)) continue;
      ASSERT_EQ(RoundToHalf(format.type, value), NaiveRound(magnitudes, value))
          << Describe(format, value);
    }
  }
}

TEST(HalfTest, NaNStaysNaNWithItsSign) {
  // Quiet, signalling, and with nothing in the bits that are kept.
  for (const uint32_t bits : {0x7fc00000u, 0x7fa00000u, 0x7f800001u}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      for (const Format& format : kFormats) {
        const uint16_t half = RoundToHalf(format.type, FloatOf(sign | bits));
        EXPECT_TRUE(std::isnan(Decode(format, half)));
        EXPECT_EQ(half & 0x8000, sign >> 16);
      }
    }
  }
}

TEST(HalfTest, OfManyValuesTheFiniteStayFinite) {
  Rng rng(3);
  for (const Format& format : kFormats) {
    const float largest =
        format.type == HalfType::kBfloat16 ? FloatOf(0x7f7f0000) : 65504.0f;
    std::vector<float> values = {0, -0.0f, largest, -largest};
    for (const uint32_t bits :
         {0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u,
          0xff800001u, 0x477ff000u, 0x477fefffu, 0x38800000u, 0x387fffffu}) {
      values.push_back(FloatOf(bits));
    }
    for (int i = 0; i < 300000; ++i)
      values.push_back(FloatOf(static_cast<uint32_t>(rng.Below(1ull << 32))));
    std::vector<uint16_t> halves(values.size());
    RoundToFiniteHalf(
        format.type, reinterpret_cast<const std::byte*>(values.data()),
        values.size(), reinterpret_cast<std::byte*>(halves.data()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      const float within =
          std::isfinite(value) ? std::clamp(value, -largest, largest) : value;
      ASSERT_EQ(halves[i], RoundToHalf(format.type, within))
          << Describe(format, value);
    }
  }
}

}  // namespace slackline::half_test
