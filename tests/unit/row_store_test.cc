// Goal: what a shard keeps is the business of its store alone. Rows by key, of
// which a shard has those that were pushed, are served, moved, copied, split,
// cut, written and read again like dense tables, and some of them are pulled.
// Method: two cores with a link by hand, and stores of another kind than the
// product has; SGD with learning rate 1, so that rows show what was applied,
// and Adam where slots have to come along. Random histories against a map.
#include "tests/support/row_store.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/compress/gradient_code.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::row_store_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kWidth = 2;
constexpr int64_t kKeys = 1000;  // Of a shard.
const Region kShard0 = {0, kKeys* kWidth};

// By key, of each row the first element that is there; of those that are
// pushed, the first of two, of which the second one is twice as large.
using Rows = std::map<int64_t, float>;

class RowStoreTest : public ShardMoveTest {
 protected:
  RowStoreTest() {
    store_ = std::make_shared<RowKind>(kWidth);
    shard_elements_ = kKeys * kWidth;
    feed_.part_bytes = 20;  // No multiple of a row.
    feed_.window_bytes = 60;
  }

  ShardRange RangeOf(int32_t shard) const {
    return (*View::Create(view_))->shard(ShardId{shard});
  }
  static Payload BlockOf(const Rows& rows, const Region& region) {
    RowBlock block{.region = region, .width = kWidth};
    for (const auto& [key, value] : rows) {
      const std::vector<float> row = {value, 2 * value};
      const Region whole(key * kWidth, (key + 1) * kWidth);
      Region part = block.Row(key);
      if (part.empty()) part = whole;  // It is not of the region.
      const auto begin = row.begin() + (part.begin() - whole.begin());
      block.rows[key] = {begin, begin + part.size()};
    }
    return block.Encode();
  }
  Message PushRows(Clock clock, uint64_t seq, const Rows& rows,
                   int32_t shard = 0) {
    Message message = PushOf(clock, seq, 0, shard);
    const ShardRange range = RangeOf(shard);
    message.payloads = {BlockOf(rows, range.region)};
    return message;
  }
  // The first push of a worker that knows nothing of rows.
  Message PushFloats(const std::vector<float>& floats, int32_t shard = 0) {
    Message message = PushOf(0, 1, 0, shard);
    message.payloads = {
        Payload::Copy(floats.data(), floats.size() * sizeof(float))};
    return message;
  }
  static Rows RowsIn(const Payload& payload, const ShardRange& range) {
    Rows rows;
    const absl::StatusOr<RowBlock> block =
        RowBlock::Decode(payload, range.region, kWidth);
    EXPECT_TRUE(block.ok()) << block.status();
    if (!block.ok()) return rows;
    for (const auto& [key, row] : block->rows) rows[key] = row[0];
    return rows;
  }
  Rows Now(int server, int32_t shard = 0) {
    const Shard& at = State(server, shard).shard();
    return RowsIn(at.values(), at.range());
  }
  // Of these rows; without any, of all.
  Message PullRows(Clock clock, const std::vector<int64_t>& keys,
                   int32_t shard = 0) {
    Message message = PullOf(clock, 1, shard);
    for (const int64_t key : keys)
      NameRow(key, message.header.mutable_pull_request()->mutable_pull(0));
    return message;
  }
  // What a pull of this step is answered.
  Rows Pulled(int server, Clock clock, int32_t shard = 0,
              const std::vector<int64_t>& keys = {}) {
    replies_.clear();
    Send(server, Worker(0), PullRows(clock, keys, shard));
    Deliver();
    const std::vector<Outgoing> replies = std::exchange(replies_, {});
    EXPECT_THAT(replies, SizeIs(1));
    if (replies.size() != 1 || replies[0].message.payloads.empty()) return {};
    return RowsIn(replies[0].message.payloads[0], RangeOf(shard));
  }
};

// ---- Service ----------------------------------------------------------------

