// Goal: a record does to a shard what its comment says, to nothing else, and a
// record that does not fit changes nothing.
// Method: examples with SGD of rate 1 from zeros, so that values show what was
// applied, and random records against a naive twin that keeps lists and counts
// everything anew.
#include "server/shard/shard_machine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_codec.h"
#include "tests/support/floats.h"
#include "tests/support/must.h"
#include "tests/unit/shard_machine_fixture.h"

namespace slackline::shard_machine_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> Portrait(const ShardMachine& shard) {
  const ShardSnapshot snapshot = shard.Snapshot();
  std::vector<std::string> portrait = {
      EncodeSnapshot(snapshot).ShortDebugString()};
  for (const Payload& tensor : TensorsOf(snapshot)) {
    portrait.emplace_back(reinterpret_cast<const char*>(tensor.data()),
                          tensor.size());
  }
  return portrait;
}

ShardOutcome Do(ShardMachine& shard, const ShardRecord& record) {
  absl::StatusOr<ShardOutcome> outcome = shard.Apply(record);
  SL_CHECK(outcome.ok(), outcome.status().ToString());
  return *std::move(outcome);
}

ShardMachine CopyOf(const ShardMachine& shard) {
  return ShardMachine::Create(shard.rule(), shard.shard().range(),
                              shard.Snapshot())
      .value();
}

// The gradients, at any alignment, added in their order.
Payload SumOf(const std::vector<Payload>& gradients) {
  Payload sum = Payload::Allocate(gradients.front().size());
  for (size_t at = 0; at < sum.size(); at += sizeof(float)) {
    float total = 0;
    for (const Payload& gradient : gradients) {
      float value = 0;
      std::memcpy(&value, gradient.data() + at, sizeof(float));
      total = &gradient == &gradients.front() ? value : total + value;
    }
    std::memcpy(sum.MutableData() + at, &total, sizeof(float));
  }
  return sum;
}

std::string TextOf(const Payload& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

TEST(ShardMachineTest, AGradientIsAppliedAsOneOfAClockAtItsRate) {
  ShardMachine shard = NewMachine(kPlainSgd, 4);
  const ShardOutcome outcome = Do(shard, Applied(1, 0, 8, 0.5));
  EXPECT_EQ(ValueOf(shard), -1);
  ASSERT_THAT(outcome.updates, SizeIs(1));
  EXPECT_EQ(outcome.updates[0].clock, 0);
  EXPECT_EQ(outcome.updates[0].version, 1u);
  EXPECT_THAT(outcome.updates[0].ranks, ElementsAre(Rank{1}));
  EXPECT_EQ(outcome.updates[0].workers, 4);
  EXPECT_EQ(shard.participants().Find(Rank{1}, 11)->clock, 1);
  EXPECT_EQ(shard.participants().Find(Rank{1}, 11)->next_seq, 2u);
}

TEST(ShardMachineTest, HeldGradientsAreOneUpdateOnceAllHaveCome) {
  ShardMachine shard = NewMachine(kPlainSgd, 3);
  EXPECT_THAT(Do(shard, Held(2, 0, 3)).updates, IsEmpty());
  EXPECT_THAT(Do(shard, Held(0, 0, 6)).updates, IsEmpty());
  EXPECT_EQ(ValueOf(shard), 0);
  const ShardOutcome outcome = Do(shard, Held(1, 0, 9));
  ASSERT_THAT(outcome.updates, SizeIs(1));
  EXPECT_THAT(outcome.updates[0].ranks, ElementsAre(Rank{0}, Rank{1}, Rank{2}));
  EXPECT_EQ(ValueOf(shard), -6);
  EXPECT_EQ(shard.complete_clock(), 1);
  EXPECT_THAT(shard.held(), IsEmpty());
}

GradientRecord Measured(GradientRecord record, double rms) {
  record.rms = rms;
  return record;
}

TEST(ShardMachineTest, TheRunningSizeIsThatOfWhatWasApplied) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Measured(Applied(0, 0, 3), 2));
  Do(shard, Applied(0, 1, 3));  // Not measured.
  Do(shard, Measured(Applied(1, 0, 3), 5));
  EXPECT_EQ(shard.running_rms(), RunningRms(3.5, 2));
  const ShardMachine copy = CopyOf(shard);
  EXPECT_EQ(copy.running_rms(), shard.running_rms());
}

