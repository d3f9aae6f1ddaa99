// Goal: a NaN or an infinity is found wherever it is, and nothing else is taken
// for one.
// Method: one bad float at every place of arrays of every length around the
// vectors', at every alignment, on every instruction set of the machine; the
// extremes of what is finite.
#include "common/optim/finite.h"

#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace slackline::optim {
namespace {

using Limits = std::numeric_limits<float>;

class FiniteTest : public ::testing::TestWithParam<int64_t> {
 protected:
  FiniteTest() { hwy::SetSupportedTargetsForTest(GetParam()); }
  ~FiniteTest() override { hwy::SetSupportedTargetsForTest(0); }

  static bool Check(const std::vector<float>& floats, size_t misaligned = 0) {
    std::vector<std::byte> bytes(floats.size() * sizeof(float) + misaligned);
    if (!floats.empty()) {
      std::memcpy(bytes.data() + misaligned, floats.data(),
                  floats.size() * sizeof(float));
    }
    return AllFinite(bytes.data() + misaligned, floats.size());
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
      }
    }
  }
}

TEST_P(FiniteTest, TheExtremesAreFinite) {
  for (const float value :
       {Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min(),
        -Limits::denorm_min(), 0.0F, -0.0F}) {
    EXPECT_TRUE(Check(std::vector<float>(100, value))) << value;
  }
}

TEST_P(FiniteTest, NothingIsFinite) { EXPECT_TRUE(Check({})); }

}  // namespace
}  // namespace slackline::optim
