// Goal: plans lower the worst utilisation nearly as far as it can be lowered,
// keep every bound, say what they do, and do nothing on noise.
// Method: examples of one rule each; random clusters from seeds, against the
// best of all placements where there are few, and against the rules elsewhere.
#include "server/coordinator/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::planner_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Cluster {
  std::vector<PlannerThread> threads;
  std::vector<PlannerShard> shards;
};

// One thread on each server.
Cluster ClusterOf(const std::vector<double>& capacities) {
  Cluster cluster;
  for (const double capacity : capacities) {
    const auto server = static_cast<int32_t>(cluster.threads.size());
    cluster.threads.push_back({.owner = {server, 0}, .capacity = capacity});
  }
  return cluster;
}

// 1 MiB, and 2^18 elements: enough for 256 pieces.
PlannerShard& Add(int thread, double demand, Cluster* cluster) {
  PlannerShard shard;
  shard.shard = ShardId{static_cast<int32_t>(cluster->shards.size())};
  shard.thread = thread;
  shard.demand = demand;
  shard.bytes = 1 << 20;
  shard.region = Region::First(1 << 18);
  cluster->shards.push_back(shard);
  return cluster->shards.back();
}

std::vector<double> Utilisations(const Cluster& cluster) {
  std::vector<double> result;
  for (const PlannerThread& thread : cluster.threads)
    result.push_back(thread.background / thread.capacity);
  for (const PlannerShard& shard : cluster.shards) {
    result[shard.thread] +=
        shard.demand / cluster.threads[shard.thread].capacity;
  }
  return result;
}

double Worst(const Cluster& cluster) {
  const std::vector<double> all = Utilisations(cluster);
  return *std::max_element(all.begin(), all.end());
}

PlannerResult Plan(const Cluster& cluster, const PlannerOptions& options) {
  return PlanMoves(cluster.threads, cluster.shards, options);
}

// Does what the plan says, and expects every rule that holds for all plans.
// Needs shard i at index i.
void Apply(const PlannerResult& plan, const PlannerOptions& options,
           Cluster* cluster) {
  const std::vector<PlannerShard> before = cluster->shards;
  const bool drains =
      std::any_of(cluster->threads.begin(), cluster->threads.end(),
                  [](const PlannerThread& thread) { return !thread.accepts; });
  EXPECT_NEAR(plan.worst_before, Worst(*cluster), 1e-9);
  for (const PlannerSplit& split : plan.splits) {
    ASSERT_LT(static_cast<size_t>(split.shard), cluster->shards.size());
    PlannerShard& shard = cluster->shards[static_cast<size_t>(split.shard)];
    PlannerShard piece = shard;
    EXPECT_FALSE(shard.pinned);
    EXPECT_LT(shard.apart, 0);
    piece.shard = split.new_shard;
    EXPECT_EQ(static_cast<size_t>(piece.shard), cluster->shards.size());
    const Region whole = shard.region;
    ASSERT_GE(split.at - whole.begin(), options.split_elements_min);
    ASSERT_GE(whole.end() - split.at, options.split_elements_min);
    const double part = static_cast<double>(whole.end() - split.at) /
                        static_cast<double>(whole.end() - whole.begin());
    piece.region = {split.at, whole.end()};
    piece.demand = part * shard.demand;
    piece.bytes = static_cast<int64_t>(part * static_cast<double>(shard.bytes));
    shard.region = {whole.begin(), split.at};
    shard.demand -= piece.demand;
    shard.bytes -= piece.bytes;
    cluster->shards.push_back(piece);
  }
  std::set<ShardId> moved;
  int64_t bytes = 0;
  int64_t budgeted_bytes = 0;
  int budgeted_moves = 0;
  for (const PlannerMove& move : plan.moves) {
    ASSERT_LT(static_cast<size_t>(move.shard), cluster->shards.size());
    PlannerShard& shard = cluster->shards[static_cast<size_t>(move.shard)];
    EXPECT_TRUE(moved.insert(move.shard).second) << "moved twice";
    EXPECT_FALSE(shard.pinned);
    EXPECT_EQ(move.from, shard.thread);
    EXPECT_NE(move.from, move.to);
    EXPECT_TRUE(cluster->threads[move.to].accepts);
    const bool drained = !cluster->threads[move.from].accepts;
    EXPECT_EQ(drained, move.reason == PlannerMove::Reason::kDrained);
    if (!drained) {
      EXPECT_GT(shard.demand, 0);
      budgeted_bytes += shard.bytes;
      ++budgeted_moves;
    }
    bytes += shard.bytes;
    shard.thread = move.to;
  }
  EXPECT_EQ(plan.bytes, bytes);
  EXPECT_LE(budgeted_bytes, options.bytes_max);
  EXPECT_LE(budgeted_moves, options.moves_max);
  EXPECT_NEAR(plan.worst_after, Worst(*cluster), 1e-9);
  if (!drains) {
    EXPECT_LE(plan.worst_after, plan.worst_before + 1e-9);
  }
  EXPECT_FALSE(plan.summary.empty());

  // Neither where they were nor where they are now did two shards of one group
  // get onto one server; those that stood together before may still.
  std::map<int32_t, std::vector<size_t>> groups;
  for (size_t s = 0; s < before.size(); ++s) {
    if (before[s].apart >= 0) groups[before[s].apart].push_back(s);
  }
  const auto server = [&](const PlannerShard& shard) {
    return cluster->threads[shard.thread].owner.server;
  };
  for (const auto& [group, members] : groups) {
    for (const size_t a : members) {
      if (moved.count(cluster->shards[a].shard) == 0) continue;
      for (const size_t b : members) {
        if (a == b) continue;
        EXPECT_NE(server(cluster->shards[a]), server(cluster->shards[b]));
        EXPECT_NE(server(cluster->shards[a]), server(before[b]));
      }
    }
  }
}