// What is known of clock c must not depend on the order in which its gradients
// come, so it is what the clocks before it say.
TEST(ShardMachineTest, HeldSizesCountOnceTheirClockIsCompleteByRank) {
  std::vector<std::string> portraits;
  for (const auto& order : {std::vector<int>{0, 1, 2}, {2, 0, 1}}) {
    ShardMachine shard = NewMachine(kPlainSgd, 3);
    for (const int rank : order) {
      EXPECT_EQ(shard.running_rms(), RunningRms());
      Do(shard, Measured(Held(rank, 0, 1), 0.1 + rank / 3.0));
    }
    EXPECT_EQ(shard.running_rms().count(), 3u);
    portraits.push_back(EncodeSnapshot(shard.Snapshot()).ShortDebugString());
  }
  EXPECT_EQ(portraits[0], portraits[1]);
}

TEST(ShardMachineTest, BothPartsHaveTheRunningSizeOfTheWhole) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Measured(Held(0, 0, 3), 2));
  Do(shard, Measured(Held(1, 0, 3), 4));
  Do(shard, Measured(Held(0, 1, 3), 6));
  const ShardOutcome outcome =
      Do(shard, SplitRecord{.at = 4, .part = ShardId{9}});
  ASSERT_TRUE(outcome.part.has_value());
  ShardMachine part = *outcome.part;
  for (ShardMachine* const each : {&shard, &part}) {
    EXPECT_EQ(each->running_rms(), RunningRms(3, 2));
    EXPECT_EQ(each->held().at(0).rms, 6);
  }
}

TEST(ShardMachineTest, AnInstallationForgetsTheRunningSize) {
  ShardMachine shard = NewMachine(kPlainSgd, 1);
  Do(shard, Measured(Applied(0, 0, 3), 2));
  Do(shard,
     InstallRecord{
         .who = Life(0), .clock = 5, .values = Floats(1, kMachineElements)});
  EXPECT_EQ(shard.running_rms(), RunningRms());
}

TEST(ShardMachineTest, AClockThatIsSummedHasTheRateFactorOfItsLowestRank) {
  ShardMachine shard = NewMachine(kPlainSgd, 3);
  GradientRecord gradient = Held(2, 0, 3);
  gradient.options.rate_factor = 7;
  Do(shard, gradient);
  gradient = Held(1, 0, 6);
  gradient.options.rate_factor = 0.5;
  Do(shard, gradient);
  // Also elsewhere, and though rank 0 has nothing to give.
  ShardMachine copy = CopyOf(shard);
  for (ShardMachine* const each : {&shard, &copy}) {
    Do(*each, AdvanceRecord{.who = Life(0), .clock = 1});
    EXPECT_EQ(ValueOf(*each), -0.5f * (3 + 6) / 2);
  }
}

// Of any number of workers, some of whom may be not waited for.
TEST(ShardMachineTest, ASumHasTheBitsOfItsGradients) {
  Rng rng(9);
  int64_t with_spare = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const int workers = static_cast<int>(rng.Between(1, 20));
    ShardMachine each =
        NewMachine(rng.Chance(0.5) ? "adam { learning_rate: 0.1 }"
                                   : "momentum { learning_rate: 0.1 }",
                   workers);
    ShardMachine summed = each;
    ShardMachine adding = each;
    PayloadMemory heap;
    for (Clock clock = 0; clock < 3; ++clock) {
      const int spare =
          rng.Chance(0.3) ? static_cast<int>(rng.Between(0, workers - 1)) : 0;
      std::vector<int> ranks(static_cast<size_t>(workers));
      std::iota(ranks.begin(), ranks.end(), 0);
      for (size_t i = ranks.size(); i > 1; --i)
        std::swap(ranks[i - 1], ranks[rng.Below(i)]);
      ranks.resize(ranks.size() - static_cast<size_t>(spare));
      // Who is not waited for is not there to begin the next clock.
      std::set<int> of_clock(ranks.begin(), ranks.end());
      SumRecord sum{.clock = clock,
                    .who = {},
                    .sum = {},
                    .spare = spare,
                    .options = {.rate_factor = 0.5 + *of_clock.begin()}};
      const bool measured = rng.Chance(0.5);
      std::map<int, double> sizes;
      std::map<int, Payload> gradients;
      ShardOutcome last;
      for (const int rank : ranks) {
        GradientRecord record = Held(rank, clock, 0, spare);
        record.options.rate_factor = 0.5 + rank;
        for (size_t i = 0; i < kMachineElements; ++i) {
          const auto value = static_cast<float>(rng.Uniform() - 0.5);
          std::memcpy(record.gradient.MutableData() + i * sizeof(float), &value,
                      sizeof(float));
        }
        gradients[rank] = record.gradient;
        if (measured) record.rms = sizes[rank] = rng.Uniform();
        Do(each, record);
        last = Must(adding.Apply(record, {.memory = heap, .sums = true}));
      }
      std::vector<Payload> in_order;
      for (const auto& [rank, gradient] : gradients) {
        sum.who.push_back(Life(rank));
        in_order.push_back(gradient);
        if (measured) sum.rms.push_back(sizes.at(rank));
      }
      sum.sum = SumOf(in_order);
      ASSERT_EQ(Portrait(adding), Portrait(each));
      ASSERT_THAT(last.updates, SizeIs(1));
      if (in_order.size() > 1) {
        ASSERT_EQ(TextOf(last.updates[0].sum), TextOf(sum.sum));
      }
      const ShardOutcome outcome = Do(summed, sum);
      ASSERT_THAT(outcome.updates, SizeIs(1));
      EXPECT_THAT(outcome.updates[0].ranks, SizeIs(ranks.size()));
      ASSERT_EQ(Portrait(summed), Portrait(each));
      ASSERT_EQ(summed.position(), each.position());
      for (int rank = 0; rank < workers; ++rank) {
        if (of_clock.count(rank) > 0) continue;
        ++with_spare;
        const AdvanceRecord skips{.who = Life(rank), .clock = clock + 1};
        Do(each, skips);
        Do(summed, skips);
        Do(adding, skips);
      }
    }
  }
  EXPECT_GT(with_spare, 100);
}

