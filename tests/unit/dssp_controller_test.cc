// Goal: the controller grants as many steps as bring the leader closest to the
// slowest worker's next push, to the leader only, and nothing unmeasured.
// Method: examples with two or three workers on a clock of the test.
#include "common/sync/dssp_controller.h"

#include "gtest/gtest.h"

namespace slackline {
namespace {

constexpr Rank kLead{0}, kSlow{1}, kThird{2};

class DsspControllerTest : public ::testing::Test {
 protected:
  DsspControllerTest() {
    for (const Rank rank : {kLead, kSlow}) gate_.Join(rank, 1, 0);
  }
  void Push(Rank rank, int at_ms, Incarnation incarnation = 1) {
    StalenessGate::Participant& who = *gate_.Find(rank, incarnation);
    controller_.OnPush(rank, incarnation, who.clock,
                       absl::UnixEpoch() + absl::Milliseconds(at_ms));
    gate_.Advance(who, who.clock + 1);
  }
  bool Grants(Rank rank, Clock clock, int64_t steps_max,
              Incarnation incarnation = 1) {
    StalenessGate::Pull pull;
    pull.rank = rank;
    pull.incarnation = incarnation;
    pull.clock = clock;
    return controller_.Grants(pull, gate_, steps_max);
  }
  // How many steps are granted at a pull of this clock, in one decision.
  int Steps(Clock clock, int64_t steps_max) {
    if (!Grants(kLead, clock, steps_max)) return 0;
    // From here on the leader's speed is unknown, so nothing more is decided.
    controller_.OnPush(kLead, 1, clock + 1000, absl::UnixEpoch());
    int steps = 1;
    while (Grants(kLead, clock + steps, steps_max)) ++steps;
    return steps;
  }

  StalenessGate gate_;
  DsspController controller_;
};

// The leader pushes every 10 ms, last at 40; the slowest worker every 35 ms,
// last at 35. Its next push is at 70, when the leader has done 3 more steps.
class MeasuredTest : public DsspControllerTest {
 protected:
  MeasuredTest() {
    for (const int at : {0, 10, 20, 30, 40}) Push(kLead, at);
    for (const int at : {0, 35}) Push(kSlow, at);
  }
};

TEST_F(MeasuredTest, GrantsTheStepsThatEndWithAPushOfTheSlowest) {
  EXPECT_EQ(Steps(5, /*steps_max=*/5), 3);
}

TEST_F(MeasuredTest, GrantsTheNearestWithinTheBounds) {
  EXPECT_EQ(Steps(5, /*steps_max=*/2), 2);
}

// At 105 the next but one: 6 steps end at 100, 7 at 110; 3 meet it exactly.
TEST_F(MeasuredTest, TheFewestOfEquallyGoodStepsCount) {
  EXPECT_EQ(Steps(5, /*steps_max=*/50), 3);
}

TEST_F(MeasuredTest, GrantsNothingWithoutRoom) {
  EXPECT_EQ(Steps(5, /*steps_max=*/0), 0);
}

TEST_F(MeasuredTest, WhatIsGrantedHoldsThoughTheSpeedsChange) {
  EXPECT_TRUE(Grants(kLead, 5, 5));
  Push(kLead, 400);
  EXPECT_TRUE(Grants(kLead, 6, 5));
  EXPECT_TRUE(Grants(kLead, 7, 5));
}

TEST_F(MeasuredTest, ARefusedClockStaysRefused) {
  EXPECT_FALSE(Grants(kLead, 5, 0));
  EXPECT_FALSE(Grants(kLead, 5, 5)) << "the pull was sent again";
  EXPECT_TRUE(Grants(kLead, 6, 5)) << "the next one is decided anew";
}

TEST_F(MeasuredTest, WhoDoesNotLeadIsGrantedNothing) {
  gate_.Join(kThird, 1, 6);
  EXPECT_FALSE(Grants(kLead, 5, 5));
}

TEST_F(MeasuredTest, AnotherIncarnationHasToBeMeasuredAnew) {
  gate_.RemoveUnless([](const auto& p) { return p.rank != kLead; });
  gate_.Join(kLead, 2, 5);
  EXPECT_FALSE(Grants(kLead, 6, 5, /*incarnation=*/2));
}

TEST_F(DsspControllerTest, WithoutTwoPushesOfEachNothingIsGranted) {
  Push(kLead, 0);
  Push(kLead, 10);
  Push(kSlow, 0);
  EXPECT_FALSE(Grants(kLead, 2, 5));
  Push(kSlow, 25);
  Push(kLead, 20);
  EXPECT_TRUE(Grants(kLead, 3, 5));
}

TEST_F(DsspControllerTest, AGapBetweenTwoPushesIsNoInterval) {
  Push(kLead, 0);
  Push(kLead, 10);
  Push(kSlow, 0);
  // A phase of another mode, of which the controller is told nothing.
  gate_.Advance(*gate_.Find(kSlow, 1), 4);
  gate_.Advance(*gate_.Find(kLead, 1), 8);
  Push(kSlow, 25);
  EXPECT_FALSE(Grants(kLead, 9, 5));
}

TEST_F(DsspControllerTest, TheSlowestItselfIsGrantedNothing) {
  gate_.RemoveUnless([](const auto& p) { return p.rank == kLead; });
  Push(kLead, 0);
  Push(kLead, 10);
  EXPECT_FALSE(Grants(kLead, 9, 5));
}

}  // namespace
}  // namespace slackline
