// Goal: a plan says whose turn it is and what each gradient is computed from,
// and refuses delays that a job could not follow. Method: delays written out by
// hand, and by name.
#include "common/delays/delay_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/delays/delay_source.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::delay_plan_test {

using ::testing::ElementsAre;
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

// ---- Cuts -------------------------------------------------------------------

TEST(DelayPlan, ACutHasWhateverItsGradientsAreComputedFrom) {
  // Of rank 1 the gradient of clock 1 is computed from its own of clock 0, and
  // that of rank 0 from both.
  const std::shared_ptr<const DelayPlan> plan = PlanOf(Recorded());
  EXPECT_THAT(plan->CutAt({0, 0}), ElementsAre(0, 0));
  EXPECT_THAT(plan->CutAt({1, 0}), ElementsAre(1, 0));
  EXPECT_THAT(plan->CutAt({2, 0}), ElementsAre(2, 1));
  EXPECT_THAT(plan->CutAt({0, 2}), ElementsAre(0, 2));
  EXPECT_THAT(plan->CutAt({9, 9}), ElementsAre(2, 2)) << "the end";
}

TEST(DelayPlan, OfAFastWorkerMuchIsInACutOfASlowOne) {
  // Rank 1 does all of its steps before rank 0 does its second.
  DelayTrace trace;
  trace.workers = 2;
  trace.shards.resize(1);
  trace.shards[0].updates = {UpdateOf(0, 0), UpdateOf(0, 1), UpdateOf(1, 1),
                             UpdateOf(2, 1), UpdateOf(1, 0), UpdateOf(2, 0)};
  trace.shards[0].reads = {{.rank = 0, .clock = 0, .version = 0},
                           {.rank = 1, .clock = 0, .version = 1},
                           {.rank = 1, .clock = 1, .version = 2},
                           {.rank = 1, .clock = 2, .version = 3},
                           {.rank = 0, .clock = 1, .version = 4},
                           {.rank = 0, .clock = 2, .version = 5}};
  const auto plan = DelayPlan::Create(trace, 2, 0, 3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT((*plan)->CutAt({1, 1}), ElementsAre(1, 1));
  EXPECT_THAT((*plan)->CutAt({2, 2}), ElementsAre(2, 3))
      << "one clock for both would never be complete";
}

TEST(DelayPlan, WithoutDelaysACutIsAtOneClock) {
  const absl::StatusOr<DelaySource> source = DelaySource::Load("constant:0");
  ASSERT_TRUE(source.ok());
  const auto plan = source->PlanFor(/*workers=*/3, /*first=*/1, /*steps=*/9, 7);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT((*plan)->CutAt({0, 0, 0}), ElementsAre(1, 1, 1))
      << "where its turns begin";
  EXPECT_THAT((*plan)->CutAt({4, 4, 4}), ElementsAre(4, 4, 4));
  // Each step of theirs is computed from all steps before it.
  EXPECT_THAT((*plan)->CutAt({2, 6, 3}), ElementsAre(5, 6, 5));
}

// Looks at everything again until nothing changes.
std::vector<Clock> NaiveCut(const DelayTrace& trace, std::vector<Clock> clocks,
                            Clock steps) {
  for (Clock& clock : clocks) clock = std::min(clock, steps);
  for (bool grows = true; grows;) {
    grows = false;
    for (const DelayTrace::Shard& shard : trace.shards) {
      for (const DelayTrace::Read& read : shard.reads) {
        if (read.clock >= clocks.at(static_cast<size_t>(read.rank))) continue;
        for (int64_t turn = 0; turn < read.version; ++turn) {
          const auto& update = shard.updates.at(static_cast<size_t>(turn));
          for (const int32_t rank : update.ranks) {
            Clock& clock = clocks.at(static_cast<size_t>(rank));
            if (clock > update.clock) continue;
            clock = update.clock + 1;
            grows = true;
          }
        }
      }
    }
  }
  return clocks;
}

// Workers compute from what is there, and gradients take their time to get to
// each shard.
DelayTrace RandomTrace(Rng& rng, int workers, Clock steps, size_t shards) {
  DelayTrace trace;
  trace.workers = workers;
  trace.shards.resize(shards);
  std::vector<Clock> computed(static_cast<size_t>(workers), 0);
  std::vector<std::vector<Clock>> arrived(
      shards, std::vector<Clock>(static_cast<size_t>(workers), 0));
  for (int64_t left = int64_t{workers} * steps; left > 0;) {
    const auto rank = static_cast<size_t>(rng.Below(workers));
    if (rng.Chance(0.3) && computed[rank] < steps) {
      for (DelayTrace::Shard& shard : trace.shards) {
        shard.reads.push_back(
            {.rank = static_cast<int32_t>(rank),
             .clock = computed[rank],
             .version = static_cast<int64_t>(shard.updates.size())});
      }
      ++computed[rank];
      --left;
    }
    const auto at = static_cast<size_t>(rng.Below(shards));
    if (arrived[at][rank] == computed[rank]) continue;
    // Some are in no update.
    if (rng.Chance(0.9)) {
      trace.shards[at].updates.push_back(
          UpdateOf(arrived[at][rank], static_cast<int32_t>(rank)));
    }
    ++arrived[at][rank];
  }
  return trace;
}

TEST(DelayPlan, CutsAreThoseOfTheNaiveTwin) {
  int apart = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const auto workers = static_cast<int>(rng.Between(1, 4));
    const Clock steps = rng.Between(1, 8);
    const DelayTrace trace = RandomTrace(
        rng, workers, steps, static_cast<size_t>(rng.Between(1, 3)));
    const auto plan = DelayPlan::Create(trace, workers, 0, steps);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (int i = 0; i < 5; ++i) {
      std::vector<Clock> at_least;
      for (int rank = 0; rank < workers; ++rank)
        at_least.push_back(rng.Between(0, steps));
      const std::vector<Clock> cut = (*plan)->CutAt(at_least);
      EXPECT_EQ(cut, NaiveCut(trace, at_least, steps));
      apart += cut != at_least;
    }
  }
  EXPECT_GT(apart, 100);
}

}  // namespace slackline::delay_plan_test
