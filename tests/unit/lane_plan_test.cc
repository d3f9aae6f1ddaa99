#include "worker/collective/lane_plan.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::lane_plan_test {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kMb = 1000000;
const std::vector<std::optional<Lane>> kFree(6, std::nullopt);
const std::vector<int64_t> kTables = {10 * kMb, kMb,     20 * kMb,
                                      kMb,      5 * kMb, kMb};

// A link of 1 s for each MB, so that a ring takes 2 (n - 1) / n of that, and
// servers that need so many seconds for it.
LaneCosts CostsOf(int ranks, double servers) {
  return {.ranks = 2e-6 * (ranks - 1) / ranks, .servers = servers * 1e-6};
}

TEST(LanePlan, AloneEachWayTakesWhatWasMeasured) {
  const LaneCosts costs = CostsOf(4, 3);
  EXPECT_DOUBLE_EQ(PredictSeconds(costs, 4, 2e6, 0), 3);
  EXPECT_DOUBLE_EQ(PredictSeconds(costs, 4, 0, 2e6), 6);
}

TEST(LanePlan, LinksAreSharedAndServersAreNot) {
  const LaneCosts costs = CostsOf(4, 3);
  // The link: 1 s for the servers' MB, 1.5 s for each other.
  EXPECT_DOUBLE_EQ(PredictSeconds(costs, 4, 2e6, 1e6), 4);
  EXPECT_DOUBLE_EQ(PredictSeconds(costs, 4, 1e6, 2e6), 6);
}

TEST(LanePlan, FastServersSumEverything) {
  const LanePlan plan = PlanLanes(kTables, kFree, CostsOf(4, 1), 4);
  EXPECT_THAT(plan.lanes, Each(Lane::kServers));
  EXPECT_DOUBLE_EQ(plan.seconds, 38);
  EXPECT_DOUBLE_EQ(plan.seconds_by_ranks, 57);
  EXPECT_EQ(plan.bytes_by_servers, 38 * kMb);
}

TEST(LanePlan, SlowServersSumNothing) {
  const LanePlan plan = PlanLanes(kTables, kFree, CostsOf(4, 100), 4);
  EXPECT_THAT(plan.lanes, Each(Lane::kRanks));
  EXPECT_DOUBLE_EQ(plan.seconds, plan.seconds_by_ranks);
}

// As with two servers for four workers, all on equal links: three fifths of the
// bytes by the servers end in 1.2 of the link's time, where the ring takes 1.5
// and the servers alone 2.
TEST(LanePlan, SomeGoEachWayWhereBothTakePart) {
  const LanePlan plan = PlanLanes(kTables, kFree, CostsOf(4, 2), 4);
  EXPECT_NEAR(plan.seconds, 38 * 1.2, 38 * 0.03);
  EXPECT_NEAR(static_cast<double>(plan.bytes_by_servers), 38 * kMb * 0.6,
              38 * kMb * 0.05);
}

TEST(LanePlan, ATwentiethIsNotWorthIt) {
  EXPECT_THAT(PlanLanes(kTables, kFree, CostsOf(4, 1.45), 4).lanes,
              testing::Contains(Lane::kServers));
  EXPECT_THAT(
      PlanLanes(std::vector<int64_t>{kMb}, {std::nullopt}, CostsOf(4, 1.45), 4)
          .lanes,
      ElementsAre(Lane::kRanks));
}

TEST(LanePlan, TwoRanksGainNothingByServersThatAreNoFaster) {
  EXPECT_THAT(PlanLanes(kTables, kFree, CostsOf(2, 1), 2).lanes,
              Each(Lane::kRanks));
}

TEST(LanePlan, WhatTheConfigSaysStays) {
  std::vector<std::optional<Lane>> lanes(6, Lane::kRanks);
  lanes[1] = Lane::kServers;
  lanes[5] = std::nullopt;
  const LanePlan plan = PlanLanes(kTables, lanes, CostsOf(4, 1), 4);
  EXPECT_THAT(plan.lanes,
              ElementsAre(Lane::kRanks, Lane::kServers, Lane::kRanks,
                          Lane::kRanks, Lane::kRanks, Lane::kRanks));
  EXPECT_EQ(plan.bytes_by_servers, kMb);
}

TEST(LanePlan, TheFirstEntryThatFitsCounts) {
  config::Collective collective;
  collective.add_lane()->mutable_ranks();
  collective.mutable_lane(0)->set_table("*.bias");
  collective.add_lane()->mutable_servers();
  collective.mutable_lane(1)->set_table("*.0.*");
  collective.add_lane()->mutable_measured();
  const std::vector<std::string> tables = {"m.0.weight", "m.0.bias",
                                           "m.2.weight"};
  EXPECT_THAT(LanesOf(collective, tables),
              ElementsAre(Lane::kServers, Lane::kRanks, std::nullopt));
  EXPECT_THAT(LanesOf(config::Collective(), tables),
              Each(std::optional<Lane>(Lane::kRanks)));
}

}  // namespace slackline::lane_plan_test
