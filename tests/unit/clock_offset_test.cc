// Goal: the coordinator's clock is where ClockOffset says, within the bound
// that it says, however uneven the two ways of a message are. Method: round
// trips by hand and drawn ones between two clocks of which the truth is known.
#include "common/membership/clock_offset.h"

#include <random>

#include "gtest/gtest.h"

namespace slackline::clock_offset_test {

const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(1);

TEST(ClockOffset, IsUnknownBeforeTheFirstRoundTrip) {
  EXPECT_FALSE(ClockOffset().At(kBegin).has_value());
}

TEST(ClockOffset, HalfOfARoundTripIsItsBound) {
  ClockOffset clock;
  clock.OnRoundTrip(kBegin, kBegin + absl::Seconds(100),
                    kBegin + absl::Milliseconds(4));
  const auto at = clock.At(kBegin + absl::Milliseconds(4));
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(at->offset, absl::Seconds(100) - absl::Milliseconds(2));
  EXPECT_EQ(at->bound, absl::Milliseconds(2));
}

TEST(ClockOffset, AnAnswerBeforeItsQuestionIsIgnored) {
  ClockOffset clock;
  clock.OnRoundTrip(kBegin, kBegin, kBegin - absl::Microseconds(1));
  EXPECT_FALSE(clock.At(kBegin).has_value());
}

TEST(ClockOffset, TheShortestRoundTripCountsUntilDriftMakesItWorse) {
  ClockOffset clock;
  clock.OnRoundTrip(kBegin, kBegin, kBegin + absl::Microseconds(20));
  const absl::Time later = kBegin + absl::Milliseconds(100);
  clock.OnRoundTrip(later, later, later + absl::Milliseconds(2));
  EXPECT_LT(clock.At(later)->bound, absl::Microseconds(300));
  const absl::Time much_later = kBegin + absl::Minutes(10);
  clock.OnRoundTrip(much_later, much_later, much_later + absl::Milliseconds(2));
  EXPECT_EQ(clock.At(much_later + absl::Milliseconds(2))->bound,
            absl::Milliseconds(1));
}

TEST(ClockOffset, AnotherCoordinatorsClockCountsAtOnce) {
  ClockOffset clock;
  clock.OnRoundTrip(kBegin, kBegin, kBegin + absl::Microseconds(20));
  const absl::Time later = kBegin + absl::Seconds(1);
  clock.OnRoundTrip(later, later + absl::Hours(5),
                    later + absl::Milliseconds(2));
  EXPECT_EQ(clock.At(later)->offset, absl::Hours(5) - absl::Milliseconds(1));
}

TEST(ClockOffset, TheTruthIsWithinTheBound) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> way(1e3);  // A millisecond.
  for (int seed = 0; seed < 50; ++seed) {
    ClockOffset clock;
    const absl::Duration ahead =
        absl::Seconds(std::uniform_real_distribution<>(-1e4, 1e4)(random));
    const double drift = std::uniform_real_distribution<>(
        -ClockOffset::kDriftMax, ClockOffset::kDriftMax)(random);
    const auto theirs = [&](absl::Time ours) {
      return ours + ahead + (ours - kBegin) * drift;
    };
    absl::Time now = kBegin;
    for (int beat = 0; beat < 100; ++beat) {
      const absl::Time sent = now;
      const absl::Time heard = sent + absl::Seconds(way(random));
      const absl::Time received = heard + absl::Seconds(way(random));
      clock.OnRoundTrip(sent, theirs(heard), received);
      now = received + absl::Seconds(way(random) * 500);
      const auto at = clock.At(now);
      ASSERT_TRUE(at.has_value());
      EXPECT_LE(absl::AbsDuration(now + at->offset - theirs(now)),
                at->bound + absl::Nanoseconds(10))
          << "seed " << seed << ", beat " << beat;
    }
  }
}

}  // namespace slackline::clock_offset_test
