// Goal: a GPU rounds to 16 bits as the CPU does.
#include "common/floats/half_cuda.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"

namespace slackline {
namespace {

constexpr HalfType kTypes[] = {HalfType::kBfloat16, HalfType::kFloat16};
constexpr uint16_t kGuard = 0xabcd;

class HalfCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { SL_SKIP_WITHOUT_GPU(); }
  void TearDown() override {
    cudaFree(in_);
    cudaFree(out_);
  }

  // Rounds `values` on the GPU, `in_shift` and `out_shift` elements behind
  // where memory begins, and expects the CPU's bits, and nothing around them.
  void ExpectBitsOfCpu(HalfType type, const std::vector<float>& values,
                       size_t in_shift = 0, size_t out_shift = 0) {
    const size_t room = values.size() + 8;
    if (room > room_) {
      cudaFree(in_);
      cudaFree(out_);
      ASSERT_EQ(
          cudaMalloc(reinterpret_cast<void**>(&in_), room * sizeof(float)),
          cudaSuccess);
      ASSERT_EQ(
          cudaMalloc(reinterpret_cast<void**>(&out_), room * sizeof(uint16_t)),
          cudaSuccess);
      room_ = room;
    }
    std::vector<uint16_t> actual(room, kGuard);
    std::vector<uint16_t> expected = actual;
    std::transform(values.begin(), values.end(), expected.begin() + out_shift,
                   [&](float value) { return RoundToHalf(type, value); });
    ASSERT_EQ(cudaMemcpy(out_, actual.data(), room * sizeof(uint16_t),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    ASSERT_EQ(cudaMemcpy(in_ + in_shift, values.data(),
                         values.size() * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
    const absl::Status status = RoundToHalfAsync(
        type, in_ + in_shift, out_ + out_shift, values.size(), nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaMemcpy(actual.data(), out_, room * sizeof(uint16_t),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    const auto differs =
        std::mismatch(actual.begin(), actual.end(), expected.begin());
    ASSERT_EQ(differs.first, actual.end())
        << "element " << differs.first - actual.begin() - int64_t(out_shift)
        << " is 0x" << std::hex << *differs.first << " on the GPU and 0x"
        << *differs.second << " on the CPU";
  }

  float* in_ = nullptr;
  uint16_t* out_ = nullptr;
  size_t room_ = 0;
};

// Every sign, exponent and upper part of a fraction, with lower parts that lie
// at, beside and far from half-way: all ways to round, NaN and infinity too.
TEST_F(HalfCudaTest, EveryKindOfFloatIsRoundedAsOnTheCpu) {
  for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u,
                             0x1fffu, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    std::vector<float> values(65536);
    for (uint32_t high = 0; high < 65536; ++high) {
      const uint32_t bits = high << 16 | low;
      std::memcpy(&values[high], &bits, sizeof(bits));
    }
    for (const HalfType type : kTypes) {
      SCOPED_TRACE(absl::StrCat("low bits ", low));
      ASSERT_NO_FATAL_FAILURE(ExpectBitsOfCpu(type, values));
    }
  }
}

TEST_F(HalfCudaTest, AnyLengthAtAnyAlignmentIsRounded) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    std::vector<float> values(seed <= 20 ? seed - 1 : rng.Between(1, 3000));
    for (float& value : values) value = static_cast<float>(rng.Normal());
    const size_t in_shift = rng.Below(4);
    const size_t out_shift = rng.Chance(0.5) ? in_shift : rng.Below(4);
    for (const HalfType type : kTypes) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      ASSERT_NO_FATAL_FAILURE(
          ExpectBitsOfCpu(type, values, in_shift, out_shift));
    }
  }
}

}  // namespace
}  // namespace slackline
