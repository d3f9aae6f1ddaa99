// Goal: the controller grants as many steps as bring the leader closest to the
// slowest worker's next push, to the leader only, and nothing unmeasured.
// Method: examples with two or three workers on a clock of the test, and random
// speeds against a twin that tries every number of steps.
#include "common/sync/dssp_controller.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"

namespace slackline::dssp_controller_test {

constexpr Rank kLead{0}, kSlow{1}, kThird{2};

Incarnation IncarnationOf(Rank rank) {
  return static_cast<Incarnation>(rank) + 1;
}

class DsspControllerTest : public ::testing::Test {
 protected:
  DsspControllerTest() {
    for (const Rank rank : {kLead, kSlow})
      participants_.Join(rank, IncarnationOf(rank), 0);
  }
  void Push(Rank rank, int at_ms) {
    const Incarnation incarnation = IncarnationOf(rank);
    Participant& who = *participants_.Find(rank, incarnation);
    controller_.OnPush(rank, incarnation, who.clock,
                       absl::UnixEpoch() + absl::Milliseconds(at_ms));
    participants_.Advance(who, who.clock + 1);
  }
  bool Grants(Rank rank, Clock clock, int64_t steps_max,
              Incarnation incarnation = 1) {
    StalenessGate::Pull pull;
    pull.rank = rank;
    pull.incarnation = incarnation;
    pull.clock = clock;
    return controller_.Grants(pull, participants_, steps_max);
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

  Participants participants_;
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
  participants_.Join(kThird, IncarnationOf(kThird), 6);
  EXPECT_FALSE(Grants(kLead, 5, 5));
}

TEST_F(MeasuredTest, AnotherIncarnationHasToBeMeasuredAnew) {
  participants_.Remove({IncarnationOf(kLead)});
  participants_.Join(kLead, 9, 5);
  EXPECT_FALSE(Grants(kLead, 6, 5, /*incarnation=*/9));
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
  participants_.Advance(*participants_.Find(kSlow, IncarnationOf(kSlow)), 4);
  participants_.Advance(*participants_.Find(kLead, IncarnationOf(kLead)), 8);
  Push(kSlow, 25);
  EXPECT_FALSE(Grants(kLead, 9, 5));
}

TEST_F(DsspControllerTest, TheSlowestItselfIsGrantedNothing) {
  participants_.Remove({IncarnationOf(kSlow)});
  Push(kLead, 0);
  Push(kLead, 10);
  EXPECT_FALSE(Grants(kLead, 9, 5));
}

// Tries every number of steps and every push of the slowest worker. All in
// nanoseconds.
int64_t StepsByTrying(int64_t lead, int64_t lead_interval, int64_t slow,
                      int64_t slow_interval, int64_t steps_max) {
  int64_t best = 0;
  int64_t least = -1;
  for (int64_t steps = 0; steps <= steps_max; ++steps) {
    const int64_t at = lead + steps * lead_interval;
    const int64_t next = std::max<int64_t>(1, (at - slow) / slow_interval + 1);
    for (int64_t k = std::max<int64_t>(1, next - 1); k <= next; ++k) {
      const int64_t wait = std::abs(slow + k * slow_interval - at);
      if (least >= 0 && wait >= least) continue;
      least = wait;
      best = steps;
    }
  }
  return best;
}

// Two workers whose last two pushes came at these nanoseconds; how many steps
// the leader is granted.
int64_t GrantedSteps(int64_t lead, int64_t lead_interval, int64_t slow,
                     int64_t slow_interval, int64_t steps_max) {
  Participants participants;
  DsspController controller;
  participants.Join(kSlow, 2, 50);
  participants.Join(kLead, 1, 100);
  const auto at = [](int64_t ns) {
    return absl::UnixEpoch() + absl::Nanoseconds(ns);
  };
  controller.OnPush(kLead, 1, 98, at(lead - lead_interval));
  controller.OnPush(kLead, 1, 99, at(lead));
  controller.OnPush(kSlow, 2, 48, at(slow - slow_interval));
  controller.OnPush(kSlow, 2, 49, at(slow));
  StalenessGate::Pull pull;
  pull.rank = kLead;
  pull.incarnation = 1;
  pull.clock = 100;
  if (!controller.Grants(pull, participants, steps_max)) return 0;
  // What is granted holds, so a search may ask for it.
  int64_t granted = 1;
  int64_t refused = steps_max + 1;
  while (granted + 1 < refused) {
    const int64_t middle = granted + (refused - granted) / 2;
    // A copy: a refusal is a decision, too.
    DsspController asked = controller;
    pull.clock = 100 + middle - 1;
    (asked.Grants(pull, participants, 0) ? granted : refused) = middle;
  }
  return granted;
}

TEST(DsspStepsTest, AreThoseThatTryingAllFinds) {
  Rng rng(1);
  int granted = 0;
  for (int i = 0; i < 200'000; ++i) {
    const int64_t scale = rng.Chance(0.5) ? 12 : 1000;
    const int64_t lead_interval = rng.Between(1, scale);
    const int64_t slow_interval = rng.Between(1, scale);
    const int64_t slow = rng.Between(0, scale);
    // Also long after the last push of the slowest worker, and before it.
    const int64_t lead = rng.Between(0, 4 * scale);
    const int64_t steps_max = rng.Between(0, rng.Chance(0.5) ? 5 : 300);
    const int64_t steps =
        GrantedSteps(lead, lead_interval, slow, slow_interval, steps_max);
    ASSERT_EQ(steps, StepsByTrying(lead, lead_interval, slow, slow_interval,
                                   steps_max))
        << absl::StrCat("leader at ", lead, " every ", lead_interval,
                        ", slowest at ", slow, " every ", slow_interval,
                        ", at most ", steps_max);
    granted += steps > 0;
  }
  EXPECT_GT(granted, 10'000);
}

TEST(DsspStepsTest, ManyDecisionsWithTheLargestBoundTakeNoTime) {
  constexpr int64_t kSecond = 1'000'000'000;
  constexpr int64_t kStepsMax = int64_t{1} << 31;
  Rng rng(2);
  for (int i = 0; i < 100'000; ++i) {
    const int64_t lead_interval = rng.Between(1, kSecond);
    const int64_t slow_interval = rng.Between(1, 60 * kSecond);
    const int64_t lead = rng.Between(0, 60 * kSecond);
    const int64_t slow = rng.Between(0, 60 * kSecond);
    const int64_t steps =
        GrantedSteps(lead, lead_interval, slow, slow_interval, kStepsMax);
    ASSERT_GE(steps, 0);
    ASSERT_LE(steps, kStepsMax);
  }
}

}  // namespace slackline::dssp_controller_test
