// Goal: the workers of a step share out exactly the rows that one worker with
// the W-fold batch would take, and any step can be asked for at any time.
#include "worker/data/sampler.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::sampler_test {

using testing::HasSubstr;

Sampler Make(int64_t examples, int64_t batch_size, int32_t rank,
             int64_t world_size, uint64_t seed = 1) {
  auto sampler = Sampler::Create({.examples = examples,
                                  .batch_size = batch_size,
                                  .rank = Rank{rank},
                                  .world_size = world_size,
                                  .seed = seed});
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

std::vector<int64_t> Rows(Sampler* sampler, Clock step) {
  const absl::Span<const int64_t> rows = sampler->Batch(step);
  return {rows.begin(), rows.end()};
}

// Property over random sizes; the naive twin is the single worker.
TEST(Sampler, WorkersTogetherTakeTheBatchOfOneLargeWorker) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const int64_t world_size = rng.Between(1, 5);
    const int64_t batch_size = rng.Between(1, 7);
    const int64_t examples =
        world_size * batch_size * rng.Between(1, 6) + rng.Between(0, 4);
    Sampler single = Make(examples, batch_size * world_size, 0, 1, seed);
    std::vector<Sampler> workers;
    for (int32_t r = 0; r < world_size; ++r)
      workers.push_back(Make(examples, batch_size, r, world_size, seed));
    for (Clock step = 0; step < 3 * single.steps_per_epoch(); ++step) {
      std::vector<int64_t> together;
      for (Sampler& worker : workers) {
        ASSERT_EQ(worker.steps_per_epoch(), single.steps_per_epoch());
        const std::vector<int64_t> rows = Rows(&worker, step);
        together.insert(together.end(), rows.begin(), rows.end());
      }
      ASSERT_EQ(together, Rows(&single, step)) << "step " << step;
    }
  }
}

TEST(Sampler, PlacesOfAnEpochAreThoseThatWorkersShare) {
  Sampler worker = Make(20, 4, 1, 2);
  Sampler elastic = *Sampler::Create({.examples = 20,
                                      .batch_size = 30,
                                      .rank = Rank{0},
                                      .world_size = 1,
                                      .seed = 1,
                                      .elastic = true});
  for (const int64_t epoch : {3, 0}) {
    const absl::Span<const int64_t> rows = elastic.At(epoch, 4, 8);
    EXPECT_EQ(std::vector<int64_t>(rows.begin(), rows.end()),
              Rows(&worker, epoch * worker.steps_per_epoch()));
  }
  EXPECT_EQ(elastic.At(1, 0, 20).size(), 20u);
  EXPECT_EQ(elastic.At(1, 20, 20).size(), 0u);
  EXPECT_FALSE(Sampler::Create({.examples = 0,
                                .batch_size = 1,
                                .rank = Rank{0},
                                .world_size = 1,
                                .seed = 1,
                                .elastic = true})
                   .ok());
}

TEST(Sampler, EachEpochTakesEveryExampleOnceInAnotherOrder) {
  Sampler sampler = Make(20, 4, 0, 1);
  ASSERT_EQ(sampler.steps_per_epoch(), 5);
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    for (int k = 0; k < 5; ++k) {
      const std::vector<int64_t> rows = Rows(&sampler, epoch * 5 + k);
      order.insert(order.end(), rows.begin(), rows.end());
    }
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (int64_t row = 0; row < 20; ++row) ASSERT_EQ(order[row], row);
  }
  EXPECT_EQ(orders.size(), 4);
}

TEST(Sampler, WithoutShufflingEachEpochHasTheOrderOfTheTrainingSet) {
  Sampler sampler = *Sampler::Create({.examples = 13,
                                      .batch_size = 3,
                                      .rank = Rank{1},
                                      .world_size = 2,
                                      .seed = 1,
                                      .shuffle = false});
  for (Clock step = 0; step < 6; ++step) {
    const int64_t begin = step % 2 == 0 ? 3 : 9;
    EXPECT_THAT(Rows(&sampler, step),
                testing::ElementsAre(begin, begin + 1, begin + 2));
  }
}

TEST(Sampler, WithoutShufflingATrainingSetMayHaveMoreRowsThanTheMemory) {
  constexpr int64_t kExamples = 1'000'000'000'000'000;
  Sampler sampler = *Sampler::Create({.examples = kExamples,
                                      .batch_size = 2,
                                      .rank = Rank{0},
                                      .world_size = 1,
                                      .seed = 1,
                                      .shuffle = false});
  EXPECT_THAT(Rows(&sampler, sampler.steps_per_epoch() - 1),
              testing::ElementsAre(kExamples - 2, kExamples - 1));
}

TEST(Sampler, IncompleteLastStepIsLeftOut) {
  EXPECT_EQ(Make(23, 2, 0, 4).steps_per_epoch(), 2);
}

TEST(Sampler, AnyStepCanBeAskedForAtAnyTime) {
  Sampler in_order = Make(30, 3, 1, 2);
  std::vector<std::vector<int64_t>> want;
  for (Clock step = 0; step < 20; ++step) want.push_back(Rows(&in_order, step));
  Sampler jumping = Make(30, 3, 1, 2);
  for (const Clock step : {13, 2, 19, 0, 13, 14, 7})
    EXPECT_EQ(Rows(&jumping, step), want[step]) << step;
}

TEST(Sampler, SeedDecidesTheOrder) {
  Sampler a = Make(1000, 10, 0, 1, 1);
  Sampler b = Make(1000, 10, 0, 1, 2);
  EXPECT_NE(Rows(&a, 0), Rows(&b, 0));
}

// Each row is first equally often: 20 rows, 4000 epochs, 200 expected with a
// deviation of 14; the bounds are five of them.
TEST(Sampler, OrderIsUniform) {
  Sampler sampler = Make(20, 20, 0, 1);
  std::vector<int> first(20);
  for (Clock step = 0; step < 4000; ++step) ++first[sampler.Batch(step)[0]];
  EXPECT_THAT(
      first, testing::Each(testing::AllOf(testing::Gt(130), testing::Lt(270))));
}

TEST(Sampler, ImpossibleSizesNameTheNumbers) {
  const auto error = [](Sampler::Options options) {
    const auto sampler = Sampler::Create(options);
    EXPECT_EQ(sampler.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sampler.status().message());
  };
  EXPECT_THAT(error({.examples = 100,
                     .batch_size = 64,
                     .rank = Rank{0},
                     .world_size = 2}),
              HasSubstr("100 training examples do not make one step of 2 "
                        "workers with batches of 64"));
  EXPECT_THAT(
      error(
          {.examples = 100, .batch_size = 0, .rank = Rank{0}, .world_size = 2}),
      HasSubstr("batch_size: 0"));
  EXPECT_THAT(
      error(
          {.examples = 100, .batch_size = 1, .rank = Rank{2}, .world_size = 2}),
      HasSubstr("rank 2 is outside [0, 2)"));
}

}  // namespace slackline::sampler_test