// Of sizes that leave vector loops a rest, at any alignment.
TEST(ShardMachineTest, TheMeanOfASumHasTheBitsOfTheMean) {
  Rng rng(10);
  const Optimizer optimizer = MakeOptimizer("adam { learning_rate: 0.1 }");
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const int64_t elements = rng.Between(1, 9000);
    wire::Table table;
    table.add_shape(elements);
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    const ShardRange range{.shard = ShardId{0},
                           .region = Region::First(elements)};
    Shard of_each = DenseShard(table, range, 1, optimizer);
    Shard of_sum = DenseShard(table, range, 1, optimizer);
    Shard adding = DenseShard(table, range, 1, optimizer);
    PayloadMemory heap;
    std::vector<Payload> gradients;
    const int workers = static_cast<int>(rng.Between(1, 20));
    for (int i = 0; i < workers; ++i) {
      const size_t offset = rng.Below(8);
      Payload frame = Payload::Allocate(offset + range.region.DenseBytes());
      for (size_t k = 0; k < static_cast<size_t>(elements); ++k) {
        const auto value = static_cast<float>(rng.Uniform() - 0.5);
        std::memcpy(frame.MutableData() + offset + k * sizeof(float), &value,
                    sizeof(float));
      }
      gradients.push_back(frame.Slice(offset, range.region.DenseBytes()));
    }
    const Shard::Mean of_parts = {
        .parts = gradients, .count = workers, .workers = workers};
    ASSERT_TRUE(
        of_each.ApplyMean(optimizer, of_parts, {.learning_rate = 0.3}, heap)
            .ok());
    Payload sum;
    ASSERT_TRUE(
        adding
            .ApplyMean(optimizer, of_parts, {.learning_rate = 0.3}, heap, &sum)
            .ok());
    ASSERT_EQ(TextOf(sum), TextOf(SumOf(gradients)));
    ASSERT_TRUE(of_sum
                    .ApplyMean(optimizer,
                               {.parts = absl::MakeConstSpan(&sum, 1),
                                .count = workers,
                                .workers = workers},
                               {.learning_rate = 0.3}, heap)
                    .ok());
    for (const Shard* const other : {&of_sum, &adding}) {
      ASSERT_EQ(TextOf(of_each.values()), TextOf(other->values()));
      for (size_t i = 0; i < of_each.slots().size(); ++i)
        ASSERT_EQ(TextOf(of_each.slots()[i]), TextOf(other->slots()[i]));
    }
  }
}

TEST(ShardMachineTest, ASumThatIsNotAllOfItsClockIsRefused) {
  ShardMachine shard = NewMachine(kPlainSgd, 3);
  const Payload sum = Floats(6, kMachineElements);
  const SumRecord two{.clock = 0, .who = {Life(0), Life(2)}, .sum = sum};
  EXPECT_FALSE(shard.Apply(two).ok());
  Do(shard, Held(1, 0, 3));
  EXPECT_FALSE(shard.Apply(two).ok()) << "the rest of the clock is held";
  Do(shard, Held(0, 0, 3));
  Do(shard, Held(2, 0, 3));
  EXPECT_EQ(ValueOf(shard), -3);
}

