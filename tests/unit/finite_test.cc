// Goal: a NaN or an infinity is found wherever it is, and nothing else is taken
// for one; a sum of squares has the same bits on every instruction set, and
// finds NaNs and infinities as well.
// Method: one bad float at every place of arrays of every length around the
// vectors', at every alignment, on every instruction set of the machine; the
// extremes of what is finite.
#include "common/optim/finite.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/optim/squares.h"
#include "common/rng.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace slackline::optim::finite_test {

using Limits = std::numeric_limits<float>;

class FiniteTest : public ::testing::TestWithParam<int64_t> {
 protected:
  FiniteTest() { hwy::SetSupportedTargetsForTest(GetParam()); }
  ~FiniteTest() override { hwy::SetSupportedTargetsForTest(0); }

  static std::vector<std::byte> Misaligned(const std::vector<float>& floats,
                                           size_t misaligned) {
    std::vector<std::byte> bytes(floats.size() * sizeof(float) + misaligned);
    if (!floats.empty()) {
      std::memcpy(bytes.data() + misaligned, floats.data(),
                  floats.size() * sizeof(float));
    }
    return bytes;
  }
  static bool Check(const std::vector<float>& floats, size_t misaligned = 0) {
    const std::vector<std::byte> bytes = Misaligned(floats, misaligned);
    return AllFinite(bytes.data() + misaligned, floats.size());
  }
  static double Squares(const std::vector<float>& floats,
                        size_t misaligned = 0) {
    const std::vector<std::byte> bytes = Misaligned(floats, misaligned);
    return SumOfSquares(bytes.data() + misaligned, floats.size());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Targets, FiniteTest,
    ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
    [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

TEST_P(FiniteTest, OneBadFloatIsFoundWhereverItIs) {
  for (size_t elements = 1; elements <= 150; ++elements) {
    for (size_t at = 0; at < elements; ++at) {
      std::vector<float> floats(elements, -1.5F);
      ASSERT_TRUE(Check(floats, at % 4));
      for (const float bad :
           {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(),
            -Limits::infinity(), Limits::signaling_NaN()}) {
        floats[at] = bad;
        ASSERT_FALSE(Check(floats, at % 4))
            << bad << " at " << at << " of " << elements;
        ASSERT_FALSE(std::isfinite(Squares(floats, at % 4)))
            << bad << " at " << at << " of " << elements;
      }
    }
  }
}

TEST_P(FiniteTest, TheExtremesAreFinite) {
  for (const float value :
       {Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min(),
        -Limits::denorm_min(), 0.0F, -0.0F}) {
    EXPECT_TRUE(Check(std::vector<float>(100, value))) << value;
    EXPECT_TRUE(std::isfinite(Squares(std::vector<float>(100000, value))))
        << value;
  }
}

TEST_P(FiniteTest, NothingIsFinite) {
  EXPECT_TRUE(Check({}));
  EXPECT_EQ(Squares({}), 0);
}

// Against sixteen sums by hand.
TEST_P(FiniteTest, ASumOfSquaresHasTheSameBitsEverywhere) {
  Rng rng(3);
  for (size_t elements = 1; elements <= 200; ++elements) {
    std::vector<float> floats(elements);
    std::vector<double> sums(16, 0.0);
    for (size_t i = 0; i < elements; ++i) {
      floats[i] = static_cast<float>((rng.Uniform() - 0.5) *
                                     std::pow(10.0, rng.Between(-40, 36)));
      sums[i % 16] += static_cast<double>(floats[i]) * floats[i];
    }
    double expected = 0;
    for (const double sum : sums) expected += sum;
    ASSERT_EQ(Squares(floats, elements % 4), expected) << elements;
  }
}

}  // namespace slackline::optim::finite_test
