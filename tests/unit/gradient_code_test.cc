// Goal: what is encoded is decoded to what the code promises, in the bytes that
// it says, and slices of it to slices of that; and nothing that a peer sends as
// a code or a frame does harm.
#include "common/compress/gradient_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/floats/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::gradient_code_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using wire::Encoding;

std::vector<float> Normals(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

CodedGradient EncodeAll(const GradientCode& code,
                        const std::vector<float>& values,
                        Keep keep = Keep::kLargest, uint64_t seed = 1) {
  Payload bytes = Payload::Allocate(code.Bytes(values.size()));
  Rng rng(seed);
  Encode(code, keep, values, &rng, bytes.MutableData());
  return {std::move(bytes), code};
}

std::vector<float> Floats(const CodedGradient& gradient, size_t elements) {
  EXPECT_EQ(gradient.bytes.size(), gradient.code.Bytes(elements));
  std::vector<float> values(elements);
  EXPECT_TRUE(
      Decode(gradient.code, gradient.bytes.data(), absl::MakeSpan(values)));
  return values;
}

std::vector<float> Through(const GradientCode& code,
                           const std::vector<float>& values,
                           Keep keep = Keep::kLargest) {
  return Floats(EncodeAll(code, values, keep), values.size());
}

const GradientCode kCodes[] = {
    {.kind = Encoding::FLOAT32},
    {.kind = Encoding::BFLOAT16},
    {.kind = Encoding::FLOAT16},
    {.kind = Encoding::INT8, .block = 7},
    {.kind = Encoding::INT8, .block = 256},
    {.kind = Encoding::SIGN, .block = 5},
    {.kind = Encoding::SIGN, .block = 64},
    {.kind = Encoding::SPARSE, .block = 16, .kept = 3},
    {.kind = Encoding::SPARSE, .block = 65536, .kept = 100}};

TEST(GradientCode, TakesTheBytesThatItsFormatSays) {
  const auto bytes = [](GradientCode code, size_t elements) {
    return code.Bytes(elements);
  };
  EXPECT_EQ(bytes({.kind = Encoding::FLOAT32}, 1000), 4000u);
  EXPECT_EQ(bytes({.kind = Encoding::FLOAT16}, 1001), 2002u);
  // Three blocks of a scale and 256 codes, and one of a scale and 232.
  EXPECT_EQ(bytes({.kind = Encoding::INT8, .block = 256}, 1000),
            3u * 260 + 236);
  EXPECT_EQ(bytes({.kind = Encoding::INT8, .block = 256}, 1001),
            3u * 260 + 240);
  EXPECT_EQ(bytes({.kind = Encoding::SIGN, .block = 1024}, 1025), 132u + 8);
  // 41 of 4096 elements: 164 bytes of values and 84 of places.
  EXPECT_EQ(bytes({.kind = Encoding::SPARSE, .block = 4096, .kept = 41}, 4096),
            248u);
  for (const GradientCode& code : kCodes) EXPECT_EQ(code.Bytes(0), 0u);
}

TEST(GradientCode, RoundsToTheNearestOfSixteenBits) {
  const std::vector<float> values = Normals(1000, 1);
  for (const HalfType type : {HalfType::kBfloat16, HalfType::kFloat16}) {
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(RoundToHalf(type, value));
    std::vector<float> expected(values.size());
    ExpandHalf(type, reinterpret_cast<const std::byte*>(halves.data()),
               values.size(), expected.data());
    EXPECT_EQ(Through({.kind = type == HalfType::kBfloat16 ? Encoding::BFLOAT16
                                                           : Encoding::FLOAT16},
                      values),
              expected);
  }
}

TEST(GradientCode, Int8IsNoFurtherThanHalfAStepOfItsBlock) {
  const std::vector<float> values = Normals(1000, 2);
  const size_t block = 256;
  const std::vector<float> got =
      Through({.kind = Encoding::INT8, .block = block}, values);
  for (size_t begin = 0; begin < values.size(); begin += block) {
    const size_t end = std::min(values.size(), begin + block);
    float largest = 0;
    for (size_t i = begin; i < end; ++i)
      largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = begin; i < end; ++i)
      EXPECT_LE(std::fabs(got[i] - values[i]), largest / 127 * 0.5001f) << i;
  }
  EXPECT_THAT(Through({.kind = Encoding::INT8, .block = 4},
                      {127, -127, 0.4f, -1.6f, 0, 0, 0, 0}),
              ElementsAre(127, -127, 0, -2, 0, 0, 0, 0));
}