TEST(ShardMachineTest, WithARateFactorOfZeroOnlyTheVersionChanges) {
  ShardMachine shard = NewMachine(kPlainSgd, 1);
  Do(shard, Applied(0, 0, 8, 0));
  EXPECT_EQ(ValueOf(shard), 0);
  EXPECT_EQ(shard.shard().version(), 1u);
}

TEST(ShardMachineTest, WithSpareWorkersTheFirstOnesAreEnough) {
  ShardMachine shard = NewMachine(kPlainSgd, 3);
  Do(shard, Held(2, 0, 4, /*spare=*/1));
  EXPECT_THAT(Do(shard, Held(0, 0, 2, 1)).updates, SizeIs(1));
  EXPECT_EQ(ValueOf(shard), -3);
  EXPECT_EQ(shard.complete_clock(), 1);
  EXPECT_EQ(shard.participants().MinClock(), 0);
  // The late one has nothing to give any more.
  Do(shard, AdvanceRecord{.who = Life(1), .clock = 1});
  EXPECT_EQ(shard.participants().MinClock(), 1);
  EXPECT_EQ(shard.shard().version(), 1u);
}

TEST(ShardMachineTest, WhoSkipsAClockIsNotWaitedFor) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Held(0, 0, 4));
  Do(shard, AdvanceRecord{.who = Life(1), .clock = 3});
  EXPECT_EQ(ValueOf(shard), -4);
  EXPECT_EQ(shard.complete_clock(), 1);
}

TEST(ShardMachineTest, WhoLeavesIsNotWaitedForAndWhatItGaveCounts) {
  ShardMachine shard = NewMachine(kPlainSgd, 3);
  Do(shard, Held(0, 0, 2));
  Do(shard, Held(1, 0, 4));
  EXPECT_THAT(
      Do(shard, LeaveRecord{.incarnations = {Life(1).incarnation}}).updates,
      IsEmpty());
  EXPECT_THAT(shard.held(), SizeIs(2));
  Do(shard, LeaveRecord{.incarnations = {Life(2).incarnation, 99}});
  EXPECT_EQ(ValueOf(shard), -3);
  EXPECT_EQ(shard.participants().size(), 1u);
}

TEST(ShardMachineTest, AnInstallationBringsAllToItsClockAndSomeMore) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Held(0, 0, 2));
  const ShardOutcome outcome =
      Do(shard, InstallRecord{.who = Life(1),
                              .clock = 5,
                              .version = 9,
                              .values = Floats(42, kMachineElements),
                              .slots = {},
                              .joining = {Life(2)}});
  EXPECT_EQ(outcome.replaced, 1);
  EXPECT_EQ(ValueOf(shard), 42);
  EXPECT_EQ(shard.shard().version(), 9u);
  EXPECT_EQ(shard.complete_clock(), 5);
  ASSERT_EQ(shard.participants().size(), 3u);
  for (const Participant& who : shard.participants()) {
    EXPECT_EQ(who.clock, 5);
    EXPECT_EQ(who.next_seq, who.rank == Rank{2} ? 1u : 2u);
  }
}

TEST(ShardMachineTest, AShardThatIsCutIsTwoWithTheSameWorkers) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Applied(0, 0, 2));
  Do(shard, Applied(1, 0, 2));
  GradientRecord held = Held(0, 1, 0);
  const float gradient[kMachineElements] = {1, 2, 3, 4};
  held.gradient = Payload::Copy(gradient, sizeof(gradient));
  Do(shard, held);
  ShardOutcome outcome = Do(shard, SplitRecord{.at = 3, .part = ShardId{7}});
  ShardMachine& part = *outcome.part;
  EXPECT_EQ(shard.shard().range().region.size(), 1);
  EXPECT_EQ(part.shard().range().shard, ShardId{7});
  EXPECT_EQ(part.shard().range().region.begin(), 3);
  EXPECT_EQ(part.shard().range().region.end(), 6);
  held.who = Life(1);
  held.gradient = Floats(1, 1);
  Do(shard, held);
  held.gradient = Floats(4, 3);
  Do(part, held);
  EXPECT_EQ(ValueOf(shard), -3);
  EXPECT_EQ(ValueOf(part), -5);
  for (const ShardMachine* const each : {&shard, &part}) {
    EXPECT_EQ(each->shard().version(), 3u);
    EXPECT_EQ(each->complete_clock(), 2);
    EXPECT_EQ(each->participants().size(), 2u);
  }
}

