// Goal: the ranks of a new group go on from the state of the one that is
// farthest, and before the first step from one worker's values where they
// count. Method: the clocks of small groups, and what each plan says.
#include "worker/core/catch_up.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(CatchUpTest, WhoIsBehindTakesTheStateOfTheFirstThatIsFarthest) {
  for (const bool of_worker : {false, true}) {
    const CatchUpPlan plan = PlanCatchUp({3, 7, -1, 7}, of_worker);
    EXPECT_EQ(plan.clock, 7);
    EXPECT_EQ(plan.root, 1);
    EXPECT_THAT(plan.takes, ElementsAre(true, false, true, false));
  }
}

TEST(CatchUpTest, AtOneClockNobodyTakesAnything) {
  for (const bool of_worker : {false, true})
    EXPECT_THAT(PlanCatchUp({4, 4, 4}, of_worker).takes, Each(false));
  EXPECT_THAT(PlanCatchUp({0, 0}, /*of_worker=*/false).takes, Each(false));
}

TEST(CatchUpTest, BeforeTheFirstStepAllTakeTheValuesOfTheFirstWorker) {
  const CatchUpPlan all = PlanCatchUp({0, 0, 0}, /*of_worker=*/true);
  EXPECT_EQ(all.clock, 0);
  EXPECT_EQ(all.root, 0);
  EXPECT_THAT(all.takes, ElementsAre(false, true, true));
  // One that joins has none yet.
  const CatchUpPlan joined = PlanCatchUp({-1, 0, 0}, /*of_worker=*/true);
  EXPECT_EQ(joined.root, 1);
  EXPECT_THAT(joined.takes, ElementsAre(true, false, true));
}

TEST(CatchUpTest, WhereNobodyKnowsTheParametersNobodyTakesAny) {
  const CatchUpPlan plan = PlanCatchUp({-1, -1}, /*of_worker=*/true);
  EXPECT_EQ(plan.clock, -1);
  EXPECT_THAT(plan.takes, Each(false));
}

}  // namespace
}  // namespace slackline
