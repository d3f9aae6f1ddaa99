// Goal: the parts of a shard that is split are what the whole would have been,
// and each push counts once, be it of the whole or of its parts.
// Method: two cores with a link by hand; SGD with learning rate 1 from zeros,
// so that values show what was applied, or Adam against a twin that is never
// split.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "common/view/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::shard_split_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(ShardMoveTest, APushOfTheWholeIsRefusedAndItsPartsCountOnce) {
  Start("asp", 1);
  const Message whole = PushOf(0, 1, 5);
  Split(0, 1);
  Show();
  Send(0, Worker(0), whole);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED"));
  for (int i = 0; i < 2; ++i) {
    Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
    Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
    EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                       "rank 0: push 3 OK acked 1"));
  }
  EXPECT_EQ(Value(0, 0), -5);
  EXPECT_EQ(Value(0, 3), -5);
  EXPECT_EQ(cores_[0]->Stats().duplicates(), 2u);
}

TEST_F(ShardMoveTest, PartsOfAPushThatCountedAsAWholeAreDuplicates) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Show();
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 3 OK acked 1"));
  EXPECT_EQ(Value(0, 3), -5);
}

TEST_F(ShardMoveTest, APushOfAPartWaitsForTheViewThatMakesIt) {
  Start("asp", 1);
  Split(0, 1);
  NextView();
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
  Send(0, Worker(0), PullOf(0, 7, 3));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: push 0 RETRY", "rank 0: push 3 RETRY",
                          "rank 0: pull 7 of 3 RETRY"));
  EXPECT_EQ(cores_[0]->Stats().malformed(), 0u);
  ShowTo(0);
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, APullOfTheWholeIsToBeAskedAgainForTheParts) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(0), PullOf(1, 7));  // Parked.
  const Message late = PullOf(0, 8);
  Replies();
  Split(0, 1);
  Show();
  Send(0, Worker(0), late);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED",
                                     "rank 0: pull 8 of 0 MOVED"));
}

// The client tells by the number whether an answer is of the whole.
TEST_F(ShardMoveTest, AnAnswerOfTheWholeGoesUnderTheNumberOfItsView) {
  Start("asp", 1);
  const uint64_t number = view_.number();
  ShardCore::Effects effects;
  cores_[0]->OnMessage(Worker(0), PullOf(0, 7), &effects);
  Split(0, 1);
  NextView();
  cores_[0]->OnView(*View::Create(view_), &effects);
  cores_[0]->Flush(&effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].message.payloads.at(0).size(), kElements * 4u);
  EXPECT_EQ(effects.sends[0].message.header.view_number(), number);
}

// Shard 1 gets what shard 0 gets, and is never split.
TEST_F(ShardMoveTest, ASplitShardHasTheBitsOfTheWhole) {
  for (const char* mode : {"asp", "bsp"}) {
    view_ = wire::View();
    Start(mode, 2, /*adam=*/true);
    Rng rng(7);
    const std::vector<std::pair<int32_t, int>> whole = {{0, kElements}};
    const std::vector<std::pair<int32_t, int>> parts = {{0, 1}, {3, 3}};
    std::vector<uint64_t> seq = {1, 1};
    const auto push = [&](int rank, const auto& shards) {
      std::vector<float> gradient(kElements);
      for (float& value : gradient) value = static_cast<float>(rng.Normal());
      const Clock clock = static_cast<Clock>(seq[rank]) - 1;
      Message twin = PushOf(clock, seq[rank], 0, 1);
      twin.payloads[0] = Payload::Copy(gradient.data(), kElements * 4);
      Send(0, Worker(rank), twin);
      size_t offset = 0;
      for (const auto& [shard, elements] : shards) {
        Message message = PushOf(clock, seq[rank], 0, shard);
        message.payloads[0] = twin.payloads[0].Slice(offset, elements * 4);
        offset += elements * 4;
        Send(0, Worker(rank), message);
      }
      ++seq[rank];
    };
    for (int i = 0; i < 3; ++i) {
      push(0, whole);
      push(1, whole);
    }
    push(1, whole);  // In BSP it is held when the shard is split.
    Split(0, 1);
    Show();
    push(0, parts);
    for (int i = 0; i < 3; ++i) {
      push(0, parts);
      push(1, parts);
    }
    const ShardMachine& twin = State(0, 1);
    const ShardMachine& first = State(0, 0);
    const ShardMachine& rest = State(0, 3);
    EXPECT_EQ(first.shard().version(), twin.shard().version());
    EXPECT_EQ(rest.shard().version(), twin.shard().version());
    const auto together = [](const Payload& a, const Payload& b) {
      return std::string(reinterpret_cast<const char*>(a.data()), a.size()) +
             std::string(reinterpret_cast<const char*>(b.data()), b.size());
    };
    EXPECT_EQ(together(first.shard().values(), rest.shard().values()),
              together(twin.shard().values(), Payload()));
    for (size_t slot = 0; slot < twin.shard().slots().size(); ++slot) {
      EXPECT_EQ(
          together(first.shard().slots()[slot], rest.shard().slots()[slot]),
          together(twin.shard().slots()[slot], Payload()));
    }
    EXPECT_EQ(first.participants().MinClock(), twin.participants().MinClock());
    for (const std::string& line : Replies())
      EXPECT_THAT(line, HasSubstr(" OK ")) << line;
  }
}

TEST_F(ShardMoveTest, APartMovesInTheViewThatMakesIt) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Move(3, 1);
  Show();
  Deliver();
  Commit(3);
  Show();
  EXPECT_EQ(Value(0, 0), -5);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{3}));
  EXPECT_EQ(Value(1, 3), -5);
  EXPECT_EQ(State(1, 3).shard().range().region.begin(), 1);
  Replies();
  Send(1, Worker(0), PushOf(1, 2, 1, 3, 3));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 3 OK acked 2"));
}

TEST_F(ShardMoveTest, AShardMayBeSplitTwiceInOneView) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Split(3, 3);
  Show();
  const std::shared_ptr<const View> view = *View::Create(view_);
  for (const int32_t shard : {0, 3, 4}) {
    const ShardMachine& state = State(0, shard);
    const ShardRange& expected = view->shard(ShardId{shard});
    EXPECT_EQ(state.shard().range().shard, ShardId{shard});
    EXPECT_EQ(state.shard().range().region, expected.region);
    EXPECT_EQ(state.shard().values().size(), expected.region.DenseBytes());
    EXPECT_EQ(Value(0, shard), -5);
  }
}

TEST_F(ShardMoveTest, AShardThatHasMovedIsSplitByItsNewOwner) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  MoveNow(0, 1);
  Split(0, 1);
  Show();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{3}));
  EXPECT_FALSE(cores_[0]->Owns(ShardId{3}));
  EXPECT_EQ(Value(1, 3), -5);
}

}  // namespace slackline::shard_split_test
