// What a worker keeps of its pushes and pulls: how messages are cut with their
// shards, which go before which, and how a pull is put together.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client_core_fixture.h"
#include "worker/client/client_counts.h"
#include "worker/client/pending_pulls.h"
#include "worker/client/pull_unit.h"
#include "worker/client/push_clock.h"
#include "worker/client/push_sequences.h"
#include "worker/client/push_unit.h"

namespace slackline::client_units_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Payload Floats(const std::vector<float>& floats) {
  return Payload::Copy(floats.data(), floats.size() * sizeof(float));
}

std::vector<float> FloatsIn(const Payload& payload) {
  std::vector<float> floats(payload.size() / sizeof(float));
  std::memcpy(floats.data(), payload.data(), payload.size());
  return floats;
}

PushEntry Gradient(int32_t shard, uint64_t seq, Clock clock = 0) {
  return {.kind = PushEntry::Kind::kGradient,
          .shard = shard,
          .seq = seq,
          .clock = clock,
          .elements = 4,
          .values = Floats({0, 1, 2, 3}),
          .slots = {}};
}

// Of a shard of four elements, which keeps the first.
ShardSplit SplitOf(int32_t kept, int32_t split_off,
                   std::shared_ptr<const View> view = nullptr) {
  const Region whole(4 * kept, 4 * kept + 4);
  const auto [of_kept, of_split_off] = whole.SplitAfter(1);
  return {.kept = kept,
          .split_off = split_off,
          .of_kept = of_kept,
          .of_split_off = of_split_off,
          .view = std::move(view)};
}
const ShardSplit kSplit = SplitOf(2, 8);

// ---- Messages of pushes -----------------------------------------------------

TEST(PushUnitTest, ThePartsOfAGradientStandWhereTheWholeStood) {
  PushUnit unit;
  unit.Add(Gradient(1, 1), TableId{0});
  unit.Add(Gradient(2, 5), TableId{0});
  unit.Add(Gradient(3, 1), TableId{0});
  EXPECT_EQ(unit.SplitAt(kSplit), 0u) << "floats do not grow";
  EXPECT_EQ(unit.bytes, 48u);
  ASSERT_EQ(unit.entries.size(), 4u);
  EXPECT_EQ(unit.entries[1].shard, 2);
  EXPECT_EQ(unit.entries[1].seq, 5u);
  EXPECT_EQ(unit.entries[1].elements, 1u);
  EXPECT_THAT(FloatsIn(unit.entries[1].values), ElementsAre(0));
  EXPECT_EQ(unit.entries[2].shard, 8);
  EXPECT_EQ(unit.entries[2].seq, 5u);
  EXPECT_EQ(unit.entries[2].elements, 3u);
  EXPECT_THAT(FloatsIn(unit.entries[2].values), ElementsAre(1, 2, 3));
  EXPECT_EQ(unit.entries[3].shard, 3);
}

TEST(PushUnitTest, AGradientWhoseCodeCannotBeCutThereGrows) {
  const GradientCode code = {.kind = wire::Encoding::INT8, .block = 4};
  PushEntry entry = Gradient(2, 1);
  Payload bytes = Payload::Allocate(code.Bytes(4));
  Rng rng(1);
  Encode(code, Keep::kLargest, std::vector<float>{0, 127, 1, 2}, &rng,
         bytes.MutableData());
  entry.values = bytes;
  entry.code = code;
  PushUnit unit;
  unit.Add(entry, TableId{0});
  ASSERT_EQ(unit.bytes, 8u);
  EXPECT_EQ(unit.SplitAt(kSplit), 8u) << "four floats in place of a block";
  EXPECT_EQ(unit.bytes, 16u);
  EXPECT_THAT(FloatsIn(unit.entries[1].values), ElementsAre(127, 1, 2));
}

TEST(PushUnitTest, AnAdvanceIsOfBothParts) {
  PushUnit unit;
  unit.Add({.kind = PushEntry::Kind::kAdvance,
            .shard = 2,
            .seq = 3,
            .clock = 7,
            .values = Payload(),
            .slots = {}},
           TableId{0});
  EXPECT_EQ(unit.SplitAt(kSplit), 0u);
  ASSERT_EQ(unit.entries.size(), 2u);
  EXPECT_EQ(unit.entries[1].shard, 8);
  EXPECT_EQ(unit.entries[1].seq, 3u);
  EXPECT_EQ(unit.entries[1].clock, 7);
}

