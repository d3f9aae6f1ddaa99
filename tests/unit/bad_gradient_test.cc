// Goal: the steps that the config names have a NaN, or are scaled, and no
// others; the gradient that others may hold stays as it is.
#include "worker/conditions/bad_gradient.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace slackline::bad_gradient_test {

TEST(BadGradientTest, TheNamedStepsHaveOne) {
  config::Conditions conditions;
  EXPECT_FALSE(HasBadGradient(conditions, 0));
  conditions.add_nonfinite_at_step(3);
  conditions.add_nonfinite_at_step(0);
  EXPECT_TRUE(HasBadGradient(conditions, 0));
  EXPECT_FALSE(HasBadGradient(conditions, 1));
  EXPECT_TRUE(HasBadGradient(conditions, 3));
}

TEST(BadGradientTest, TheFirstFloatOfACopyBecomesNan) {
  const std::vector<float> floats = {1, 2, 3};
  const Payload gradient = Payload::Copy(floats.data(), 12);
  const Payload bad = WithNan(gradient);
  std::vector<float> seen(3);
  std::memcpy(seen.data(), bad.data(), 12);
  EXPECT_TRUE(std::isnan(seen[0]));
  EXPECT_EQ(seen[1], 2);
  EXPECT_EQ(seen[2], 3);
  EXPECT_EQ(std::memcmp(gradient.data(), floats.data(), 12), 0);
}

TEST(BadGradientTest, TheNamedStepsAreScaledInACopy) {
  config::Conditions conditions;
  EXPECT_EQ(ScaleOf(conditions, 3), std::nullopt);
  conditions.add_scaled_at_step(3);
  conditions.set_scaled_by(-1000);
  EXPECT_EQ(ScaleOf(conditions, 3), -1000.0F);
  EXPECT_EQ(ScaleOf(conditions, 2), std::nullopt);
  const std::vector<float> floats = {1, 2, -3};
  const Payload gradient = Payload::Copy(floats.data(), 12);
  const Payload scaled = Scaled(gradient, -1000);
  std::vector<float> seen(3);
  std::memcpy(seen.data(), scaled.data(), 12);
  EXPECT_EQ(seen, (std::vector<float>{-1000, -2000, 3000}));
  EXPECT_EQ(std::memcmp(gradient.data(), floats.data(), 12), 0);
}

}  // namespace slackline::bad_gradient_test