// The smallest worst utilisation of all placements of whole shards.
double BestOfAll(const Cluster& cluster) {
  const int threads = static_cast<int>(cluster.threads.size());
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> place(cluster.shards.size());
  std::vector<double> load(threads);
  for (bool more = true; more;) {
    std::fill(load.begin(), load.end(), 0);
    for (size_t s = 0; s < place.size(); ++s) {
      load[place[s]] +=
          cluster.shards[s].demand / cluster.threads[place[s]].capacity;
    }
    best = std::min(best, *std::max_element(load.begin(), load.end()));
    more = false;
    for (size_t s = 0; s < place.size() && !more; ++s) {
      more = ++place[s] < threads;
      if (!more) place[s] = 0;
    }
  }
  return best;
}

// Acts on any imbalance, whatever it costs, with whole shards only.
PlannerOptions Eager() {
  PlannerOptions options;
  options.threshold = 1;
  options.target = 1;
  options.min_utilisation = 0;
  options.horizon_seconds = 1e9;
  options.split_elements_min = 1 << 30;
  return options;
}

Cluster SmallCluster(bool even, Rng* rng) {
  Cluster cluster;
  const int64_t threads = rng->Between(2, 3);
  for (int64_t t = 0; t < threads; ++t) {
    cluster.threads.push_back(
        {.owner = {static_cast<int32_t>(t), 0},
         .capacity = even ? 1 : 0.25 + 0.75 * rng->Uniform()});
  }
  const int64_t shards = rng->Between(1, 7);
  const bool skewed = rng->Chance(0.5);
  const bool together = rng->Chance(0.3);
  for (int64_t s = 0; s < shards; ++s) {
    const int thread = together ? 0 : static_cast<int>(rng->Below(threads));
    const double demand =
        skewed ? 0.3 / static_cast<double>(s + 1) : 0.3 * rng->Uniform();
    Add(thread, demand, &cluster);
  }
  return cluster;
}

void ExpectNearOptimum(bool even, double factor) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    Cluster cluster = SmallCluster(even, &rng);
    const double best = BestOfAll(cluster);
    const PlannerResult plan = Plan(cluster, Eager());
    Apply(plan, Eager(), &cluster);
    EXPECT_GE(plan.worst_after, best * (1 - 1e-9));
    EXPECT_LE(plan.worst_after, factor * best);
  }
}

