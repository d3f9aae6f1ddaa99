#include "tests/sim/long_run.h"

#include "gtest/gtest.h"

namespace slackline::sim {
namespace {

RunCounts Of(const LongRun::Chunk& chunk) {
  RunCounts counts;
  counts.runs = static_cast<int64_t>(chunk.seeds);
  counts.network.lost = 2 * counts.runs;
  counts.steps[3] = 1;
  return counts;
}

TEST(LongRunTest, EverySeedIsHandedOutOnce) {
  LongRun run({.first = 5, .seeds = 7, .chunk = 3, .what = ""});
  std::vector<uint64_t> seeds;
  while (const std::optional<LongRun::Chunk> chunk = run.Next()) {
    for (uint64_t i = 0; i < chunk->seeds; ++i)
      seeds.push_back(chunk->first + i);
    run.Done(*chunk, Of(*chunk));
  }
  EXPECT_EQ(seeds, (std::vector<uint64_t>{5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(run.done_up_to(), 12u);
  EXPECT_EQ(run.counts().runs, 7);
}

TEST(LongRunTest, AChunkThatIsStillMissingIsDoneAgainAfterAResumption) {
  LongRun run({.first = 1, .seeds = 0, .chunk = 10, .what = "modes"});
  const LongRun::Chunk first = *run.Next();
  const LongRun::Chunk second = *run.Next();
  const LongRun::Chunk third = *run.Next();
  run.Done(third, Of(third));
  run.Done(first, Of(first));
  EXPECT_EQ(run.done_up_to(), second.first);

  LongRun again({.first = 1, .seeds = 0, .chunk = 4, .what = "modes"});
  ASSERT_TRUE(again.Resume(run.State()));
  EXPECT_EQ(again.done_up_to(), second.first);
  EXPECT_EQ(again.counts().runs, 10);
  EXPECT_EQ(again.counts().network.lost, 20);
  EXPECT_EQ(again.counts().steps[3], 1);
  EXPECT_EQ(again.Next()->first, second.first);
}

TEST(LongRunTest, AStateOfSomethingElseIsRefused) {
  const LongRun run({.first = 1, .what = "modes"});
  LongRun other({.first = 1, .what = "one mode"});
  EXPECT_FALSE(other.Resume(run.State()));
  EXPECT_FALSE(other.Resume("{"));
  EXPECT_FALSE(other.Resume("{\"what\": \"one mode\", \"first\": 1}"));
  EXPECT_EQ(other.done_up_to(), 1u);
}

}  // namespace
}  // namespace slackline::sim
