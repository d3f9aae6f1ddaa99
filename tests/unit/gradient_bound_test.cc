// Goal: the size of a gradient, its running mean and the two bounds are what
// common/optim/gradient_bound.h says.
#include "common/optim/gradient_bound.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace slackline::gradient_bound_test {

config::GradientBound Bound(double rms, double times, int warm_up) {
  config::GradientBound bound;
  if (rms > 0) bound.set_rms(rms);
  if (times > 0) {
    bound.set_times_running_rms(times);
    bound.set_warm_up_gradients(warm_up);
  }
  return bound;
}

std::optional<double> Measure(const GradientBound& bound,
                              const std::vector<float>& floats) {
  return bound.Measure(reinterpret_cast<const std::byte*>(floats.data()),
                       floats.size());
}

// ---- Sizes ------------------------------------------------------------------

TEST(GradientBoundTest, TheSizeIsTheRootMeanSquare) {
  const GradientBound bound(Bound(1, 0, 0));
  EXPECT_EQ(Measure(bound, {3, -4, 0, 0}), 2.5);
  EXPECT_EQ(Measure(bound, std::vector<float>(1000, -0.5F)), 0.5);
  EXPECT_EQ(Measure(bound, {0, -0.0F}), 0.0);
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(Measure(bound, {kMax, kMax, -kMax}), kMax);
}

TEST(GradientBoundTest, WithANanOrAnInfinityThereIsNoSize) {
  for (const GradientBound& bound :
       {GradientBound(), GradientBound(Bound(1, 0, 0))}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(Measure(bound, {1, 2, bad, 3}), std::nullopt);
    }
  }
}

TEST(GradientBoundTest, WithoutABoundNothingIsMeasuredAndNothingIsAbove) {
  const GradientBound none;
  EXPECT_FALSE(none.any());
  EXPECT_EQ(Measure(none, {1e30F, 3}), 0.0);
  EXPECT_EQ(none.Judge(1e30, RunningRms(1, 1000)), std::nullopt);
}

// ---- The running root mean square -------------------------------------------

TEST(RunningRmsTest, IsTheMeanAtFirstAndDecaysLater) {
  RunningRms running;
  running.Add(2);
  EXPECT_EQ(running, RunningRms(2, 1));
  running.Add(4);
  EXPECT_EQ(running, RunningRms(3, 2));
  for (int i = 0; i < 100000; ++i) running.Add(8);
  EXPECT_NEAR(running.mean(), 8, 1e-9);
  EXPECT_EQ(running.count(), 100002u);
  running.Add(8 + 100);
  EXPECT_NEAR(running.mean(), 9, 1e-9) << "one of the last hundred";
}

TEST(RunningRmsTest, GradientsOfZerosDoNotCount) {
  RunningRms running;
  running.Add(0);
  EXPECT_EQ(running, RunningRms());
  running.Add(2);
  running.Add(0);
  EXPECT_EQ(running, RunningRms(2, 1));
}

TEST(RunningRmsTest, OfPartsIsThatOfAllElements) {
  const RunningRms exact(0.1, 7);
  RunningRmsOfParts one;
  one.Add(exact, 3);
  EXPECT_EQ(one.Whole(), exact) << "to the last bit";
  RunningRmsOfParts two;
  two.Add(RunningRms(7, 300), 1);
  two.Add(RunningRms(1, 200), 3);
  EXPECT_DOUBLE_EQ(two.Whole().mean(), std::sqrt((49.0 + 3) / 4));
  EXPECT_EQ(two.Whole().count(), 200u);
  two.Add(RunningRms(), 5);
  EXPECT_EQ(two.Whole(), RunningRms()) << "nothing is known of a part";
}

// ---- Bounds -----------------------------------------------------------------

TEST(GradientBoundTest, WhatIsAboveTheRmsIsNamedWithIt) {
  const GradientBound bound(Bound(2.5, 0, 0));
  EXPECT_EQ(bound.Judge(2.5, RunningRms()), std::nullopt);
  const auto excess = bound.Judge(2.6, RunningRms());
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->rms, 2.6);
  EXPECT_EQ(excess->bound, 2.5);
  EXPECT_EQ(excess->running, std::nullopt);
}

TEST(GradientBoundTest, TheRunningOneHoldsOnceSoManyHaveCome) {
  const GradientBound bound(Bound(0, 4, 10));
  EXPECT_EQ(bound.Judge(1e6, RunningRms(0.5, 9)), std::nullopt);
  EXPECT_EQ(bound.Judge(2, RunningRms(0.5, 10)), std::nullopt);
  const auto excess = bound.Judge(2.1, RunningRms(0.5, 10));
  ASSERT_TRUE(excess.has_value());
  EXPECT_EQ(excess->bound, 2);
  EXPECT_EQ(excess->running, 0.5);
}

TEST(GradientBoundTest, TheSmallerOneOfBothHolds) {
  const GradientBound bound(Bound(1, 4, 10));
  EXPECT_EQ(bound.Judge(1.5, RunningRms(100, 10))->running, std::nullopt);
  EXPECT_EQ(bound.Judge(0.9, RunningRms(0.1, 10))->running, 0.1);
  EXPECT_EQ(bound.Judge(0.9, RunningRms(100, 10)), std::nullopt);
}

TEST(GradientBoundTest, ThePolicySaysWhetherItStopsTheJob) {
  config::GradientBound config = Bound(1, 0, 0);
  EXPECT_TRUE(GradientBound(config).stops());
  config.set_policy(config::GradientBound::SKIP);
  EXPECT_FALSE(GradientBound(config).stops());
}

}  // namespace slackline::gradient_bound_test
