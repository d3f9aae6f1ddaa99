// Goal: how a worker's job ends: how long one that leaves waits for whom, and
// how long the chief tries to write the model. Method: virtual time by hand.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"
#include "worker/core/conclusion.h"
#include "worker/core/departure.h"

namespace slackline::worker_ends_test {

using ::testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(2);
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

TEST(DepartureTest, NothingIsDueUntilSomethingHappens) {
  const Departure departure;
  EXPECT_EQ(departure.NextWakeup(/*leaving=*/false), absl::InfiniteFuture());
  EXPECT_FALSE(departure.GivesUpJoining(kNow));
  EXPECT_FALSE(departure.VerdictIsOverdue(kNow));
  EXPECT_FALSE(departure.GivesUpLeaving(kNow));
}

TEST(DepartureTest, TheCoordinatorIsAskedOnceForItsVerdict) {
  Departure departure;
  EXPECT_TRUE(departure.OnFenced(kNow, kLease));
  EXPECT_FALSE(departure.OnFenced(kNow + kLease, kLease));
  const absl::Time due = departure.NextWakeup(/*leaving=*/false);
  EXPECT_EQ(due, kNow + 2 * kLease);
  EXPECT_FALSE(departure.VerdictIsOverdue(due - absl::Milliseconds(1)));
  EXPECT_TRUE(departure.VerdictIsOverdue(due));
}

TEST(DepartureTest, ASuspensionWaitsForJoiningButNotForLong) {
  Departure departure;
  EXPECT_TRUE(departure.SuspendWhenJoined("its time is over", kNow));
  EXPECT_FALSE(departure.SuspendWhenJoined("once more", kNow));
  EXPECT_FALSE(departure.GivesUpJoining(kNow));
  EXPECT_TRUE(departure.GivesUpJoining(kNow + Departure::kSuspendJoinMax));
  EXPECT_EQ(departure.OnJoined(), "its time is over");
  EXPECT_FALSE(departure.GivesUpJoining(kNow + Departure::kSuspendJoinMax));
  EXPECT_EQ(departure.OnJoined(), "") << "it is asked for once";
}

TEST(DepartureTest, OnlyTheAnswerToItsLeavingEndsIt) {
  Departure departure;
  EXPECT_FALSE(departure.OnAnswer(0)) << "it is not leaving";
  departure.OnLeaving(5, kNow);
  EXPECT_FALSE(departure.OnAnswer(4));
  EXPECT_TRUE(departure.OnAnswer(5));
  EXPECT_FALSE(departure.OnAnswer(5));
  EXPECT_TRUE(departure.GivesUpLeaving(departure.NextWakeup(true)));
  EXPECT_EQ(departure.NextWakeup(/*leaving=*/false), absl::InfiniteFuture());
}

TEST(DepartureTest, WhoStopsTheJobWaitsForItsEnd) {
  Departure departure;
  departure.OnStopping(kNow, kLease);
  EXPECT_EQ(departure.NextWakeup(/*leaving=*/true), kNow + 2 * kLease);
}

TEST(DepartureTest, TimeInWhichItDidNotRunIsNoWait) {
  Departure departure;
  departure.OnFenced(kNow, kLease);
  departure.OnMissed(absl::Seconds(30));
  EXPECT_EQ(departure.NextWakeup(/*leaving=*/false),
            kNow + 2 * kLease + absl::Seconds(30));
  EXPECT_FALSE(departure.GivesUpJoining(kNow + absl::Hours(9)));
}

class ConclusionTest : public ::testing::Test {
 protected:
  absl::Status Fail(absl::Time now) {
    log_.clear();
    return conclusion_.OnSaveFailed(absl::ResourceExhaustedError("no space"),
                                    now, &log_);
  }
  static std::shared_ptr<const View> ViewOf(bool first_done, bool second_done) {
    wire::View view = SmallView({.workers = {7, 8}});
    view.mutable_worker(0)->set_done(first_done);
    view.mutable_worker(1)->set_done(second_done);
    return Must(View::Create(view));
  }

  Conclusion conclusion_{{.rank = Rank{3},
                          .save_timeout = absl::Seconds(10),
                          .save_retry = absl::Seconds(4)}};
  std::string log_;
};

TEST_F(ConclusionTest, TheChiefConcludesWhenAllAreDone) {
  EXPECT_FALSE(Conclusion::IsDue(*ViewOf(true, false), 7));
  EXPECT_TRUE(Conclusion::IsDue(*ViewOf(true, true), 7));
  EXPECT_FALSE(Conclusion::IsDue(*ViewOf(true, true), 8));
}

TEST_F(ConclusionTest, AModelThatCannotBeWrittenIsTriedAgainInTime) {
  EXPECT_EQ(conclusion_.save_again_at(), absl::InfiniteFuture());
  ASSERT_TRUE(Fail(kNow).ok());
  EXPECT_THAT(log_, HasSubstr("no space"));
  EXPECT_EQ(conclusion_.save_failure(), "no space");
  EXPECT_FALSE(conclusion_.SavesAgain(kNow));
  EXPECT_TRUE(conclusion_.SavesAgain(kNow + absl::Seconds(4)));
  EXPECT_FALSE(conclusion_.SavesAgain(kNow + absl::Seconds(4)));
  ASSERT_TRUE(Fail(kNow + absl::Seconds(8)).ok());
  EXPECT_EQ(log_, "") << "it was said";
  EXPECT_EQ(conclusion_.save_again_at(), kNow + absl::Seconds(10))
      << "there is a last attempt";
  const absl::Status status = Fail(kNow + absl::Seconds(10));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(ConclusionTest, TimeInWhichItDidNotRunIsNoAttempt) {
  ASSERT_TRUE(Fail(kNow).ok());
  conclusion_.OnMissed(absl::Minutes(1));
  EXPECT_TRUE(Fail(kNow + absl::Minutes(1)).ok());
}

}  // namespace slackline::worker_ends_test
