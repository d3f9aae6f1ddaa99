// Goal: a worker is as slow as its conditions say, step by step, and the same
// again in a run that is repeated.
#include "worker/conditions/pacer.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace slackline::pacer_test {

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kCompute = absl::Milliseconds(10);

double Milliseconds(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

Pacer WithStep(double step_ms, double slowdown = 1) {
  Pacer::Options options;
  options.slowdown = slowdown;
  options.conditions.set_step_ms(step_ms);
  return Pacer(options);
}

TEST(PacerTest, WithoutConditionsThereIsNoSleep) {
  EXPECT_EQ(WithStep(0).SleepBefore(3, kCompute, kNow), absl::ZeroDuration());
}

TEST(PacerTest, AStepTakesAtLeastItsTime) {
  EXPECT_EQ(WithStep(25).SleepBefore(3, kCompute, kNow),
            absl::Milliseconds(15));
  EXPECT_EQ(WithStep(5).SleepBefore(3, kCompute, kNow), absl::ZeroDuration());
  EXPECT_EQ(WithStep(25).SleepBefore(0, absl::ZeroDuration(), kNow),
            absl::Milliseconds(25))
      << "the first step, before anything was measured";
}

TEST(PacerTest, TheSlowdownMultipliesTheLongerOfBoth) {
  EXPECT_EQ(WithStep(25, 3).SleepBefore(3, kCompute, kNow),
            absl::Milliseconds(3 * 25 - 10));
  EXPECT_EQ(WithStep(5, 3).SleepBefore(3, kCompute, kNow),
            absl::Milliseconds(2 * 10));
}

Pacer Periodic(double factor, double slow_ms, double fast_ms,
               double offset_ms) {
  Pacer::Options options;
  options.slowdown = 2;
  config::PeriodicSlowdown& periodic = *options.conditions.mutable_periodic();
  periodic.set_factor(factor);
  periodic.set_slow_ms(slow_ms);
  periodic.set_fast_ms(fast_ms);
  periodic.set_offset_ms(offset_ms);
  return Pacer(options);
}

TEST(PacerTest, SlowAndFastTimesFollowEachOtherFromTheOffsetOn) {
  Pacer pacer = Periodic(4, 100, 300, 50);
  const auto factor_at = [&](double ms) {
    return (Milliseconds(
                pacer.SleepBefore(0, kCompute, absl::Milliseconds(ms))) +
            10) /
           20;
  };
  EXPECT_EQ(factor_at(0), 1);
  EXPECT_EQ(factor_at(49), 1);
  EXPECT_EQ(factor_at(50), 4);
  EXPECT_EQ(factor_at(149), 4);
  EXPECT_EQ(factor_at(150), 1);
  EXPECT_EQ(factor_at(449), 1);
  EXPECT_EQ(factor_at(450), 4);
  EXPECT_EQ(factor_at(450 + 400 * 1000 + 99), 4);
  EXPECT_EQ(factor_at(450 + 400 * 1000 + 100), 1);
}

TEST(PacerTest, WithoutFastTimesItIsAlwaysSlow) {
  Pacer pacer = Periodic(3, 10, 0, 0);
  for (int ms = 0; ms < 100; ++ms) {
    EXPECT_EQ(pacer.SleepBefore(ms, kCompute, absl::Milliseconds(ms)),
              absl::Milliseconds(50));
  }
}

TEST(PacerTest, APauseComesOnceBeforeItsStepAndIsNotMultiplied) {
  Pacer::Options options;
  options.slowdown = 2;
  for (const int step : {5, 7, 5}) {
    config::Pause& pause = *options.conditions.add_pause();
    pause.set_step(step);
    pause.set_ms(1000 * step);
  }
  Pacer pacer(options);
  EXPECT_EQ(pacer.SleepBefore(4, kCompute, kNow), kCompute);
  EXPECT_EQ(pacer.SleepBefore(5, kCompute, kNow), kCompute + absl::Seconds(10));
  EXPECT_EQ(pacer.SleepBefore(5, kCompute, kNow), kCompute) << "tried again";
  EXPECT_EQ(pacer.SleepBefore(6, kCompute, kNow), kCompute);
  EXPECT_EQ(pacer.SleepBefore(7, kCompute, kNow), kCompute + absl::Seconds(7));
}

// ---- Random slow-downs ------------------------------------------------------

using Distribution = config::RandomSlowdown::Distribution;

// What is drawn for the first steps.
std::vector<double> Draws(Distribution distribution, double mean, uint64_t seed,
                          int rank, int steps) {
  Pacer::Options options;
  options.seed = seed;
  options.rank = Rank{rank};
  options.conditions.mutable_random()->set_distribution(distribution);
  options.conditions.mutable_random()->set_mean(mean);
  Pacer pacer(options);
  std::vector<double> draws;
  for (int step = 0; step < steps; ++step) {
    draws.push_back(
        Milliseconds(pacer.SleepBefore(step, absl::Seconds(1), kNow)) / 1000);
  }
  return draws;
}

class RandomSlowdownTest : public ::testing::TestWithParam<Distribution> {};

TEST_P(RandomSlowdownTest, IsAFunctionOfSeedRankAndStep) {
  const std::vector<double> draws = Draws(GetParam(), 1, 7, 2, 50);
  EXPECT_EQ(Draws(GetParam(), 1, 7, 2, 50), draws);
  EXPECT_NE(Draws(GetParam(), 1, 8, 2, 50), draws);
  EXPECT_NE(Draws(GetParam(), 1, 7, 3, 50), draws);
  EXPECT_NE(draws[0], draws[1]);
  // In any order, and again.
  Pacer::Options options;
  options.seed = 7;
  options.rank = Rank{2};
  options.conditions.mutable_random()->set_distribution(GetParam());
  options.conditions.mutable_random()->set_mean(1);
  Pacer pacer(options);
  for (const int step : {49, 3, 3, 20}) {
    EXPECT_EQ(
        Milliseconds(pacer.SleepBefore(step, absl::Seconds(1), kNow)) / 1000,
        draws[step]);
  }
}

TEST_P(RandomSlowdownTest, HasItsMedianAndScalesWithItsMean) {
  std::vector<double> one = Draws(GetParam(), 1, 1, 0, 20001);
  const std::vector<double> three = Draws(GetParam(), 3, 1, 0, 100);
  for (size_t i = 0; i < three.size(); ++i)
    EXPECT_NEAR(three[i], 3 * one[i], 1e-8 * three[i] + 1e-8);
  std::nth_element(one.begin(), one.begin() + 10000, one.end());
  const double median = one[10000];
  switch (GetParam()) {
    case config::RandomSlowdown::UNIFORM:
      EXPECT_NEAR(median, 1, 0.03);
      break;
    case config::RandomSlowdown::EXPONENTIAL:
      EXPECT_NEAR(median, 0.6931, 0.03);  // ln 2
      break;
    default:
      EXPECT_NEAR(median, 0.7071, 0.03);  // sqrt(2) / 2
  }
}

TEST_P(RandomSlowdownTest, StaysInItsRange) {
  const std::vector<double> draws = Draws(GetParam(), 2, 3, 1, 20000);
  const auto [least, most] = std::minmax_element(draws.begin(), draws.end());
  switch (GetParam()) {
    case config::RandomSlowdown::UNIFORM:
      EXPECT_GE(*least, 0);
      EXPECT_LT(*most, 4);
      EXPECT_GT(*most, 3.9);
      break;
    case config::RandomSlowdown::EXPONENTIAL:
      EXPECT_GE(*least, 0);
      EXPECT_GT(*most, 2 * 7);  // Of 20,000, with 1 - 1e-8.
      break;
    default:
      EXPECT_GE(*least, 1) << "half the mean";
      EXPECT_GT(*most, 30);  // Heavy tail.
  }
}

INSTANTIATE_TEST_SUITE_P(Distributions, RandomSlowdownTest,
                         ::testing::Values(config::RandomSlowdown::UNIFORM,
                                           config::RandomSlowdown::EXPONENTIAL,
                                           config::RandomSlowdown::PARETO),
                         [](const auto& info) {
                           return config::RandomSlowdown::Distribution_Name(
                               info.param);
                         });

TEST(PacerTest, MeansAreAsConfigured) {
  // Not of PARETO, whose variance is infinite.
  for (const Distribution distribution :
       {config::RandomSlowdown::UNIFORM, config::RandomSlowdown::EXPONENTIAL}) {
    const std::vector<double> draws = Draws(distribution, 0.5, 11, 4, 40000);
    double sum = 0;
    for (const double draw : draws) sum += draw;
    EXPECT_NEAR(sum / 40000, 0.5, 0.0125);  // 5 standard errors or more.
  }
}

}  // namespace slackline::pacer_test
