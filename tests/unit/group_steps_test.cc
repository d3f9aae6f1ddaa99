// Goal: a worker knows its group, what of its step survives a lost group, when
// it gives up connecting, and who was at fault. Method: groups by hand, on
// virtual time.
#include "worker/core/group_steps.h"

#include <memory>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"

namespace slackline::group_steps_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(2);

class GroupStepsTest : public ::testing::Test {
 protected:
  // Workers 0 to 2; worker 1 has left if `without_1`.
  static std::shared_ptr<const View> ViewOf(uint64_t group,
                                            bool without_1 = false) {
    wire::View view =
        SmallView({.group = group, .mode = "allreduce", .workers = {7, 8, 9}});
    if (without_1) view.mutable_worker()->DeleteSubrange(1, 1);
    return Must(View::Create(view));
  }
  worker_action::Connect Connect(const std::shared_ptr<const View>& view) {
    return group_.ConnectTo(*view, Rank{2}, now_);
  }

  GroupSteps group_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(GroupStepsTest, ItConnectsToAllOfTheViewInOrder) {
  const std::shared_ptr<const View> view = ViewOf(5, /*without_1=*/true);
  const worker_action::Connect connect = Connect(view);
  EXPECT_EQ(connect.group, 5u);
  EXPECT_THAT(connect.ranks, ElementsAre(0, 2));
  EXPECT_EQ(connect.self, 1);
  EXPECT_TRUE(group_.IsOf(*view));
  EXPECT_FALSE(group_.IsOf(*ViewOf(6)));
}

TEST_F(GroupStepsTest, QuickFailuresAreGivenUpAfterSome) {
  for (int attempt = 1; attempt < 5; ++attempt) {
    Connect(ViewOf(5));
    now_ += absl::Milliseconds(10);
    EXPECT_FALSE(group_.OnConnectFailed(now_, kLease)) << attempt;
  }
  Connect(ViewOf(5));
  EXPECT_TRUE(group_.OnConnectFailed(now_, kLease));
  EXPECT_EQ(group_.failed_connects(), 5);
}

TEST_F(GroupStepsTest, SlowFailuresAreGivenUpAfterTwoLeases) {
  absl::Duration failing;
  bool given_up = false;
  while (!given_up && failing < 10 * kLease) {
    Connect(ViewOf(5));
    now_ += absl::Milliseconds(400);
    failing += absl::Milliseconds(400);
    given_up = group_.OnConnectFailed(now_, kLease);
  }
  EXPECT_TRUE(given_up);
  EXPECT_GT(failing, 2 * kLease);
  EXPECT_LE(failing, 2 * kLease + absl::Milliseconds(400));
}

TEST_F(GroupStepsTest, AConnectionEndsTheRowOfFailures) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    Connect(ViewOf(5));
    EXPECT_FALSE(group_.OnConnectFailed(now_, kLease));
  }
  Connect(ViewOf(5));
  group_.OnCaughtUp();
  EXPECT_EQ(group_.failed_connects(), 0);
  Connect(ViewOf(6));
  EXPECT_FALSE(group_.OnConnectFailed(now_, kLease));
}

TEST_F(GroupStepsTest, ValuesAreItsOwnUntilAGroupHasAgreed) {
  group_.BeginWith(/*own_values=*/true);
  EXPECT_TRUE(group_.StandingAt(0).own_values);
  group_.OnCaughtUp();
  EXPECT_FALSE(group_.StandingAt(0).own_values);
  EXPECT_EQ(group_.StandingAt(3).clock, 3);
}

TEST_F(GroupStepsTest, AComputedPartSurvivesTheGroupButNotAnotherState) {
  EXPECT_FALSE(group_.HasComputed(4));
  group_.BeginStep();
  EXPECT_FALSE(group_.waits_for_sum());
  group_.OnComputed(4, /*again=*/true);
  EXPECT_TRUE(group_.waits_for_sum());
  group_.OnLost(4, absl::UnavailableError("gone"), now_);
  EXPECT_TRUE(group_.HasComputed(4));
  EXPECT_FALSE(group_.HasComputed(5));
  group_.ForgetComputed();
  EXPECT_FALSE(group_.HasComputed(4));
}

TEST_F(GroupStepsTest, APartWithoutExamplesIsMadeAnew) {
  group_.OnComputed(4, /*again=*/false);
  EXPECT_TRUE(group_.waits_for_sum());
  EXPECT_FALSE(group_.HasComputed(4));
}

TEST_F(GroupStepsTest, CulpritsAreNamedByTheirRanksInTheJob) {
  Connect(ViewOf(5, /*without_1=*/true));
  const GroupSteps::Culprits culprits = group_.CulpritsOf(
      {.loss = 1, .nonfinite = true, .culprits = {Rank{1}, Rank{9}}}, 3);
  EXPECT_THAT(culprits.workers, ElementsAre(2)) << "9 is none of the group";
  EXPECT_THAT(culprits.what, HasSubstr("worker 2"));
  EXPECT_THAT(
      group_.CulpritsOf({.loss = 1, .nonfinite = true, .culprits = {}}, 3)
          .workers,
      IsEmpty());
}

TEST_F(GroupStepsTest, ALossIsToldOnceAfterTheEndOfTheJobMayHaveCome) {
  EXPECT_EQ(group_.tell_at(), absl::InfiniteFuture());
  EXPECT_EQ(group_.TakeLoss(), std::nullopt);
  group_.OnLost(4, absl::UnavailableError("the cable is out"), now_);
  EXPECT_GT(group_.tell_at(), now_);
  EXPECT_LE(group_.tell_at(), now_ + absl::Seconds(1));
  EXPECT_THAT(group_.TakeLoss().value_or(""), HasSubstr("the cable is out"));
  EXPECT_EQ(group_.TakeLoss(), std::nullopt);
  EXPECT_EQ(group_.tell_at(), absl::InfiniteFuture());
}

}  // namespace slackline::group_steps_test