TEST(GradientCode, Int8TakesTheSmallestAndTheLargestFloats) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {smallest, largest}) {
    for (const float got :
         Through({.kind = Encoding::INT8, .block = 2}, {value, -value})) {
      EXPECT_TRUE(std::isfinite(got));
      EXPECT_LE(std::fabs(got), value);
    }
  }
}

TEST(GradientCode, SignIsTheMeanSizeOfItsBlock) {
  EXPECT_THAT(
      Through({.kind = Encoding::SIGN, .block = 4}, {1, -2, 3, -6, -5, 7}),
      ElementsAre(3, -3, 3, -3, -6, 6));
  const std::vector<float> values = Normals(100, 3);
  const std::vector<float> got =
      Through({.kind = Encoding::SIGN, .block = 64}, values);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(std::signbit(got[i]), std::signbit(values[i])) << i;
}

TEST(GradientCode, TopKKeepsTheLargestOfEachBlock) {
  const GradientCode code{.kind = Encoding::SPARSE, .block = 4, .kept = 2};
  EXPECT_THAT(Through(code, {1, -5, 3, 2, 0.5f, -0.25f, 7, 8, -9}),
              ElementsAre(0, -5, 3, 0, 0, 0, 7, 8, -9));
  // The first of equal ones.
  EXPECT_THAT(Through(code, {2, -2, 2, 2}), ElementsAre(2, -2, 0, 0));
}

TEST(GradientCode, RandomKKeepsEachElementEquallyOften) {
  const GradientCode code{.kind = Encoding::SPARSE, .block = 8, .kept = 2};
  const std::vector<float> ones(8, 1);
  std::vector<int> kept(8);
  constexpr int kRounds = 8000;
  for (int seed = 0; seed < kRounds; ++seed) {
    const std::vector<float> got =
        Floats(EncodeAll(code, ones, Keep::kRandom, seed), ones.size());
    EXPECT_EQ(std::count(got.begin(), got.end(), 1), 2);
    for (size_t i = 0; i < got.size(); ++i) kept[i] += got[i] != 0;
  }
  // A quarter of the rounds; the standard deviation is 39.
  for (const int times : kept) EXPECT_NEAR(times, kRounds / 4, 200);
}

TEST(GradientCode, ASliceIsWhatTheWholeHasThere) {
  const std::vector<float> values = Normals(1000, 4);
  for (const GradientCode& code : kCodes) {
    const CodedGradient whole = EncodeAll(code, values);
    const std::vector<float> expected = Floats(whole, values.size());
    Rng rng(5);
    for (int round = 0; round < 200; ++round) {
      const size_t begin = rng.Below(values.size());
      const size_t count = 1 + rng.Below(values.size() - begin);
      const CodedGradient part = Slice(whole, values.size(), begin, count);
      const std::vector<float> got = Floats(part, count);
      ASSERT_EQ(std::memcmp(got.data(), expected.data() + begin,
                            count * sizeof(float)),
                0)
          << code.kind << " from " << begin << ", " << count;
    }
    // Where blocks end nothing is decoded, nor copied.
    const auto block = static_cast<size_t>(code.block);
    if (2 * block > values.size()) continue;
    const CodedGradient part = Slice(whole, values.size(), block, block);
    EXPECT_EQ(part.code.kind, code.kind);
    EXPECT_EQ(part.bytes.data(), whole.bytes.data() + code.Bytes(block));
  }
}

TEST(GradientCode, ASliceOfASliceIsOneOfTheWhole) {
  const std::vector<float> values = Normals(512, 6);
  for (const GradientCode& code : kCodes) {
    const CodedGradient whole = EncodeAll(code, values);
    const std::vector<float> expected = Floats(whole, values.size());
    const CodedGradient half = Slice(whole, 512, 100, 300);
    const std::vector<float> got = Floats(Slice(half, 300, 13, 200), 200);
    EXPECT_EQ(std::memcmp(got.data(), expected.data() + 113,
                          got.size() * sizeof(float)),
              0)
        << code.kind;
  }
}