TEST(PushUnitTest, EarlierTablesOfTheSameClockOvertake) {
  const auto unit_of = [](Clock clock, std::vector<int> tables) {
    PushUnit unit;
    for (const int table : tables)
      unit.Add(Gradient(0, 1, clock), TableId{table});
    return unit;
  };
  const PushUnit waiting = unit_of(3, {4, 5});
  EXPECT_TRUE(waiting.IsOvertakenBy(unit_of(3, {2, 3}).gradients));
  EXPECT_FALSE(waiting.IsOvertakenBy(unit_of(3, {3, 4}).gradients));
  EXPECT_FALSE(waiting.IsOvertakenBy(unit_of(2, {1}).gradients));
  PushUnit of_two_clocks = unit_of(3, {1});
  of_two_clocks.Add(Gradient(0, 2, 4), TableId{1});
  EXPECT_FALSE(waiting.IsOvertakenBy(of_two_clocks.gradients));
  EXPECT_FALSE(of_two_clocks.IsOvertakenBy(unit_of(3, {0}).gradients));
}

TEST(PushUnitTest, WhatIsRefusedIsTheNextPushOrStandsBehindOne) {
  PushSequences sequences(kShards);
  PushUnit unit;
  unit.Add(Gradient(1, 2), TableId{0});
  EXPECT_FALSE(unit.IsNextIn(sequences)) << "push 1 is missing";
  unit.Refuse(1, sequences);
  EXPECT_EQ(unit.state, PushUnit::State::kBehind);
  ASSERT_TRUE(sequences.Accept(1, 1));
  EXPECT_TRUE(unit.IsNextIn(sequences));
  unit.Refuse(1, sequences);
  EXPECT_EQ(unit.state, PushUnit::State::kRefused);
  unit.state = PushUnit::State::kSent;
  ASSERT_TRUE(sequences.Accept(1, 2));
  EXPECT_TRUE(unit.AcceptedIn(sequences));
  unit.Refuse(1, sequences);
  EXPECT_EQ(unit.state, PushUnit::State::kSent) << "a late refusal";
}

// ---- Numbers and clocks -----------------------------------------------------

TEST(PushSequencesTest, AcceptanceIsCumulativeAndNeverGoesBack) {
  PushSequences sequences(3);
  EXPECT_EQ(sequences.Next(1), 1u);
  EXPECT_EQ(sequences.Next(1), 2u);
  EXPECT_EQ(sequences.Next(2), 1u) << "each shard has its own";
  EXPECT_FALSE(sequences.AllAccepted(1));
  EXPECT_TRUE(sequences.Accept(1, 2));
  EXPECT_FALSE(sequences.Accept(1, 1));
  EXPECT_EQ(sequences.accepted(1), 2u);
  EXPECT_TRUE(sequences.AllAccepted(1));
  sequences.Split(SplitOf(1, 3));
  EXPECT_EQ(sequences.shard_count(), 4u);
  EXPECT_EQ(sequences.accepted(3), 2u);
  EXPECT_EQ(sequences.Next(3), 3u);
}

TEST(PushClockTest, AClockEndsWithItsLastTableInAnyOrder) {
  const std::shared_ptr<const View> view = *View::Create(TestView());
  PushClock clock(2);
  clock.PullBehind(9);
  EXPECT_TRUE(clock.Check(0, TableId{1}, *view).ok());
  EXPECT_FALSE(clock.Check(1, TableId{1}, *view).ok());
  EXPECT_FALSE(clock.Check(0, TableId{2}, *view).ok());
  EXPECT_FALSE(clock.End(TableId{1}));
  EXPECT_FALSE(clock.BetweenClocks());
  EXPECT_FALSE(clock.Check(0, TableId{1}, *view).ok()) << "twice";
  EXPECT_EQ(clock.pull_behind(), 9u);
  EXPECT_TRUE(clock.End(TableId{0}));
  EXPECT_EQ(clock.clock(), 1);
  EXPECT_TRUE(clock.BetweenClocks());
  EXPECT_EQ(clock.pull_behind(), 0u) << "it was behind the pushes of clock 0";
  EXPECT_TRUE(clock.Check(1, TableId{1}, *view).ok());
}

TEST(ClientCountsTest, WhatIsAcceptedBeforeItsTurnWasNotSentAgain) {
  ClientCounts counts;
  counts.Pushed(10);
  counts.SentFirst(10, /*again=*/0);
  counts.Rerouted(10);
  EXPECT_EQ(counts.bytes_pushed(), 0u);
  EXPECT_EQ(counts.bytes_resent(), 0u);
  counts.SentFirst(10, /*again=*/4);
  EXPECT_EQ(counts.bytes_pushed(), 10u);
  EXPECT_EQ(counts.bytes_resent(), 4u);
  counts.AcceptedInFlight(absl::UnixEpoch());
  EXPECT_EQ(counts.acknowledged_at(), absl::InfinitePast());
  counts.Accepted(10);
  counts.AcceptedInFlight(absl::UnixEpoch());
  EXPECT_EQ(counts.acknowledged_at(), absl::UnixEpoch());
}