TEST(ShardMachineTest, ACopyGoesItsOwnWay) {
  ShardMachine shard = NewMachine(kPlainSgd, 1);
  ShardMachine copy = CopyOf(shard);
  Do(copy, Applied(0, 0, 2));
  EXPECT_EQ(ValueOf(shard), 0);
  EXPECT_EQ(ValueOf(copy), -2);
}

TEST(ShardMachineTest, ARecordThatDoesNotFitChangesNothing) {
  ShardMachine shard = NewMachine(kPlainSgd, 2);
  Do(shard, Applied(0, 0, 2));
  Do(shard, Applied(1, 0, 2));
  Do(shard, Applied(0, 1, 2));
  GradientRecord small = Applied(0, 2, 2);
  small.gradient = Floats(1, kMachineElements - 1);
  const Payload tensor = Floats(1, kMachineElements);
  const InstallRecord install{.who = Life(0),
                              .clock = 5,
                              .version = 9,
                              .values = Floats(1, kMachineElements)};
  const auto changed = [&](const std::function<void(InstallRecord&)>& change) {
    InstallRecord record = install;
    change(record);
    return record;
  };
  const struct {
    const char* what;
    ShardRecord record;
  } cases[] = {
      {"a rank twice", JoinRecord{.who = {Rank{1}, 99}}},
      {"a gradient of a stranger", Applied(2, 0, 1)},
      {"a gradient once more", Applied(0, 1, 1)},
      {"a gradient ahead", Applied(0, 3, 1)},
      {"a gradient that is held out of turn", Held(0, 2, 1)},
      {"a gradient of another size", small},
      {"an advance of a stranger", AdvanceRecord{.who = {Rank{0}, 99}}},
      {"an advance backwards", AdvanceRecord{.who = Life(0), .clock = 1}},
      {"sizes of some gradients of a sum",
       SumRecord{.clock = 1,
                 .who = {Life(0), Life(1), Life(2)},
                 .sum = tensor,
                 .rms = {1, 2}}},
      {"a sum of nobody", SumRecord{.clock = 1, .who = {}, .sum = tensor}},
      {"a sum of a stranger",
       SumRecord{.clock = 1, .who = {Life(1), Life(2)}, .sum = tensor}},
      {"a sum of one that is ahead",
       SumRecord{.clock = 1, .who = {Life(0), Life(1)}, .sum = tensor}},
      {"a sum of a clock that is complete",
       SumRecord{.clock = 0, .who = {Life(1)}, .sum = tensor}},
      {"a sum of a clock ahead",
       SumRecord{.clock = 2, .who = {Life(0)}, .sum = tensor}},
      {"a sum with one twice",
       SumRecord{.clock = 1, .who = {Life(1), Life(1)}, .sum = tensor}},
      {"a sum of another size",
       SumRecord{.clock = 1, .who = {Life(1)}, .sum = Floats(1, 3)}},
      {"an installation in the past",
       changed([](InstallRecord& r) { r.clock = 1; })},
      {"an installation by a stranger",
       changed([](InstallRecord& r) { r.who = Life(5); })},
      {"an installation with a slot too many", changed([](InstallRecord& r) {
         r.slots = {Floats(1, kMachineElements)};
       })},
      {"an installation of another size",
       changed([](InstallRecord& r) { r.values = Floats(1, 1); })},
      {"an installation with a rank that is there",
       changed([](InstallRecord& r) {
         r.joining = {{Rank{1}, 99}};
       })},
      {"an installation with a rank twice", changed([](InstallRecord& r) {
         r.joining = {Life(4), Life(4)};
       })},
      {"a split at its beginning", SplitRecord{.at = 2, .part = ShardId{7}}},
      {"a split at its end", SplitRecord{.at = 6, .part = ShardId{7}}},
  };
  const std::vector<std::string> before = Portrait(shard);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(shard.Apply(c.record).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Portrait(shard), before);
  }
  Do(shard, install);
}

// As the header says it, with lists.
struct Twin {
  struct Worker {
    Incarnation incarnation = 0;
    Clock clock = 0;
    uint64_t next_seq = 1;
  };
  struct Waiting {
    Rank rank{};
    Incarnation incarnation = 0;
    float gradient = 0;
    float rate_factor = 1;
  };
  std::map<Rank, Worker> workers;
  std::vector<Waiting> held;
  int spare = 0;
  Clock last_min = 0;
  Clock complete = 0;
  Version version = 0;
  float value = 0;

