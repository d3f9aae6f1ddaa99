// Goal: each moment of a worker's thread is in one phase of one step. Method:
// steps over servers and by all-reduce, played by hand.
#include "worker/session/step_clock.h"

#include "absl/strings/str_cat.h"
#include "common/metrics/step_phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::step_clock_test {

class StepClockTest : public ::testing::Test {
 protected:
  static absl::Time At(int ms) {
    return absl::UnixEpoch() + absl::Seconds(9) + absl::Milliseconds(ms);
  }
  static ParkedTime Parked(int from, int until) {
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

TEST_F(StepClockTest, WaitingForCopiesFromAGpuIsPushing) {
  clock_.WasPushing(absl::Milliseconds(9));  // Before the job begins.
  clock_.Start(At(0));
  clock_.WasPushing(absl::Milliseconds(4));
  clock_.Computed(At(10));
  clock_.Pushed(At(11));
  clock_.EndStep(&stats_);
  EXPECT_THAT(Sums(), Are({0, 6, 0, 5, 0, 0}));
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

// "name[begun, end) clock" in the order in which they begin, those that enclose
// others last of those that begin at the same time.
class StepClockTimelineTest : public StepClockTest {
 protected:
  std::vector<std::string> Events(absl::Time until) {
    const timeline::Part part = recorder_.End(until, 1 << 20);
    std::vector<std::string> texts;
    for (const timeline::Thread& thread : part.thread()) {
      int64_t begun = part.from_nanos() - absl::ToUnixNanos(At(0));
      for (int i = 0; i < thread.name_index_size(); ++i) {
        begun += thread.begun_nanos(i);
        texts.push_back(absl::StrCat(part.name(thread.name_index(i)), "[",
                                     begun / 1'000'000, ", ",
                                     (begun + thread.took_nanos(i)) / 1'000'000,
                                     ") ", thread.number(i)));
      }
    }
    return texts;
  }
  TimelineRecorder recorder_;
  StepClock traced_{recorder_.TrackOf("trainer")};
};

TEST_F(StepClockTimelineTest, PhasesAreWhereTheyWereAndCoverTheirStep) {
  traced_.Start(At(0));
  traced_.Computed(At(1));
  recorder_.Begin(At(0), absl::UnixEpoch());
  traced_.SetClock(4);
  traced_.WasLoading(absl::Milliseconds(2));
  traced_.Computed(At(4));
  traced_.Computed(At(6));
  traced_.Pushed(At(7));
  traced_.Computed(At(9));
  traced_.EndStep(&stats_);
  traced_.SetClock(5);
  traced_.Computed(At(10));
  traced_.Idled(At(33));
  traced_.Granted(Parked(14, 32), At(12));
  traced_.Computed(At(40));
  traced_.WasReducing(absl::Milliseconds(3));
  traced_.WasPushing(absl::Milliseconds(1));
  traced_.EndStep(&stats_);
  traced_.SetClock(6);
  traced_.Idled(At(42));
  traced_.EndIdle();
  EXPECT_THAT(
      Events(At(50)),
      ::testing::ElementsAre(
          "step[0, 9) 4", "loading[1, 3) 4", "computing[3, 6) 4",
          "pushing[6, 7) 4", "computing[7, 9) 4", "computing[9, 10) 5",
          "step[9, 40) 5", "pushing[10, 12) 5", "pulling[12, 14) 5",
          "waiting[14, 32) 5", "pulling[32, 33) 5", "computing[33, 36) 5",
          "pushing[36, 37) 5", "reducing[37, 40) 5", "waiting[40, 42) 6"));
  // What the statistics say is what they say without a timeline.
  EXPECT_THAT(Sums(), Are({2, 10, 18, 4, 3, 3}));
}

}  // namespace slackline::step_clock_test
