// Goal: every gradient that a thread accepted is counted once as such and once
// as what became of it, by rank where the coordinator asks for that; and the
// coordinator is told of a gradient that ends the job at once.
// Method: examples; gradient_counts.h is the other side of the sum.
#include "server/shard/shard_counts.h"

#include <optional>

#include "common/metrics/gradient_counts.h"
#include "gtest/gtest.h"

namespace slackline::shard_counts_test {

TEST(ShardCountsTest, WhatBecameOfGradientsAddsUpToThoseThatWereAccepted) {
  ShardCounts counts({.server = 3});
  for (int i = 0; i < 6; ++i) counts.Pushed(/*bytes=*/10);
  counts.Inherited(2);
  EXPECT_EQ(UnaccountedGradients(counts.stats()), 8);
  counts.Updated(/*gradients=*/3);
  counts.Updated(/*gradients=*/1);
  counts.Dropped(2);
  EXPECT_FALSE(counts.Nonfinite(ShardId{1}, Rank{0}, /*clock=*/4));
  EXPECT_FALSE(
      counts.Oversized(ShardId{1}, Rank{0}, /*clock=*/5,
                       {.rms = 9, .bound = 1, .running = std::nullopt}));
  EXPECT_EQ(UnaccountedGradients(counts.stats()), 0);
  EXPECT_EQ(counts.stats().index(), 3);
  EXPECT_EQ(counts.stats().pushes(), 8u);
  EXPECT_EQ(counts.stats().bytes_in(), 60u);
  EXPECT_EQ(counts.stats().updates(), 2u);
  EXPECT_EQ(counts.stats().applied(), 4u);
}

TEST(ShardCountsTest, GradientsThatAreNotAppliedAreCountedByRank) {
  ShardCounts counts({});
  (void)counts.Nonfinite(ShardId{1}, Rank{5}, /*clock=*/4);
  (void)counts.Nonfinite(ShardId{1}, Rank{2}, /*clock=*/4);
  (void)counts.Nonfinite(ShardId{7}, Rank{5}, /*clock=*/6);
  ASSERT_EQ(counts.stats().nonfinite_size(), 2);
  EXPECT_EQ(counts.stats().nonfinite(0).rank(), 5);
  EXPECT_EQ(counts.stats().nonfinite(0).gradients(), 2u);
  EXPECT_EQ(counts.stats().nonfinite(0).last_clock(), 6);
  EXPECT_EQ(counts.stats().nonfinite(0).last_shard(), 7);
  EXPECT_EQ(counts.stats().nonfinite(1).rank(), 2);
  EXPECT_EQ(counts.stats().nonfinite(1).gradients(), 1u);
}

TEST(ShardCountsTest, AnExcessOverAFixedBoundHasNoRunningSize) {
  ShardCounts counts({});
  (void)counts.Oversized(ShardId{1}, Rank{2}, /*clock=*/4,
                         {.rms = 9, .bound = 6, .running = 0.5});
  ASSERT_EQ(counts.stats().oversized_size(), 1);
  EXPECT_EQ(counts.stats().oversized(0).last_running_rms(), 0.5);
  (void)counts.Oversized(ShardId{1}, Rank{2}, /*clock=*/5,
                         {.rms = 8, .bound = 7, .running = std::nullopt});
  ASSERT_EQ(counts.stats().oversized_size(), 1);
  EXPECT_EQ(counts.stats().oversized(0).gradients(), 2u);
  EXPECT_EQ(counts.stats().oversized(0).last_rms(), 8);
  EXPECT_EQ(counts.stats().oversized(0).last_bound(), 7);
  EXPECT_FALSE(counts.stats().oversized(0).has_last_running_rms());
}

TEST(ShardCountsTest, OnlyWhatEndsTheJobIsNewsThatIsWaitedFor) {
  ShardCounts stops({.nonfinite_stops = true, .oversized_stops = false});
  EXPECT_TRUE(stops.Nonfinite(ShardId{0}, Rank{0}, 0));
  EXPECT_FALSE(stops.Oversized(ShardId{0}, Rank{0}, 0, {}));
  ShardCounts skips({.nonfinite_stops = false, .oversized_stops = true});
  EXPECT_FALSE(skips.Nonfinite(ShardId{0}, Rank{0}, 0));
  EXPECT_TRUE(skips.Oversized(ShardId{0}, Rank{0}, 0, {}));
}

}  // namespace slackline::shard_counts_test