// The largest ratios of the first 100,000 seeds are 1.21 and 1.46.
TEST(PlannerTest, IsWithinAThirdOfTheOptimumOnEvenThreads) {
  ExpectNearOptimum(/*even=*/true, 4.0 / 3);
}
TEST(PlannerTest, IsWithinAHalfOfTheOptimumOnUnevenThreads) {
  ExpectNearOptimum(/*even=*/false, 3.0 / 2);
}

// Whatever may be in a cluster, in one.
Cluster AnyCluster(Rng* rng) {
  Cluster cluster;
  const int64_t servers = rng->Between(1, 6);
  const int64_t threads_each = rng->Between(1, 3);
  const bool even = rng->Chance(0.5);
  const bool drains = rng->Chance(0.3);
  for (int32_t s = 0; s < servers; ++s) {
    const bool accepts = !drains || rng->Chance(0.7);
    for (int32_t t = 0; t < threads_each; ++t) {
      cluster.threads.push_back({.owner = {s, t},
                                 .capacity = even ? 1 : 0.1 + rng->Uniform(),
                                 .accepts = accepts});
    }
  }
  const int64_t shards = rng->Between(0, 120);
  const double exponent = 1.5 * rng->Uniform();
  const bool groups = rng->Chance(0.3);
  for (int64_t s = 0; s < shards; ++s) {
    const auto thread = static_cast<int>(rng->Below(cluster.threads.size()));
    PlannerShard& shard = Add(
        thread,
        rng->Chance(0.1) ? 0 : std::pow(static_cast<double>(s + 1), -exponent),
        &cluster);
    shard.bytes = rng->Between(0, 1 << 24);
    const int64_t begin = rng->Between(0, 1000);
    shard.region = {begin, begin + rng->Between(1, 1 << 18)};
    shard.pinned = rng->Chance(0.1);
    if (groups) shard.apart = static_cast<int32_t>(rng->Between(-1, 40));
  }
  const bool background = rng->Chance(0.3);
  for (PlannerThread& thread : cluster.threads) {
    if (background && rng->Chance(0.5)) thread.background = rng->Uniform();
  }
  return cluster;
}

PlannerOptions AnyOptions(Rng* rng) {
  PlannerOptions options;
  options.target = 1 + 0.2 * rng->Uniform();
  options.threshold = options.target + 0.2 * rng->Uniform();
  if (rng->Chance(0.3)) options.bytes_max = rng->Between(0, 1 << 26);
  if (rng->Chance(0.3)) {
    options.moves_max = static_cast<int>(rng->Between(0, 20));
  }
  options.split_elements_min = rng->Between(1, 1 << 14);
  options.horizon_seconds = rng->Chance(0.2) ? 0.1 : 60;
  return options;
}

TEST(PlannerTest, KeepsEveryRuleOnAnyCluster) {
  int plans_with_moves = 0;
  int plans_with_splits = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    Cluster cluster = AnyCluster(&rng);
    const PlannerOptions options = AnyOptions(&rng);
    const PlannerResult plan = Plan(cluster, options);
    Apply(plan, options, &cluster);
    plans_with_moves += !plan.moves.empty();
    plans_with_splits += !plan.splits.empty();
  }
  EXPECT_GT(plans_with_moves, 1000);
  EXPECT_GT(plans_with_splits, 300);
}

TEST(PlannerTest, EqualArgumentsGiveEqualPlans) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const Cluster cluster = AnyCluster(&rng);
    const PlannerOptions options = AnyOptions(&rng);
    const PlannerResult one = Plan(cluster, options);
    const PlannerResult two = Plan(cluster, options);
    EXPECT_EQ(one.summary, two.summary);
    ASSERT_EQ(one.moves.size(), two.moves.size());
    for (size_t i = 0; i < one.moves.size(); ++i) {
      EXPECT_EQ(one.moves[i].shard, two.moves[i].shard);
      EXPECT_EQ(one.moves[i].to, two.moves[i].to);
    }
    ASSERT_EQ(one.splits.size(), two.splits.size());
    for (size_t i = 0; i < one.splits.size(); ++i) {
      EXPECT_EQ(one.splits[i].shard, two.splits[i].shard);
      EXPECT_EQ(one.splits[i].at, two.splits[i].at);
    }
  }
}

