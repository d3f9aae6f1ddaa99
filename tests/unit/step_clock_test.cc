// Goal: each moment of a worker's thread is in one phase of one step. Method:
// steps over servers and by all-reduce, played by hand.
#include "worker/session/step_clock.h"

#include "common/metrics/step_phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

class StepClockTest : public ::testing::Test {
 protected:
  static absl::Time At(int ms) {
    return absl::UnixEpoch() + absl::Seconds(9) + absl::Milliseconds(ms);
  }
  static ClientCore::Parked Parked(int from, int until) {
    return {.from = At(from), .until = At(until)};
  }
  // Milliseconds so far: loading, computing, waiting, pushing, pulling,
  // reducing.
  std::vector<double> Sums() {
    std::vector<double> sums;
    for (const auto& [phase, seconds] : PhasesOf(stats_.phase_seconds()))
      sums.push_back(1000 * seconds);
    return sums;
  }
  static auto Are(const std::vector<double>& expected) {
    std::vector<::testing::Matcher<double>> each;
    for (const double ms : expected)
      each.push_back(::testing::DoubleNear(ms, 1e-6));
    return ::testing::ElementsAreArray(each);
  }

  StepClock clock_;
  run::WorkerStats stats_;
};

TEST_F(StepClockTest, AStepOverServers) {
  // Until the job begins nothing counts.
  clock_.Computed(At(-5000));
  clock_.Idled(At(-1000));
  clock_.Start(At(0));
  clock_.Granted({}, absl::InfinitePast());
  clock_.Computed(At(3));
  clock_.WasLoading(absl::Milliseconds(2));
  clock_.Pushed(At(4));
  clock_.Computed(At(9));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({2, 6, 0, 1, 0, 0}));
  // The script goes on for 1 ms; then gradients are acknowledged after 2 more,
  // the pull is parked for 20 and under way for 1, and copied for 1.
  clock_.Computed(At(10));
  clock_.Idled(At(33));
  clock_.Granted(Parked(12, 32), At(12));
  clock_.Computed(At(34));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({2, 8, 20, 3, 1, 0}));
  EXPECT_EQ(stats_.recent().steps(), 2);
  EXPECT_EQ(stats_.recent().count(), 2);
  EXPECT_NEAR(stats_.recent().mean().waiting(), 0.01, 1e-9);
}

TEST_F(StepClockTest, WhatWasParkedBeforeOrElsewhereIsNoWaiting) {
  clock_.Start(At(0));
  clock_.Computed(At(10));
  clock_.Idled(At(16));
  // Pulled ahead: it was parked beside the computation, too.
  clock_.Granted(Parked(1, 13), At(4));
  // A table that came later: parked until it came, but for 1 ms.
  clock_.Computed(At(20));
  clock_.PulledBehind(Parked(15, 24), At(25));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({0, 14, 3 + 4, 0, 3 + 1, 0}));
}

TEST_F(StepClockTest, OfSeveralTimesWithoutWorkTheLongestIsThePulls) {
  clock_.Start(At(0));
  clock_.Idled(At(7));  // Something else was to be done then,
  clock_.Computed(At(8));
  clock_.Idled(At(10));  // and after that the step.
  clock_.Granted({}, At(3));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({0, 1, 2, 3, 4, 0}));
}

TEST_F(StepClockTest, AStepByAllReduce) {
  clock_.Start(At(0));
  clock_.Idled(At(2));
  clock_.EndIdle();
  clock_.Computed(At(5));
  clock_.Reduced(At(6));
  clock_.Computed(At(20));
  clock_.WasReducing(absl::Milliseconds(10));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({0, 7, 2, 0, 0, 11}));
}

}  // namespace
}  // namespace slackline