  Clock Min() {
    if (workers.empty()) return last_min;
    last_min = kClockMax;
    for (const auto& [rank, worker] : workers)
      last_min = std::min(last_min, worker.clock);
    return last_min;
  }
  void Complete() {
    const bool enough = !held.empty() && spare > 0 &&
                        static_cast<int>(held.size()) >=
                            static_cast<int>(workers.size()) - spare;
    if (Min() <= complete && !enough) return;
    if (!held.empty()) {
      std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
        return std::tie(a.rank, a.incarnation) <
               std::tie(b.rank, b.incarnation);
      });
      float sum = 0;
      for (const Waiting& each : held) sum += each.gradient;
      value -= held.front().rate_factor * sum *
               (1.0f / static_cast<float>(held.size()));
      ++version;
      held.clear();
    }
    complete = std::max(complete + (enough ? 1 : 0), Min());
  }
};

TEST(ShardMachineTest, AgreesWithANaiveTwinUnderRandomRecords) {
  int64_t updates = 0;
  int64_t early = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const bool holds = rng.Chance(0.7);
    const int spare = rng.Chance(0.5) ? static_cast<int>(rng.Below(3)) : 0;
    ShardMachine shard = NewMachine(kPlainSgd, 0);
    Twin twin;
    twin.spare = spare;
    Incarnation next_incarnation = 1;
    for (int step = 0; step < 200; ++step) {
      const Rank rank{static_cast<int32_t>(rng.Below(4))};
      const auto found = twin.workers.find(rank);
      if (found == twin.workers.end()) {
        if (!rng.Chance(0.3)) continue;
        const WorkerLife who{rank, next_incarnation++};
        Do(shard, JoinRecord{.who = who, .clock = twin.complete});
        const Clock clock = std::max(twin.complete, twin.Min());
        twin.workers[rank] = {.incarnation = who.incarnation, .clock = clock};
      } else if (rng.Chance(0.03)) {
        Do(shard, LeaveRecord{.incarnations = {found->second.incarnation}});
        twin.workers.erase(found);
        twin.Complete();
      } else {
        Twin::Worker& worker = found->second;
        const WorkerLife who{rank, worker.incarnation};
        ++worker.next_seq;
        if ((holds && worker.clock != twin.complete) || rng.Chance(0.1)) {
          worker.clock += rng.Between(0, 2);
          Do(shard, AdvanceRecord{.who = who, .clock = worker.clock});
        } else {
          const float gradient = static_cast<float>(12 * rng.Between(-5, 5));
          const float factor = 0.25f * static_cast<float>(rng.Below(9));
          Do(shard,
             GradientRecord{.who = who,
                            .clock = worker.clock++,
                            .gradient = Floats(gradient, kMachineElements),
                            .held = holds,
                            .spare = spare,
                            .options = {.rate_factor = factor}});
          if (holds) {
            twin.held.push_back({rank, who.incarnation, gradient, factor});
          } else {
            twin.value -=
                factor * gradient / static_cast<float>(twin.workers.size());
            ++twin.version;
          }
        }
        early += twin.Min() < twin.complete;
        twin.Complete();
      }
      ASSERT_EQ(shard.participants().MinClock(), twin.Min());
      ASSERT_EQ(shard.complete_clock(), twin.complete);
      ASSERT_EQ(shard.held().size(), twin.held.size());
      ASSERT_EQ(shard.shard().version(), twin.version);
      ASSERT_FLOAT_EQ(ValueOf(shard), twin.value);
      ASSERT_EQ(shard.participants().size(), twin.workers.size());
      for (const Participant& who : shard.participants()) {
        const Twin::Worker& worker = twin.workers.at(who.rank);
        ASSERT_EQ(who.incarnation, worker.incarnation);
        ASSERT_EQ(who.clock, worker.clock);
        ASSERT_EQ(who.next_seq, worker.next_seq);
      }
      // What any machine becomes, another one can be.
      ASSERT_TRUE(
          CheckSnapshot(EncodeSnapshot(shard.Snapshot()), *shard.rule()).ok());
    }
    updates += static_cast<int64_t>(twin.version);
  }
  EXPECT_GT(updates, 5000);
  EXPECT_GT(early, 500);
}

}  // namespace slackline::shard_machine_test