// Thousands of shards of skewed demand, placed by lot: 60 % of the time of a
// thread on average.
Cluster LargeCluster(int threads, int shards, double exponent, Rng* rng) {
  Cluster cluster = ClusterOf(std::vector<double>(threads, 1));
  double total = 0;
  for (int s = 0; s < shards; ++s) {
    const double demand = std::pow(static_cast<double>(s + 1), -exponent);
    Add(static_cast<int>(rng->Below(threads)), demand, &cluster);
    total += demand;
  }
  for (PlannerShard& shard : cluster.shards) {
    shard.demand *= 0.6 * threads / total;
  }
  return cluster;
}

TEST(PlannerTest, ReachesTheTargetWithManyShards) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    Cluster cluster = LargeCluster(20, 2000, 0.4 + 0.1 * seed, &rng);
    const PlannerResult plan = Plan(cluster, {});
    Apply(plan, {}, &cluster);
    EXPECT_GT(plan.worst_before, 1.2 * plan.mean);
    EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));
  }
}

TEST(PlannerTest, MovesNothingOnNoiseOnceItHasPlanned) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    Cluster cluster = LargeCluster(20, 2000, 0.4 + 0.1 * seed, &rng);
    Apply(Plan(cluster, {}), {}, &cluster);
    for (int round = 0; round < 30; ++round) {
      Cluster noisy = cluster;
      for (PlannerShard& shard : noisy.shards) {
        shard.demand *= 0.9 + 0.2 * rng.Uniform();
      }
      const PlannerResult plan = Plan(noisy, {});
      EXPECT_TRUE(plan.moves.empty()) << plan.summary;
      EXPECT_TRUE(plan.splits.empty());
      EXPECT_THAT(plan.summary, StartsWith("balanced"));
    }
  }
}

// One thread can never be relieved; the noise of the others is none of it.
TEST(PlannerTest, MovesNothingOnNoiseBesideAHotShardThatMustStay) {
  Rng rng(7);
  Cluster cluster = LargeCluster(40, 4000, 0.3, &rng);
  cluster.shards[0].demand = 0.9;  // 1.5 times the mean.
  cluster.shards[0].pinned = true;
  for (int i = 0; i < 3; ++i) Apply(Plan(cluster, {}), {}, &cluster);
  for (int round = 0; round < 30; ++round) {
    Cluster noisy = cluster;
    for (PlannerShard& shard : noisy.shards) {
      shard.demand *= 0.9 + 0.2 * rng.Uniform();
    }
    const PlannerResult plan = Plan(noisy, {});
    EXPECT_TRUE(plan.moves.empty()) << plan.summary;
    EXPECT_THAT(plan.summary, StartsWith("stuck"));
  }
}

// 1.15 times the mean would not be acted on without the thread at 1.5.
TEST(PlannerTest, HotShardThatMustStayIsNoReasonToRelieveOthers) {
  Cluster cluster = ClusterOf({1, 1, 1, 1, 1});
  Add(0, 0.9, &cluster).pinned = true;
  for (int s = 0; s < 69; ++s) Add(1, 0.01, &cluster);
  for (int s = 0; s < 3 * 47; ++s) Add(2 + s % 3, 0.01, &cluster);
  EXPECT_TRUE(Plan(cluster, {}).moves.empty());
  for (int s = 0; s < 10; ++s) Add(1, 0.01, &cluster);
  EXPECT_FALSE(Plan(cluster, {}).moves.empty());  // 1.29.
}

TEST(PlannerTest, ConvergesOnAStaticLoad) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    Cluster cluster = AnyCluster(&rng);
    for (int round = 0; round < 3; ++round) {
      Apply(Plan(cluster, {}), {}, &cluster);
    }
    const PlannerResult plan = Plan(cluster, {});
    EXPECT_TRUE(plan.moves.empty()) << plan.summary;
    EXPECT_TRUE(plan.splits.empty());
  }
}

