// Goal: a plan says whose turn it is and what each gradient is computed from,
// and refuses delays that a job could not follow. Method: delays written out by
// hand, and by name.
#include "common/delays/delay_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/delays/delay_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::delay_plan_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

DelayTrace::Update UpdateOf(Clock clock, int32_t rank) {
  return {.clock = clock, .ranks = {rank}, .workers = 2};
}

// Two workers, two steps, one shard: as if recorded.
DelayTrace Recorded() {
  DelayTrace trace;
  trace.workers = 2;
  trace.shards.resize(1);
  trace.shards[0].updates = {UpdateOf(0, 1), UpdateOf(0, 0), UpdateOf(1, 0)};
  trace.shards[0].reads = {{.rank = 0, .clock = 0, .version = 0},
                           {.rank = 1, .clock = 0, .version = 0},
                           {.rank = 1, .clock = 1, .version = 1},
                           {.rank = 0, .clock = 1, .version = 2}};
  return trace;
}

std::shared_ptr<const DelayPlan> PlanOf(const DelayTrace& trace) {
  const auto plan = DelayPlan::Create(trace, 2, 0, 2);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

std::string WhyNot(const DelayTrace& trace, int workers = 2, Clock steps = 2) {
  const auto plan = DelayPlan::Create(trace, workers, 0, steps);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(DelayPlan, SaysWhatEachGradientIsComputedFromAndWhereItGoes) {
  const std::shared_ptr<const DelayPlan> plan = PlanOf(Recorded());
  const DelayPlan::OfShard shard = plan->Of(ShardId{0});
  ASSERT_EQ(shard.turn_count(), 3);
  EXPECT_EQ(shard.turn(0).ranks[0], 1);
  EXPECT_EQ(shard.TurnsBefore(0, 0), 0);
  EXPECT_EQ(shard.TurnsBefore(1, 1), 1);
  EXPECT_EQ(shard.TurnsBefore(0, 1), 2);
  EXPECT_EQ(shard.TurnsBefore(0, 2), 3) << "the final model";
  EXPECT_TRUE(shard.Uses(0, 1));
  EXPECT_FALSE(shard.Uses(1, 1)) << "dropped";
  EXPECT_THAT(shard.ReadersAfter(0), SizeIs(2));
  ASSERT_THAT(shard.ReadersAfter(1), SizeIs(1));
  EXPECT_EQ(shard.ReadersAfter(1)[0].rank, 1);
  EXPECT_THAT(shard.ReadersAfter(3), SizeIs(0));
}

TEST(DelayPlan, SaysHowManyVersionsHaveToBeKept) {
  // Version 0 until turn 1 is taken, then version 1.
  EXPECT_EQ(PlanOf(Recorded())->kept_versions_max(), 1);
  DelayTrace late = Recorded();
  late.shards[0].reads[2].version = 0;  // Its gradient is in no turn.
  late.shards[0].reads[3].version = 1;
  EXPECT_EQ(PlanOf(late)->kept_versions_max(), 2);
  const auto of_name = [](const std::string& given) {
    const absl::StatusOr<DelaySource> source = DelaySource::Load(given);
    EXPECT_TRUE(source.ok()) << source.status();
    const auto plan =
        source->PlanFor(/*workers=*/4, /*first=*/0, /*steps=*/100, /*seed=*/1);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return (*plan)->kept_versions_max();
  };
  // Of the clock itself, for those whose turn is later than the first one's.
  EXPECT_EQ(of_name("constant:0"), 1);
  EXPECT_EQ(of_name("constant:8"), 9);
  EXPECT_EQ(of_name("uniform:8"), 9);
}

TEST(DelayPlan, ByNameIsTheTraceOfTheSameSeed) {
  const absl::StatusOr<DelaySource> source = DelaySource::Load("uniform:3");
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->sha256(), "");
  const auto plan = source->PlanFor(4, 0, 50, 7);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const DelayTrace trace =
      MakeTrace(*ParseSyntheticDelays("uniform:3"), 4, 50, 7);
  for (const int32_t id : {0, 5}) {  // Whatever the model.
    const DelayPlan::OfShard shard = (*plan)->Of(ShardId{id});
    for (const DelayTrace::Read& read : trace.shards[0].reads)
      EXPECT_EQ(shard.TurnsBefore(read.rank, read.clock), read.version);
    EXPECT_FALSE(shard.IsMean(shard.turn(0)));
  }
  EXPECT_TRUE((*plan)->CheckShards(17).ok());
}

TEST(DelayPlan, BeginsWhereTheStepsOverServersDo) {
  const absl::StatusOr<DelaySource> source = DelaySource::Load("constant:2");
  ASSERT_TRUE(source.ok());
  const auto plan = source->PlanFor(/*workers=*/3, /*first=*/1, /*steps=*/5, 7);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const DelayPlan::OfShard shard = (*plan)->Of(ShardId{0});
  EXPECT_EQ(shard.turn_count(), 4 * 3);
  EXPECT_EQ(shard.turn(0).clock, 1);
  EXPECT_EQ(shard.TurnsBefore(0, 1), 0);
  EXPECT_EQ(shard.TurnsBefore(0, 3), 0);
  EXPECT_EQ(shard.TurnsBefore(0, 4), 3);
  EXPECT_EQ(shard.TurnsBefore(0, 5), 12);
  EXPECT_THAT(
      std::string(DelayPlan::Create(Recorded(), 2, 1, 2).status().message()),
      HasSubstr("the delays begin at clock 0, the job's steps over servers at "
                "clock 1"));
}

TEST(DelayPlan, WhatAJobCannotFollowIsRefusedWithTheReason) {
  EXPECT_THAT(WhyNot(Recorded(), /*workers=*/3),
              HasSubstr("are those of 2 workers, the job has 3"));
  EXPECT_THAT(WhyNot(Recorded(), 2, /*steps=*/1),
              HasSubstr("clock 1; the job has 1 steps"));
  EXPECT_THAT(WhyNot(Recorded(), 2, /*steps=*/3),
              HasSubstr("has no gradient of rank 0 and clock 2"));
  EXPECT_THAT(WhyNot(Recorded(), 2, /*steps=*/3000000),
              HasSubstr("at most 4000000 gradients are allowed"));
  DelayTrace twice = Recorded();
  twice.shards[0].reads.push_back({.rank = 1, .clock = 1, .version = 0});
  EXPECT_THAT(WhyNot(twice), HasSubstr("rank 1 and clock 1 twice"));
  DelayTrace used = Recorded();
  used.shards[0].updates.push_back(UpdateOf(0, 1));
  EXPECT_THAT(WhyNot(used), HasSubstr("is used already"));
  DelayTrace strange = Recorded();
  strange.shards[0].updates[2] = UpdateOf(1, 2);
  EXPECT_THAT(WhyNot(strange), HasSubstr("rank 2 and clock 1"));
  DelayTrace late = Recorded();
  late.shards[0].reads[0].version = 4;
  EXPECT_THAT(WhyNot(late), HasSubstr("computed from version 4"));
  EXPECT_THAT(std::string(PlanOf(Recorded())->CheckShards(2).message()),
              HasSubstr("recorded with 1 shards, and the job's model has 2"));
}

TEST(DelayPlan, WhatContradictsItselfIsRefused) {
  DelayTrace own = Recorded();
  own.shards[0].reads[0].version = 2;  // It has its own gradient.
  EXPECT_THAT(WhyNot(own), HasSubstr("rank 0 would wait for ever at clock 0"));
  // Each waits for the other's, at different shards.
  DelayTrace crossed = Recorded();
  crossed.shards.push_back(crossed.shards[0]);
  crossed.shards[0].reads[0].version = 1;
  crossed.shards[1].updates = {UpdateOf(0, 0), UpdateOf(0, 1), UpdateOf(1, 0)};
  crossed.shards[1].reads[1].version = 1;
  EXPECT_THAT(WhyNot(crossed), HasSubstr("contradict themselves"));
}

TEST(DelaySource, WhatIsNoDelaysIsRefusedWithTheForms) {
  for (const char* const given : {"normal:3", "uniform:-1", "uniform:100001"}) {
    EXPECT_EQ(DelaySource::Load(given).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(WhyNoDelays(given), HasSubstr("constant:S, uniform:S"));
  }
  EXPECT_THAT(WhyNoDelays(""), HasSubstr("is missing"));
  EXPECT_THAT(WhyNoDelays(std::string(5000, 'x')),
              HasSubstr("at most 4096 are allowed"));
  EXPECT_EQ(WhyNoDelays("some/folder"), "");
  EXPECT_EQ(DelaySource::Load("some/folder").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace slackline::delay_plan_test
