// Goal: the ranks of a new group go on from the state of the one that is
// farthest, and where parameters begin as a worker has them, from one worker's
// until the end. Method: small groups, and what each plan says.
#include "worker/core/catch_up.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::catch_up_test {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr Standing kNew;
constexpr Standing kOwn = {.clock = 0, .own_values = true};

Standing At(Clock clock) { return {.clock = clock}; }

TEST(CatchUpTest, WhoIsBehindTakesTheStateOfTheFirstThatIsFarthest) {
  const CatchUpPlan plan = PlanCatchUp({At(3), At(7), kNew, At(7), kOwn});
  EXPECT_EQ(plan.clock, 7);
  EXPECT_EQ(plan.root, 1);
  EXPECT_THAT(plan.takes, ElementsAre(true, false, true, false, true));
}

TEST(CatchUpTest, AtOneClockNobodyTakesAnything) {
  EXPECT_THAT(PlanCatchUp({At(4), At(4), At(4)}).takes, Each(false));
  EXPECT_THAT(PlanCatchUp({At(0), At(0)}).takes, Each(false));
}

TEST(CatchUpTest, OfValuesOfTheirOwnThoseOfTheFirstCount) {
  const CatchUpPlan all = PlanCatchUp({kOwn, kOwn, kOwn});
  EXPECT_EQ(all.clock, 0);
  EXPECT_EQ(all.root, 0);
  EXPECT_THAT(all.takes, ElementsAre(false, true, true));
  // One that joins has none yet.
  const CatchUpPlan joined = PlanCatchUp({kNew, kOwn, kOwn});
  EXPECT_EQ(joined.root, 1);
  EXPECT_THAT(joined.takes, ElementsAre(true, false, true));
}

// They may have computed their first step at them.
TEST(CatchUpTest, WhatAGroupHasAgreedOnStays) {
  const CatchUpPlan plan = PlanCatchUp({kNew, kOwn, At(0), kOwn, At(0)});
  EXPECT_EQ(plan.clock, 0);
  EXPECT_EQ(plan.root, 2);
  EXPECT_THAT(plan.takes, ElementsAre(true, true, false, true, false));
}

TEST(CatchUpTest, WhereNobodyKnowsTheParametersNobodyTakesAny) {
  const CatchUpPlan plan = PlanCatchUp({kNew, kNew});
  EXPECT_EQ(plan.clock, -1);
  EXPECT_THAT(plan.takes, Each(false));
}

}  // namespace slackline::catch_up_test