TEST_F(RowStoreTest, AShardHasTheRowsThatWerePushed) {
  Start("asp", 1);
  EXPECT_THAT(Pulled(0, 0), IsEmpty());
  Send(0, Worker(0), PushRows(0, 1, {{3, 1}, {900, 2}}));
  EXPECT_THAT(Pulled(0, 1), ElementsAre(Pair(3, -1), Pair(900, -2)));
  Send(0, Worker(0), PushRows(1, 2, {}));
  Send(0, Worker(0), PushRows(2, 3, {{3, 1}, {7, 5}}));
  EXPECT_THAT(Pulled(0, 3),
              ElementsAre(Pair(3, -2), Pair(7, -5), Pair(900, -2)));
  EXPECT_EQ(State(0, 0).shard().version(), 3u);
  EXPECT_EQ(BytesOf(State(0, 0).shard().values()),
            BytesOf(BlockOf({{3, -2}, {7, -5}, {900, -2}}, kShard0)));
}

TEST_F(RowStoreTest, AClockIsTheMeanOfItsGradientsRowByRow) {
  Start("bsp", 2);
  Send(0, Worker(0), PushRows(0, 1, {{1, 8}, {2, 4}}));
  EXPECT_THAT(Now(0), IsEmpty());
  Send(0, Worker(1), PushRows(0, 1, {{2, 4}, {5, 2}}));
  EXPECT_THAT(Now(0), ElementsAre(Pair(1, -4), Pair(2, -4), Pair(5, -1)));
}

TEST_F(RowStoreTest, WhatIsNoGradientOfTheShardChangesNothing) {
  Start("asp", 1);
  const auto refused = [&](const Payload& frame) {
    Message message = PushOf(0, 1, 0);
    message.payloads = {frame};
    Send(0, Worker(0), message);
    EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 REJECTED"));
  };
  refused(BlockOf({{kKeys, 1}}, kShard0));
  refused(BlockOf({{-1, 1}}, kShard0));
  refused(BlockOf({{1, 1}}, {0, kKeys}));
  refused(BlockOf({{kKeys, 1}}, {kShard0.end(), 2 * kShard0.end()}));
  const Payload good = BlockOf({{1, 1}, {2, 2}}, kShard0);
  refused(good.Slice(0, good.size() - sizeof(float)));
  refused(good.Slice(0, 8));
  Send(0, Worker(0), PushRows(0, 1, {{1, kNan}}));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_EQ(State(0, 0).shard().version(), 0u) << "it is discarded";
  EXPECT_THAT(Now(0), IsEmpty());
}

// ---- Pulls of some rows -----------------------------------------------------

TEST_F(RowStoreTest, APullThatNamesRowsGetsThese) {
  Start("asp", 1);
  Send(0, Worker(0), PushRows(0, 1, {{3, 1}, {7, 2}, {900, 3}}));
  EXPECT_THAT(Pulled(0, 1, 0, {7, 8, 900}),
              ElementsAre(Pair(7, -2), Pair(900, -3)));
  EXPECT_THAT(Pulled(0, 1), SizeIs(3));
}

// Two pulls of one version are told different rows, also where what a pull is
// told is rounded.
TEST_F(RowStoreTest, APullIsToldItsOwnRowsRounded) {
  store_ = std::make_shared<RowKind>(kWidth, RowFrames::kFloats);
  shard_elements_ = 2 * kWidth;
  pulled_as_ = wire::Encoding::BFLOAT16;
  Start("asp", 1);
  Send(0, Worker(0), PushFloats({1, 2, 3, 4}));
  const auto told = [&](const std::vector<int64_t>& keys) {
    replies_.clear();
    Send(0, Worker(0), PullRows(1, keys));
    EXPECT_THAT(replies_, SizeIs(1));
    const Payload values = ExpandParameters(
        wire::Encoding::BFLOAT16, replies_.at(0).message.payloads.at(0));
    const auto* const first = reinterpret_cast<const float*>(values.data());
    return std::vector<float>(first, first + values.size() / sizeof(float));
  };
  EXPECT_THAT(told({0}), ElementsAre(-1, -2, 0, 0));
  EXPECT_THAT(told({1}), ElementsAre(0, 0, -3, -4));
  EXPECT_THAT(told({}), ElementsAre(-1, -2, -3, -4));
}

