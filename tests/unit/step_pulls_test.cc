// Goal: one pull is open at a time, the state has its turn between two, and
// parameters are asked for early only where they miss nothing that they need.
// Method: a client of one shard whose messages nobody answers.
#include "worker/core/step_pulls.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"

namespace slackline::step_pulls_test {

std::shared_ptr<const View> ViewOf(const std::string& mode,
                                   std::vector<Incarnation> workers = {7, 8}) {
  return Must(
      View::Create(SmallView({.mode = mode, .workers = std::move(workers)})));
}

class StepPullsTest : public ::testing::Test {
 protected:
  StepPullsTest() {
    Ask([&](const auto& client) { pulls_.Join(client); });
    pulls_.Close();
  }
  template <typename What>
  void Ask(const What& what) {
    ClientCore::Effects effects;
    what(StepPulls::Client{client_, absl::UnixEpoch(), &effects});
  }
  bool AskState(Clock clock) {
    bool asked = false;
    Ask([&](const auto& client) {
      asked = pulls_.AskStateIfFree(client, *view_, clock);
    });
    return asked;
  }

  std::shared_ptr<const View> view_ = ViewOf("asp");
  ClientCore client_{{.rank = Rank{0}, .incarnation = 7}, view_};
  StepPulls pulls_;
};

TEST_F(StepPullsTest, AnOpenPullHasWhatWasPushedBeforeItsClock) {
  EXPECT_FALSE(pulls_.is_open());
  Ask([&](const auto& client) { pulls_.Ask(client, 4, 3); });
  EXPECT_TRUE(pulls_.is_open());
  EXPECT_NE(pulls_.id(), 0u);
  EXPECT_TRUE(pulls_.HasOwn(3));
  EXPECT_FALSE(pulls_.HasOwn(4)) << "it runs ahead of the step before";
  pulls_.Close();
  EXPECT_FALSE(pulls_.is_open());
  EXPECT_TRUE(pulls_.HasOwn(3)) << "as its answer has";
}

TEST_F(StepPullsTest, TheStateWaitsForTheOpenPull) {
  Ask([&](const auto& client) { pulls_.Ask(client, 0, 0); });
  pulls_.WantState(StateParts::kAll);
  EXPECT_TRUE(pulls_.asks_state());
  EXPECT_FALSE(AskState(0));
  pulls_.Close();
  EXPECT_TRUE(AskState(0));
  EXPECT_FALSE(AskState(0)) << "it is asked for once";
  EXPECT_TRUE(pulls_.asks_state());
  EXPECT_FALSE(pulls_.IsFree());
  EXPECT_FALSE(pulls_.is_open());
}

TEST_F(StepPullsTest, OnlyItsOwnAnswerIsTheState) {
  pulls_.WantState(StateParts::kAll);
  Ask([&](const auto& client) { pulls_.Ask(client, 0, 0); });
  PullResult result;
  result.pull_id = pulls_.id();
  EXPECT_FALSE(pulls_.TakesState(result));
  pulls_.Close();
  ASSERT_TRUE(AskState(0));
  ++result.pull_id;
  EXPECT_TRUE(pulls_.TakesState(result));
  EXPECT_FALSE(pulls_.asks_state());
  EXPECT_FALSE(pulls_.TakesState(result));
}

TEST_F(StepPullsTest, APullThatWaitsForTheStepIsForgottenForTheState) {
  Ask([&](const auto& client) { pulls_.Ask(client, 1, 1); });
  // The program is in step 0, whose gradients the pull waits for.
  Ask([&](const auto& client) {
    EXPECT_TRUE(pulls_.ForgetForState(client, 0));
  });
  EXPECT_FALSE(pulls_.is_open());
  Ask([&](const auto& client) { pulls_.Ask(client, 1, 1); });
  Ask([&](const auto& client) {
    EXPECT_FALSE(pulls_.ForgetForState(client, 1));
  });
  EXPECT_TRUE(pulls_.is_open());
}

TEST_F(StepPullsTest, ParametersThatHaveComeKeepOthersFromBeingAskedFor) {
  EXPECT_TRUE(pulls_.IsFree());
  pulls_.Keep(std::make_shared<const PullResult>());
  EXPECT_FALSE(pulls_.IsFree());
  EXPECT_NE(pulls_.Take(), nullptr);
  EXPECT_EQ(pulls_.parameters(), nullptr);
  EXPECT_TRUE(pulls_.IsFree());
}

TEST_F(StepPullsTest, WhichModesLetParametersMissTheLastStep) {
  EXPECT_FALSE(StepPulls::MayMissLastStep(*ViewOf("bsp"), 3));
  EXPECT_TRUE(StepPulls::MayMissLastStep(*ViewOf("asp"), 3));
  EXPECT_TRUE(StepPulls::MayMissLastStep(*ViewOf("ssp:2"), 3));
  EXPECT_FALSE(StepPulls::MayMissLastStep(*ViewOf("ssp:0"), 3));
}

TEST_F(StepPullsTest, BehindPushesNothingOfOthersMayBeMissed) {
  EXPECT_TRUE(StepPulls::MayFollowPushes(*ViewOf("bsp"), 3));
  EXPECT_FALSE(StepPulls::MayFollowPushes(*ViewOf("asp"), 3));
  EXPECT_TRUE(StepPulls::MayFollowPushes(*ViewOf("asp", {7}), 3))
      << "a worker alone misses nobody's";
}

TEST_F(StepPullsTest, APullWithAGivenTurnMissesNothingBehindThePushes) {
  EXPECT_FALSE(StepPulls::HasGivenTurn(*ViewOf("asp"), 3));
  wire::View given = SmallView({.mode = "asp", .workers = {7, 8}});
  given.mutable_phase(0)->mutable_mode()->mutable_delays()->set_given(
      "uniform:8");
  const std::shared_ptr<const View> view = Must(View::Create(given));
  EXPECT_TRUE(StepPulls::HasGivenTurn(*view, 3));
  EXPECT_TRUE(StepPulls::MayFollowPushes(*view, 3));
}

}  // namespace slackline::step_pulls_test