TEST(PlannerTest, ThreadOfHalfTheCapacityGetsHalfTheLoad) {
  Cluster cluster = ClusterOf({1, 1, 0.5});
  for (int s = 0; s < 300; ++s) Add(s % 3, 0.01, &cluster);
  Apply(Plan(cluster, {}), {}, &cluster);
  double slow = 0;
  for (const PlannerShard& shard : cluster.shards) {
    if (shard.thread == 2) slow += shard.demand;
  }
  // A fifth of all demand, and at most the target times as much.
  EXPECT_GE(slow, 0.2 * 3 * 0.95);
  EXPECT_LE(slow, 0.2 * 3 * 1.05 + 1e-9);
}

// Copies of shards that others own are no shards to be moved.
TEST(PlannerTest, WorkThatStaysOnAThreadLeavesItLessRoom) {
  Cluster cluster = ClusterOf({1, 1, 1});
  for (int s = 0; s < 300; ++s) Add(s % 3, 0.002, &cluster);
  EXPECT_TRUE(Plan(cluster, {}).moves.empty());
  cluster.threads[0].background = 0.15;
  Apply(Plan(cluster, {}), {}, &cluster);
  // A third of all work, and at most the target times as much.
  for (const double utilisation : Utilisations(cluster))
    EXPECT_NEAR(utilisation, 0.25, 0.25 * 0.1);
  cluster.threads[0].background = 0.6;
  for (const PlannerMove& move : Plan(cluster, {}).moves)
    EXPECT_EQ(move.from, 0);
}

TEST(PlannerTest, PrefersMuchLoadPerByte) {
  Cluster cluster = ClusterOf({1, 1});
  Add(0, 0.3, &cluster).bytes = 1 << 28;
  Add(0, 0.3, &cluster).bytes = 1 << 20;
  Add(0, 0.3, &cluster).bytes = 1 << 27;
  Add(1, 0.2, &cluster);
  const PlannerResult plan = Plan(cluster, {.target = 1.1});
  ASSERT_EQ(plan.moves.size(), 1);
  EXPECT_EQ(plan.moves[0].shard, ShardId{1});
  EXPECT_EQ(plan.moves[0].reason, PlannerMove::Reason::kOverloaded);
}

TEST(PlannerTest, LeavesMovesThatCostMoreThanTheySave) {
  Cluster cluster = ClusterOf({1, 1});
  Add(0, 0.3, &cluster).bytes = 1 << 29;
  Add(0, 0.3, &cluster).bytes = 1 << 29;
  PlannerOptions options;
  options.horizon_seconds = 1;  // 0.3 s of load for 0.5 s of sending.
  const PlannerResult plan = Plan(cluster, options);
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_THAT(plan.summary,
              StartsWith("stuck: the most loaded thread has 2.00 times"));
  options.horizon_seconds = 60;
  EXPECT_EQ(Plan(cluster, options).moves.size(), 1);
}

TEST(PlannerTest, SpendsTheBudgetAndGoesOnInTheNextPlan) {
  Cluster cluster = ClusterOf({1, 1});
  for (int s = 0; s < 100; ++s) Add(0, 0.01, &cluster);
  PlannerOptions options;
  options.bytes_max = 10 << 20;
  const PlannerResult plan = Plan(cluster, options);
  EXPECT_EQ(plan.moves.size(), 10);
  EXPECT_EQ(plan.bytes, 10 << 20);
  EXPECT_THAT(plan.summary, HasSubstr("the budget ends here"));
  Apply(plan, options, &cluster);
  options.bytes_max = 1 << 30;
  options.moves_max = 7;
  EXPECT_EQ(Plan(cluster, options).moves.size(), 7);
}

TEST(PlannerTest, WorstThreadComesFirstWhenTheBudgetIsSmall) {
  Cluster cluster = ClusterOf({1, 1, 1});
  for (int s = 0; s < 40; ++s) Add(0, 0.01, &cluster);
  for (int s = 0; s < 60; ++s) Add(1, 0.01, &cluster);
  const PlannerResult plan = Plan(cluster, {.moves_max = 5});
  ASSERT_EQ(plan.moves.size(), 5);
  for (const PlannerMove& move : plan.moves) EXPECT_EQ(move.from, 1);
}

