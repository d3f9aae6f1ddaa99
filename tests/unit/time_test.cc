// Goal: nothing is decided by a clock that people can set, and a core that was
// kept from running does not count that time.
#include <string>

#include "absl/time/clock.h"
#include "common/time/awake_clock.h"
#include "common/time/time_source.h"
#include "gtest/gtest.h"

namespace slackline::time_test {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(TimeSource, OnlyTheTimeOfDayJumps) {
  for (const absl::Duration step : {absl::Hours(1), -absl::Hours(1)}) {
    const TimeSource time;
    const TimeSource stepped({.by = step, .after = absl::ZeroDuration()});
    EXPECT_LT(absl::AbsDuration(stepped.WallNow() - time.WallNow() - step),
              absl::Minutes(1));
    EXPECT_LT(absl::AbsDuration(stepped.Now() - time.Now()), absl::Minutes(1));
  }
}

TEST(TimeSource, TheJumpWaitsForItsMoment) {
  const TimeSource later({.by = absl::Hours(1), .after = absl::Hours(1)});
  EXPECT_LT(absl::AbsDuration(later.WallNow() - absl::Now()), absl::Minutes(1));
}

TEST(TimeSource, NeverGoesBack) {
  const TimeSource time;
  absl::Time last = time.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = time.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(AwakeClock, RunsInTimeCountInFull) {
  AwakeClock clock(absl::Seconds(1));
  clock.Run(kStart);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(clock.NextRun(), kStart + i * absl::Seconds(1));
    EXPECT_EQ(clock.Run(kStart + i * absl::Seconds(1)), absl::ZeroDuration());
  }
  EXPECT_EQ(clock.At(kStart + absl::Seconds(10)), kStart + absl::Seconds(10));
}

TEST(AwakeClock, OfAnAbsenceOnlyOneGapCounts) {
  AwakeClock clock(absl::Seconds(1));
  clock.Run(kStart);
  const absl::Time heard = clock.At(kStart);
  const absl::Time back = kStart + absl::Seconds(30);
  EXPECT_EQ(clock.At(back) - heard, absl::Seconds(1)) << "before it is told";
  EXPECT_EQ(clock.Run(back), absl::Seconds(29));
  EXPECT_EQ(clock.At(back) - heard, absl::Seconds(1));
  EXPECT_EQ(clock.missed(), absl::Seconds(29));
  // It goes on from there.
  clock.Run(back + absl::Seconds(1));
  EXPECT_EQ(clock.At(back + absl::Seconds(1)) - heard, absl::Seconds(2));
  EXPECT_EQ(clock.RealTimeOf(heard + absl::Seconds(5)),
            back + absl::Seconds(4));
}

TEST(AwakeClock, ManySmallDelaysOfAStarvedProcessAddUp) {
  AwakeClock clock(absl::Milliseconds(400));
  clock.Run(kStart);
  absl::Time now = kStart;
  for (int i = 0; i < 10; ++i) clock.Run(now += absl::Seconds(1));
  EXPECT_EQ(clock.At(now) - kStart, absl::Seconds(4));
}

TEST(AwakeClock, TheFirstRunStartsIt) {
  AwakeClock clock(absl::Seconds(1));
  EXPECT_EQ(clock.Run(kStart), absl::ZeroDuration());
  EXPECT_EQ(clock.At(kStart), kStart);
}

}  // namespace slackline::time_test