// ---- Pulls ------------------------------------------------------------------

TEST(PullUnitTest, WhoWantsAShardWantsBothOfItsParts) {
  PullUnit unit;
  unit.shards = {2, 4};
  unit.SplitAt(kSplit);
  EXPECT_THAT(unit.shards, ElementsAre(2, 4, 8));
  unit.SplitAt(SplitOf(3, 9));
  EXPECT_THAT(unit.shards, ElementsAre(2, 4, 8));
  unit.bytes = 40;
  unit.TakeOut(4, 16);
  EXPECT_THAT(unit.shards, ElementsAre(2, 8));
  EXPECT_EQ(unit.bytes, 24u);
}

class PendingPullsTest : public ::testing::Test {
 protected:
  PendingPullsTest() : proto_(TestView()), view_(*View::Create(proto_)) {}
  // Shards whose values are four times their number.
  void Bring(uint64_t pull, std::vector<int32_t> shards) {
    for (const int32_t shard : shards) {
      const auto value = static_cast<float>(shard);
      pulls_.Bring(pull, shard,
                   {.version = 1,
                    .values = Floats({value, value, value, value}),
                    .slots = {},
                    .parked = {}},
                   &effects_);
    }
  }

  wire::View proto_;
  std::shared_ptr<const View> view_;
  PendingPulls pulls_;
  ClientEffects effects_;
};

TEST_F(PendingPullsTest, TellsOfEachTableAndOfTheEnd) {
  const uint64_t pull = pulls_.Add(view_, 5);
  EXPECT_EQ(pulls_.ClockOf(pull), 5);
  EXPECT_EQ(pulls_.ClockOf(pull + 1), std::nullopt);
  Bring(pull, {4, 5, 6, 0, 1});
  EXPECT_THAT(effects_.brought, IsEmpty());
  EXPECT_EQ(pulls_.BroughtBy(pull, TableId{1}), std::nullopt);
  Bring(pull, {7});
  ASSERT_EQ(effects_.brought.size(), 1u);
  EXPECT_EQ(effects_.brought[0].table, TableId{1});
  EXPECT_FALSE(pulls_.HasBrought(pull, TableId{0}));
  ASSERT_TRUE(pulls_.HasBrought(pull, TableId{1}));
  EXPECT_EQ(pulls_.BroughtBy(pull, TableId{1})->pieces.size(), 4u);
  Bring(pull, {2, 3});
  EXPECT_EQ(effects_.brought.size(), 2u);
  ASSERT_EQ(effects_.pulled.size(), 1u);
  EXPECT_EQ(effects_.pulled[0].pull_id, pull);
  EXPECT_THAT(FloatsIn(effects_.pulled[0].shards[6].values),
              ElementsAre(6, 6, 6, 6));
  EXPECT_EQ(pulls_.size(), 0u);
  EXPECT_FALSE(pulls_.HasBrought(pull, TableId{1}));
}

TEST_F(PendingPullsTest,
       AShardThatIsSplitIsSplitIfItHasComeAndElseBothPartsLack) {
  const uint64_t pull = pulls_.Add(view_);
  Bring(pull, {1});
  for (const int32_t shard : {1, 2}) {
    wire::Split& split = *proto_.add_split();
    split.set_shard(shard);
    split.set_at(4 * shard + 1);
    split.set_since(3);
    proto_.add_owner_server(0);
    proto_.add_owner_thread(shard % 2);
  }
  proto_.set_number(3);
  view_ = *View::Create(proto_);
  pulls_.Split(SplitOf(1, 8, view_));
  pulls_.Split(SplitOf(2, 9, view_));
  Bring(pull, {0, 3, 4, 5, 6, 7, 2});
  EXPECT_FALSE(pulls_.HasBrought(pull, TableId{0})) << "shard 9 is missing";
  Bring(pull, {9});
  ASSERT_EQ(effects_.pulled.size(), 1u);
  const PullResult& result = effects_.pulled[0];
  EXPECT_EQ(result.view, view_);
  EXPECT_THAT(FloatsIn(result.shards[1].values), ElementsAre(1));
  EXPECT_THAT(FloatsIn(result.shards[8].values), ElementsAre(1, 1, 1));
  EXPECT_EQ(result.shards[8].version, 1u);
}

TEST_F(PendingPullsTest, WhatIsForgottenIsGoneAndItsIdIsNotUsedAgain) {
  const uint64_t first = pulls_.Add(view_);
  pulls_.Forget(first);
  pulls_.Forget(first);
  EXPECT_EQ(pulls_.size(), 0u);
  EXPECT_NE(pulls_.Add(view_), first);
}

}  // namespace slackline::client_units_test