TEST_F(RowStoreTest, AWorkerMayKnowNothingOfRows) {
  store_ = std::make_shared<RowKind>(kWidth, RowFrames::kFloats);
  shard_elements_ = 2 * kWidth;
  Start("bsp", 2);
  Send(0, Worker(0), PushFloats({2, 0, 0, 0}));
  EXPECT_THAT(State(0, 0).held(), SizeIs(1));
  Split(0, 1);  // Within the row.
  Show();
  Send(0, Worker(1), PushFloats({4}));
  Send(0, Worker(1), PushFloats({0, 0, 0}, 3));
  EXPECT_THAT(Now(0, 0), ElementsAre(Pair(0, -3)));
  EXPECT_THAT(Now(0, 3), IsEmpty()) << "nobody has pushed anything of it";
  EXPECT_EQ(State(0, 3).shard().version(), 1u);
}

TEST_F(RowStoreTest, APullThatIsParkedKnowsWhichRowsItNames) {
  Start("bsp", 2);
  Send(0, Worker(0), PushRows(0, 1, {{3, 2}, {7, 2}}));
  replies_.clear();
  Send(0, Worker(0), PullRows(1, {7, 9}));
  EXPECT_THAT(replies_, IsEmpty());
  Send(0, Worker(1), PushRows(0, 1, {{3, 2}, {9, 2}}));
  ASSERT_THAT(replies_, SizeIs(2)) << "of the push and of the pull";
  EXPECT_THAT(RowsIn(replies_.back().message.payloads.at(0), RangeOf(0)),
              ElementsAre(Pair(7, -1), Pair(9, -1)));
}

TEST_F(RowStoreTest, APullThatWaitsForTheShardKnowsWhichRowsItNames) {
  Start("asp", 1);
  Send(0, Worker(0), PushRows(0, 1, {{3, 1}, {7, 2}}));
  Move(0, 1);
  Show();
  Deliver(1);
  replies_.clear();
  Send(1, Worker(0), PullRows(1, {7}));
  EXPECT_EQ(cores_[1]->waiting_count(), 1u);
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_THAT(RowsIn(replies_[0].message.payloads.at(0), RangeOf(0)),
              ElementsAre(Pair(7, -2)));
}

// ---- Moves and copies -------------------------------------------------------

TEST_F(RowStoreTest, AShardMovesWithItsRowsItsSlotsAndWhatIsHeld) {
  Start("bsp", 2, /*adam=*/true);
  for (const int rank : {0, 1}) {
    Send(0, Worker(rank), PushRows(0, 1, {{rank, 1}, {40, 2}, {999, 3}}));
  }
  Send(0, Worker(0), PushRows(1, 2, {{40, 1}, {500, 1}}));
  const std::vector<std::string> before = Portrait(State(0, 0));
  MoveNow(0, 1);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_EQ(Portrait(State(1, 0)), before);
  Send(1, Worker(1), PushRows(1, 2, {{41, 1}}));
  EXPECT_EQ(State(1, 0).shard().version(), 2u);
  EXPECT_THAT(State(1, 0).shard().slots(), SizeIs(2));
  EXPECT_THAT(Pulled(1, 2), SizeIs(6));
}