TEST(GradientCode, TravelsInAnEntry) {
  for (const GradientCode& code : kCodes) {
    const wire::Encoding encoding = EncodingOf(code, 77);
    EXPECT_EQ(FaultOf(encoding), "");
    EXPECT_EQ(encoding.elements(), 77);
    const GradientCode back = CodeOf(encoding);
    EXPECT_EQ(back.kind, code.kind);
    EXPECT_EQ(back.block, code.block);
    EXPECT_EQ(back.kept, code.kept);
  }
  EXPECT_EQ(FaultOf(wire::Encoding()), "");
  EXPECT_TRUE(CodeOf(wire::Encoding()).whole());
}

TEST(GradientCode, CodesThatCannotBeAreRefused) {
  const auto fault = [](int kind, int32_t block, int32_t kept) {
    wire::Encoding encoding;
    encoding.set_kind(static_cast<Encoding::Kind>(kind));
    encoding.set_block(block);
    encoding.set_kept(kept);
    return FaultOf(encoding);
  };
  EXPECT_THAT(fault(17, 1, 1), HasSubstr("no encoding 17"));
  EXPECT_THAT(fault(-1, 1, 1), HasSubstr("no encoding -1"));
  for (const int kind : {Encoding::INT8, Encoding::SIGN, Encoding::SPARSE}) {
    for (const int32_t block : {-1, 0, 65537})
      EXPECT_THAT(fault(kind, block, 1), HasSubstr("outside [1, 65536]"));
  }
  for (const int32_t kept : {-1, 0, 9})
    EXPECT_THAT(fault(Encoding::SPARSE, 8, kept), HasSubstr("of 8 elements"));
}

TEST(GradientCode, PlacesOutsideABlockOrTwiceAreRefused) {
  const GradientCode code{.kind = Encoding::SPARSE, .block = 8, .kept = 2};
  const auto decodes = [&](uint16_t first, uint16_t second, size_t elements) {
    std::vector<std::byte> frame(code.Bytes(elements));
    std::memcpy(frame.data() + 8, &first, sizeof(first));
    std::memcpy(frame.data() + 10, &second, sizeof(second));
    std::vector<float> values(elements);
    return Decode(code, frame.data(), absl::MakeSpan(values));
  };
  EXPECT_TRUE(decodes(0, 7, 8));
  EXPECT_FALSE(decodes(0, 8, 8));
  EXPECT_FALSE(decodes(0, 65535, 8));
  EXPECT_FALSE(decodes(3, 3, 8));
  EXPECT_FALSE(decodes(5, 4, 8));
  EXPECT_FALSE(decodes(0, 7, 5));  // The last block is shorter.
}

TEST(RoundParameters, IsTheNearestAndNeverInfiniteUnlessItWas) {
  PayloadMemory memory;
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const auto& [kind, type, bound] :
       {std::tuple(Encoding::BFLOAT16, HalfType::kBfloat16, 3.38953139e38f),
        std::tuple(Encoding::FLOAT16, HalfType::kFloat16, 65504.0f)}) {
    std::vector<float> values = Normals(1001, 3);
    const std::vector<float> special = {largest, -largest, bound,     -bound, 0,
                                        -0.0f,   infinity, -infinity, 1e-30f};
    values.insert(values.end(), special.begin(), special.end());
    const Payload floats =
        Payload::Copy(values.data(), values.size() * sizeof(float));
    const Payload rounded = RoundParameters(kind, floats, memory);
    ASSERT_EQ(rounded.size(), values.size() * 2);
    const Payload expanded = ExpandParameters(kind, rounded);
    ASSERT_EQ(expanded.size(), floats.size());
    std::vector<float> back(values.size());
    std::memcpy(back.data(), expanded.data(), expanded.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float within = std::isinf(values[i])
                               ? values[i]
                               : std::clamp(values[i], -bound, bound);
      const uint16_t half = RoundToHalf(type, within);
      float expected = 0;
      ExpandHalf(type, reinterpret_cast<const std::byte*>(&half), 1, &expected);
      EXPECT_EQ(back[i], expected) << values[i];
      EXPECT_EQ(std::isinf(back[i]), std::isinf(values[i])) << values[i];
    }
    EXPECT_EQ(RoundParameters(Encoding::FLOAT32, floats, memory).data(),
              floats.data());
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Payload rounded = RoundParameters(
      Encoding::FLOAT16, Payload::Copy(&nan, sizeof(nan)), memory);
  float back = 0;
  std::memcpy(&back, ExpandParameters(Encoding::FLOAT16, rounded).data(),
              sizeof(back));
  EXPECT_TRUE(std::isnan(back));
}

}  // namespace slackline::gradient_code_test