TEST(PlannerTest, HotShardIsSplitOverAllThreads) {
  Cluster cluster = ClusterOf({1, 1, 1, 1});
  Add(0, 0.8, &cluster);
  const PlannerResult plan = Plan(cluster, {});
  Apply(plan, {}, &cluster);
  EXPECT_EQ(plan.splits.size(), 3);
  EXPECT_EQ(plan.moves.size(), 3);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));

  // The pieces make up the shard.
  std::sort(cluster.shards.begin(), cluster.shards.end(),
            [](const PlannerShard& a, const PlannerShard& b) {
              return a.region < b.region;
            });
  int64_t end = 0;
  int64_t bytes = 0;
  double demand = 0;
  for (const PlannerShard& shard : cluster.shards) {
    EXPECT_EQ(shard.region.begin(), end);
    end = shard.region.end();
    bytes += shard.bytes;
    demand += shard.demand;
  }
  EXPECT_EQ(end, 1 << 18);
  EXPECT_EQ(bytes, 1 << 20);
  EXPECT_NEAR(demand, 0.8, 1e-9);
}

TEST(PlannerTest, SplitsWhenNoPlacementOfWholeShardsReachesTheTarget) {
  Cluster cluster = ClusterOf({1, 1});
  for (int s = 0; s < 3; ++s) Add(s % 2, 0.2, &cluster);
  const PlannerResult plan = Plan(cluster, {});
  EXPECT_EQ(plan.splits.size(), 1);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));
  EXPECT_THAT(plan.summary,
              StartsWith("moves 1 shard (0.5 MiB, 1 piece split off from hot "
                         "shards): the most loaded thread goes from 1.33 to"));
}

TEST(PlannerTest, ExchangesInsteadOfSplitting) {
  Cluster cluster = ClusterOf({1, 1});
  Add(0, 0.4, &cluster);
  Add(0, 0.3, &cluster);
  Add(1, 0.2, &cluster);
  Add(1, 0.1, &cluster);
  Add(1, 0.001, &cluster).pinned = true;
  const PlannerResult plan = Plan(cluster, {});
  EXPECT_TRUE(plan.splits.empty());
  EXPECT_EQ(plan.moves.size(), 2);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean);
}

TEST(PlannerTest, OthersMakeRoomForAPiece) {
  Cluster cluster = ClusterOf({1, 1, 1, 1});
  Add(0, 0.8, &cluster);
  for (int t = 1; t < 4; ++t) {
    for (int s = 0; s < 62; ++s) Add(t, 0.01, &cluster);
  }
  // No thread has room for the smallest piece worth having, an eighth of a
  // thread's mean.
  const PlannerResult plan = Plan(cluster, {});
  Apply(plan, {}, &cluster);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));
  EXPECT_TRUE(std::any_of(
      plan.moves.begin(), plan.moves.end(), [](const PlannerMove& move) {
        return move.reason == PlannerMove::Reason::kMakesRoom;
      }));
}

// 18 of the cold shards would do, too.
TEST(PlannerTest, CutsAWarmShardWhereThatSavesManyMoves) {
  Cluster cluster = ClusterOf({1, 1, 1, 1});
  Add(0, 0.5, &cluster);
  for (int s = 0; s < 40; ++s) Add(0, 0.01, &cluster);
  for (int s = 0; s < 3 * 62; ++s) Add(1 + s % 3, 0.01, &cluster);
  const PlannerResult plan = Plan(cluster, {});
  Apply(plan, {}, &cluster);
  EXPECT_LE(plan.moves.size(), 3);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));
}

TEST(PlannerTest, PiecesAreNotSmallerThanAllowed) {
  Cluster cluster = ClusterOf({1, 1, 1, 1});
  Add(0, 0.8, &cluster).region = {0, 2500};
  const PlannerResult plan = Plan(cluster, {});
  ASSERT_EQ(plan.splits.size(), 1);
  EXPECT_EQ(plan.splits[0].at, 1250);
}

// Pieces cut to measure would leave one too hot and too small to be cut again.
TEST(PlannerTest, HotShardOfFewPiecesIsCutEvenly) {
  Cluster cluster = ClusterOf(std::vector<double>(8, 1));
  Add(0, 0.8, &cluster).region = {0, 8 * 1024 + 500};
  const PlannerResult plan = Plan(cluster, {});
  Apply(plan, {}, &cluster);
  EXPECT_EQ(plan.splits.size(), 7);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean);
}