TEST_F(RowStoreTest, AShardIsServedWhileItMoves) {
  Start("asp", 1);
  Send(0, Worker(0), PushRows(0, 1, {{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
  Move(0, 1);
  Show();
  Deliver(2);
  Send(0, Worker(0), PushRows(1, 2, {{3, 1}, {8, 1}}));
  EXPECT_THAT(Now(0), SizeIs(5));
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_THAT(Now(1), ElementsAre(Pair(1, -1), Pair(2, -1), Pair(3, -2),
                                  Pair(4, -1), Pair(8, -1)));
}

TEST_F(RowStoreTest, AFollowerHasTheBitsAndTakesTheOwnersPlace) {
  followed_ = true;
  Start("bsp", 2, /*adam=*/true);
  Deliver();
  for (Clock clock = 0; clock < 3; ++clock) {
    const auto seq = static_cast<uint64_t>(clock) + 1;
    for (const int rank : {1, 0}) {
      Send(0, Worker(rank),
           PushRows(clock, seq, {{10 * clock, 0.1f}, {rank, 0.7f}, {77, 3}}));
    }
  }
  Send(0, Worker(1), PushRows(3, 4, {{77, 1}, {78, 1}}));
  Tick(absl::Seconds(1));
  Deliver();
  const ShardMachine* const copy = cores_[1]->CopyOf(ShardId{0});
  ASSERT_NE(copy, nullptr);
  const std::vector<std::string> bits = Portrait(State(0, 0));
  EXPECT_EQ(Portrait(*copy), bits);
  Promote(0);
  NextView();
  ShowTo(1);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Portrait(State(1, 0)), bits);
  Send(1, Worker(0), PushRows(3, 4, {{1, 1}}));
  EXPECT_EQ(State(1, 0).shard().version(), 4u);
}

TEST_F(RowStoreTest, ACopyOfARunningShardHasTheBits) {
  Start("asp", 1, /*adam=*/true);
  for (Clock clock = 0; clock < 20; ++clock) {
    Send(0, Worker(0),
         PushRows(clock, static_cast<uint64_t>(clock) + 1, {{7 * clock, 1}}));
  }
  Follow(0);
  Show();
  Deliver(3);
  Send(0, Worker(0), PushRows(20, 21, {{7, 1}, {999, 1}}));
  Deliver();
  ASSERT_NE(cores_[1]->CopyOf(ShardId{0}), nullptr);
  EXPECT_EQ(Portrait(*cores_[1]->CopyOf(ShardId{0})), Portrait(State(0, 0)));
}

// ---- Splits and cuts --------------------------------------------------------

TEST_F(RowStoreTest, ASplitDividesRowsAndWhatIsHeldByKey) {
  Start("bsp", 2);
  for (const int rank : {0, 1})
    Send(0, Worker(rank), PushRows(0, 1, {{100, 2}, {600, 4}}));
  Send(0, Worker(0), PushRows(1, 2, {{100, 2}, {499, 6}, {500, 8}}));
  Split(0, 500 * kWidth);
  Show();
  EXPECT_THAT(Now(0, 0), ElementsAre(Pair(100, -2)));
  EXPECT_THAT(Now(0, 3), ElementsAre(Pair(600, -4)));
  Send(0, Worker(1), PushRows(1, 2, {{100, 2}}, 0));
  Send(0, Worker(1), PushRows(1, 2, {{900, 2}}, 3));
  EXPECT_THAT(Pulled(0, 2, 0), ElementsAre(Pair(100, -4), Pair(499, -3)));
  EXPECT_THAT(Pulled(0, 2, 3),
              ElementsAre(Pair(500, -4), Pair(600, -4), Pair(900, -1)));
}

TEST_F(RowStoreTest, ASplitMayGoThroughARow) {
  Start("bsp", 2, /*adam=*/true);
  for (const int rank : {0, 1})
    Send(0, Worker(rank), PushRows(0, 1, {{499, 1}, {500, 2}, {501, 3}}));
  Send(0, Worker(0), PushRows(1, 2, {{500, 2}}));
  const RowBlock before =
      *RowBlock::Decode(State(0, 0).shard().values(), kShard0, kWidth);
  Split(0, 500 * kWidth + 1);
  Show();
  RowBlock after{.region = kShard0, .width = kWidth};
  for (const int32_t shard : {0, 3}) {
    const Shard& part = State(0, shard).shard();
    after.Take(*RowBlock::Decode(part.values(), part.range().region, kWidth));
    EXPECT_THAT(Now(0, shard), SizeIs(2));
  }
  EXPECT_EQ(BytesOf(after.Encode()), BytesOf(before.Encode()));
  for (const int32_t shard : {0, 3})
    Send(0, Worker(1), PushRows(1, 2, {{500, 2}}, shard));
  EXPECT_EQ(State(0, 3).shard().version(), 2u);
}

TEST_F(RowStoreTest, AGradientOfAPartThatIsNotThereYetTriesAgain) {
  Start("asp", 1);
  Split(0, 500 * kWidth);
  NextView();
  Send(0, Worker(0), PushRows(0, 1, {{1, 1}}));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 RETRY"));
  ShowTo(0);
  Send(0, Worker(0), PushRows(0, 1, {{1, 1}}));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

TEST_F(RowStoreTest, AFollowersCopyIsSplit) {
  followed_ = true;
  Start("asp", 1, /*adam=*/true);
  Deliver();
  Send(0, Worker(0), PushRows(0, 1, {{100, 2}, {600, 4}}));
  Split(0, 500 * kWidth);
  Show();
  Deliver();
  for (const int32_t shard : {0, 3}) {
    ASSERT_NE(cores_[1]->CopyOf(ShardId{shard}), nullptr);
    EXPECT_EQ(Portrait(*cores_[1]->CopyOf(ShardId{shard})),
              Portrait(State(0, shard)));
  }
}

class States final : public StoredShards {
 public:
  explicit States(std::vector<ShardState> states)
      : states_(std::move(states)) {}
  absl::StatusOr<ShardState> Read(const std::string& /*table*/,
                                  const Region& region,
                                  const TensorForm& /*form*/) const override {
    for (const ShardState& state : states_) {
      if (state.region == region) return state;
    }
    return absl::NotFoundError("no such part");
  }

 private:
  const std::vector<ShardState> states_;
};

TEST_F(RowStoreTest, ACheckpointHasTheRowsBeforeItsCutAndAJobGoesOnFromIt) {
  Start("asp", 2, /*adam=*/true);
  view_.mutable_cut()->set_number(1);
  view_.mutable_cut()->set_clock(1);
  Show();
  const auto push = [&](int rank, Clock clock, const Rows& rows) {
    const auto seq = static_cast<uint64_t>(clock) + 1;
    Send(0, Worker(rank), PushRows(clock, seq, rows));
    Send(0, Worker(rank), PushRows(clock, seq, {{kKeys + 5, 1}}, 1));
  };
  push(0, 0, {{1, 1}, {2, 1}});
  push(0, 1, {{3, 1}});  // After the cut.
  EXPECT_FALSE(cut_[0].has_value());
  push(1, 0, {{2, 1}, {4, 1}});
  ASSERT_TRUE(cut_[0].has_value());
  EXPECT_EQ(cut_[0]->error, "");
  ASSERT_THAT(cut_[0]->shards, SizeIs(2));
  const auto keys_of = [&](const Payload& payload) {
    const RowBlock block = *RowBlock::Decode(payload, kShard0, kWidth);
    std::vector<int64_t> keys;
    for (const auto& [key, row] : block.rows) keys.push_back(key);
    return keys;
  };
  EXPECT_THAT(keys_of(cut_[0]->shards[0].values), ElementsAre(1, 2, 4));
  EXPECT_THAT(keys_of(State(0, 0).shard().values()), ElementsAre(1, 2, 3, 4));

  for (const bool with_slots : {true, false}) {
    std::vector<ShardState> states = cut_[0]->shards;
    for (ShardState& state : states) {
      if (!with_slots) state.slots.clear();
    }
    wire::View view = view_;
    view.clear_cut();
    view.mutable_table(0)->mutable_initializer()->set_kind(
        wire::Initializer::OF_CHECKPOINT);
    ShardCore resumed({.self = {0, 0},
                       .store_of = [this](const auto&) { return store_; },
                       .stored = std::make_shared<States>(states)},
                      config::LearningRateSchedule());
    ShardCore::Effects effects;
    resumed.OnView(*View::Create(view), &effects);
    ASSERT_TRUE(effects.failure.ok()) << effects.failure;
    const Shard& shard = resumed.MachineOf(ShardId{0})->shard();
    EXPECT_EQ(BytesOf(shard.values()), BytesOf(cut_[0]->shards[0].values));
    ASSERT_THAT(shard.slots(), SizeIs(2));
    EXPECT_THAT(keys_of(shard.slots()[1]), ElementsAre(1, 2, 4));
    EXPECT_EQ(BytesOf(shard.slots()[1]) == BytesOf(cut_[0]->shards[0].slots[1]),
              with_slots);
    resumed.OnMessage(Worker(0), PushRows(0, 1, {{9, 1}}), &effects);
    EXPECT_THAT(keys_of(resumed.MachineOf(ShardId{0})->shard().values()),
                ElementsAre(1, 2, 4, 9));
  }
}

// Shards of other sizes than those that were written are put together of rows.
TEST_F(RowStoreTest, AJobGoesOnFromFilesWithItsShardsSplitOtherwise) {
  Start("asp", 1, /*adam=*/true);
  const Rows pushed[] = {{{1, 1}, {748, 2}, {999, 3}}, {{0, 4}, {500, 5}}, {}};
  for (int32_t shard = 0; shard < 3; ++shard) {
    Rows rows;
    for (const auto& [key, value] : pushed[shard])
      rows[shard * kKeys + key] = value;
    Send(shard / 2, Worker(0), PushRows(0, 1, rows, shard));
  }
  view_.mutable_cut()->set_number(1);
  view_.mutable_cut()->set_clock(1);
  Show();
  const TempFolder folder;
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_steps_per_epoch(1);
  checkpoint::Table& table = *manifest.add_table();
  table.set_name("weight");
  table.add_shape(3 * kKeys * kWidth);
  *table.mutable_optimizer() = Adam();
  RowBlock values{.region = {0, 3 * kKeys * kWidth}, .width = kWidth};
  RowBlock slot = values;
  for (const int server : {0, 1}) {
    ASSERT_TRUE(cut_[server].has_value());
    for (const ShardState& state : cut_[server]->shards) {
      values.Take(*RowBlock::Decode(state.values, state.region, kWidth));
      slot.Take(*RowBlock::Decode(state.slots[1], state.region, kWidth));
    }
    *manifest.add_part() = *WritePart(
        folder.path(), absl::StrCat("server-", server), cut_[server]->shards);
  }
  EXPECT_THAT(values.rows, SizeIs(5));
  ASSERT_TRUE(WriteManifest(folder.path(), manifest).ok());
  std::shared_ptr<const StoredCheckpoint> stored =
      *StoredCheckpoint::Open(folder.path());
  EXPECT_TRUE(
      absl::IsDataLoss(stored->Read("weight", {0, 10}, FloatsForm()).status()));

  wire::View view = view_;
  view.clear_cut();
  view.mutable_table(0)->mutable_initializer()->set_kind(
      wire::Initializer::OF_CHECKPOINT);
  view.mutable_table(0)->set_shard_elements(1497);  // 748 rows and a half.
  view.clear_owner_server();
  view.clear_owner_thread();
  for (int shard = 0; shard < 5; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(0);
  }
  ShardCore resumed({.self = {0, 0},
                     .store_of = [this](const auto&) { return store_; },
                     .stored = std::move(stored)},
                    config::LearningRateSchedule());
  ShardCore::Effects effects;
  resumed.OnView(*View::Create(view), &effects);
  ASSERT_TRUE(effects.failure.ok()) << effects.failure;
  for (int32_t id = 0; id < 5; ++id) {
    const Shard& shard = resumed.MachineOf(ShardId{id})->shard();
    const Region& region = shard.range().region;
    EXPECT_EQ(BytesOf(shard.values()), BytesOf(values.PartOf(region).Encode()));
    EXPECT_EQ(BytesOf(shard.slots()[1]), BytesOf(slot.PartOf(region).Encode()));
  }
}

// ---- Hostile copies ---------------------------------------------------------

TEST_F(RowStoreTest, ACopyTakesNoSnapshotWhoseRowsAreNotTheShards) {
  Start("asp", 1);
  Send(0, Worker(0), PushRows(0, 1, {{1, 1}, {2, 1}}));
  Follow(0);
  Show();
  ASSERT_FALSE(wire_.empty());
  const Message good = wire_.front().message;
  wire_.clear();
  const auto sizes = [](Message& message) {
    return message.header.mutable_hand_over()
        ->mutable_record(0)
        ->mutable_snapshot()
        ->mutable_tensor_bytes();
  };
  const auto taken = [&](const Message& message) {
    Send(1, Thread(0), message);
    const uint64_t have =
        wire_.back().message.header.hand_over_reply().declined()
            ? 0
            : wire_.back().message.header.hand_over_reply().have();
    wire_.clear();
    return have;
  };
  Message bad = good;
  ASSERT_THAT(*sizes(bad), SizeIs(1));
  sizes(bad)->Set(0, uint64_t{1} << 40);
  EXPECT_EQ(taken(bad), 0u);
  bad = good;
  sizes(bad)->Add(24);
  EXPECT_EQ(taken(bad), 0u);
  bad = good;
  sizes(bad)->Clear();
  EXPECT_EQ(taken(bad), 0u) << "a float for each key";
  EXPECT_GT(taken(good), 0u);
}

// ---- Against a map ----------------------------------------------------------

class RowStoreHistories : public RowStoreTest,
                          public ::testing::WithParamInterface<int> {};

TEST_P(RowStoreHistories, NoRowIsLostOrCountsTwice) {
  SCOPED_TRACE(GetParam());
  Rng rng(static_cast<uint64_t>(GetParam()));
  Start("asp", 1);
  std::map<int64_t, float> twin;  // By element.
  std::map<int32_t, Clock> clocks;
  const auto push = [&](int32_t shard) {
    const ShardRange range = RangeOf(shard);
    Rows rows;
    for (int64_t i = rng.Between(0, 4); i > 0; --i) {
      const int64_t key =
          rng.Between(range.region.begin(), range.region.end() - 1) / kWidth;
      rows[key] = static_cast<float>(rng.Between(1, 9));
    }
    Clock& clock = clocks[shard];
    Send(view_.owner_server(shard), Worker(0),
         PushRows(clock, static_cast<uint64_t>(clock) + 1, rows, shard));
    ++clock;
    for (const auto& [key, value] : rows) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const int64_t element = key * kWidth + i;
        if (range.region.Overlaps({element, element + 1}))
          twin[element] -= static_cast<float>(i + 1) * value;
      }
    }
  };
  for (int round = 0; round < 60; ++round) {
    const auto shard = static_cast<int32_t>(
        rng.Below(static_cast<uint64_t>(view_.owner_server_size())));
    const ShardRange range = RangeOf(shard);
    switch (rng.Below(6)) {
      case 0: {
        const int target = 1 - view_.owner_server(shard);
        Move(shard, target);
        Show();
        Deliver(static_cast<int>(rng.Below(4)));
        push(shard);
        Deliver();
        Commit(shard);
        Show();
        ASSERT_TRUE(cores_[target]->Owns(ShardId{shard}));
        break;
      }
      case 1: {
        if (range.region.size() < 2) break;
        Split(shard,
              rng.Between(range.region.begin() + 1, range.region.end() - 1));
        clocks[view_.owner_server_size() - 1] = clocks[shard];
        Show();
        break;
      }
      default:
        push(shard);
    }
  }
  std::map<int64_t, float> all;
  for (int32_t id = 0; id < view_.owner_server_size(); ++id) {
    const Shard& shard = State(view_.owner_server(id), id).shard();
    const RowBlock block =
        *RowBlock::Decode(shard.values(), shard.range().region, kWidth);
    for (const auto& [key, row] : block.rows) {
      int64_t element = block.Row(key).begin();
      for (const float value : row)
        EXPECT_TRUE(all.emplace(element++, value).second) << "in two shards";
    }
  }
  EXPECT_EQ(all, twin);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RowStoreHistories, ::testing::Range(0, 50));

}  // namespace slackline::row_store_test