TEST(PlannerTest, PinnedShardsStayEvenWhenTheyAreTooHot) {
  Cluster cluster = ClusterOf({1, 1});
  Add(0, 0.8, &cluster).pinned = true;
  const PlannerResult plan = Plan(cluster, {});
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_TRUE(plan.splits.empty());
  EXPECT_THAT(plan.summary, StartsWith("stuck"));
}

TEST(PlannerTest, ReplicasDoNotMeetOnAServer) {
  Cluster cluster = ClusterOf({1, 1, 1});
  Add(0, 0.3, &cluster).apart = 5;
  Add(0, 0.3, &cluster).apart = 6;
  Add(1, 0.01, &cluster).apart = 5;
  Add(1, 0.01, &cluster).apart = 6;
  Add(2, 0.05, &cluster).pinned = true;  // Less room than server 1 has.
  const auto receives = [&](int thread) {
    const PlannerResult plan = Plan(cluster, {});
    return std::any_of(
        plan.moves.begin(), plan.moves.end(),
        [&](const PlannerMove& move) { return move.to == thread; });
  };
  EXPECT_FALSE(receives(1));
  EXPECT_TRUE(receives(2));
  cluster.shards[2].apart = cluster.shards[3].apart = -1;
  EXPECT_TRUE(receives(1));
}

TEST(PlannerTest, DrainedThreadIsEmptiedWhateverItCosts) {
  Cluster cluster = ClusterOf({1, 1, 1});
  cluster.threads[2].accepts = false;
  for (int s = 0; s < 30; ++s) Add(s % 3, 0.01, &cluster);
  for (int s = 0; s < 4; ++s) Add(2, 0, &cluster);
  PlannerOptions options;
  options.bytes_max = 0;
  options.moves_max = 0;
  const PlannerResult plan = Plan(cluster, options);
  Apply(plan, options, &cluster);
  std::vector<int> count(3);
  for (const PlannerShard& shard : cluster.shards) ++count[shard.thread];
  // What has no demand is spread, too.
  EXPECT_THAT(count, testing::ElementsAre(17, 17, 0));
  EXPECT_THAT(plan.summary, StartsWith("moves 14 shards (14.0 MiB, 14 off "
                                       "drained threads)"));
}

TEST(PlannerTest, DrainedHotShardIsSplit) {
  Cluster cluster = ClusterOf({1, 1, 1});
  cluster.threads[2].accepts = false;
  Add(2, 0.6, &cluster);
  const PlannerResult plan = Plan(cluster, {});
  Apply(plan, {}, &cluster);
  EXPECT_LE(plan.worst_after, 1.05 * plan.mean * (1 + 1e-6));
  EXPECT_EQ(plan.moves.size(), 2);
}

TEST(PlannerTest, SaysWhatCannotLeaveADrainedThread) {
  Cluster cluster = ClusterOf({1, 1});
  cluster.threads[1].accepts = false;
  Add(0, 0.1, &cluster);
  Add(1, 0.01, &cluster).pinned = true;
  const PlannerResult plan = Plan(cluster, {});
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_THAT(plan.summary,
              HasSubstr("; 1 shard on drained threads cannot leave yet"));
  cluster.threads[0].accepts = false;
  EXPECT_THAT(Plan(cluster, {}).summary, HasSubstr("no thread accepts shards"));
}

TEST(PlannerTest, SaysWhyThereIsNothingToDo) {
  Cluster cluster = ClusterOf({1, 1});
  EXPECT_EQ(Plan(cluster, {}).summary, "idle: no shard has any load");
  Add(0, 0.22, &cluster);
  Add(1, 0.2, &cluster);
  EXPECT_EQ(Plan(cluster, {}).summary,
            "balanced: the most loaded thread has 1.05 times the mean; it acts "
            "above 1.20");
  cluster.shards[0].demand = 0.02;
  cluster.shards[1].demand = 0;
  EXPECT_EQ(Plan(cluster, {}).summary,
            "idle: the most loaded thread is busy for 2.0 % of its time; it "
            "acts from 5.0 %");
}

}  // namespace slackline::planner_test
