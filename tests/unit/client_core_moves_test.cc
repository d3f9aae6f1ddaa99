// Goal: what a worker's client sends, and where to, while shards move and are
// split in two. Method: the shard threads are played by hand, on virtual time.
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/compress/gradient_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/unit/client_core_fixture.h"

namespace slackline::client_core_moves_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Moves ------------------------------------------------------------------

TEST_F(ClientMoveTest, AMovedShardsPushesFollowItInOrder) {
  options_.window_bytes = 2 * kShardBytes;  // The second clock is queued.
  Restart();
  for (const Clock clock : {0, 1}) {
    for (const int table : {0, 1}) PushNumbers(clock, table);
  }
  EXPECT_THAT(
      Sent(Moved(kThread0, 2, kElsewhere, 5)),
      ElementsAre("0.0: 4#1 [0, 1, 2, 3]",  // There is room for it.
                  "1.0: 2#1 [8, 9, 10, 11]", "1.0: 2#2 [108, 109, 110, 111]"));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(6))
      << "the others stay";
}

TEST_F(ClientMoveTest, WhatHasMovedIsNotRepeatedAtItsOldPlace) {
  PushNumbers(0, 0);
  Moved(kThread0, 2, kElsewhere, 5);
  EXPECT_THAT(
      Sent(Tick()),
      ElementsAre("0.0: 0#1 [0, 1, 2, 3]", "0.1: 1#1 [4, 5, 6, 7]",
                  "0.1: 3#1 [12, 13, 14, 15]", "1.0: 2#1 [8, 9, 10, 11]"));
}

// A server refuses a push of no shards, and for the client that is the end.
TEST_F(ClientMoveTest, AMessageOfWhichEverythingWentElsewhereIsNotRepeated) {
  for (const int table : {0, 1}) PushNumbers(0, table);
  for (const int32_t shard : {2, 6}) Moved(kThread0, shard, kElsewhere, 5);
  const ClientCore::Effects again = Tick();
  for (const ClientSend& send : again.sends)
    EXPECT_GT(send.message.header.push_request().push_size(), 0);
  Moved(kThread0, 0, kElsewhere, 5);
  Moved(kThread0, 4, kElsewhere, 5);
  AcknowledgeAll(Tick());
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(ClientMoveTest, AMessageNotYetClosedFollowsToo) {
  options_.message_bytes = 4096;
  Restart();
  EXPECT_THAT(PushNumbers(0, 0).sends, IsEmpty());
  Own(2, kElsewhere);
  EXPECT_THAT(Sent(Show()), ElementsAre("1.0: 2#1 [8, 9, 10, 11]"));
  EXPECT_THAT(ShardsOf(PushNumbers(0, 1)), ElementsAre(0, 4, 6, 1, 3, 5, 7));
}

TEST_F(ClientMoveTest, LaterPushesGoToTheNewOwner) {
  for (const int table : {0, 1}) PushNumbers(0, table);
  Moved(kThread0, 2, kElsewhere, 5);
  Reply(kElsewhere, 2, 1);
  const std::vector<std::string> sent = Sent(PushNumbers(1, 0));
  EXPECT_THAT(sent, testing::Contains("1.0: 2#2 [108, 109, 110, 111]"));
  EXPECT_THAT(sent, SizeIs(4));
}

TEST_F(ClientMoveTest, AMovedShardsPullFollowsIt) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(3, 2, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message moved = AnswerTo(sent.sends.at(0), {0, 4});
  Relocate(kElsewhere, 5,
           AddAnswer(sent.sends[0], 2, &moved).mutable_refusal());
  const ClientCore::Effects rerouted = Receive(kThread0, moved);
  ASSERT_THAT(Sent(rerouted), ElementsAre("1.0: 2?"));
  const wire::Pull& pull =
      rerouted.sends[0].message.header.pull_request().pull(0);
  EXPECT_EQ(pull.step().clock(), 3);
  EXPECT_EQ(pull.step().own_clock(), 2);
  EXPECT_THAT(Receive(kElsewhere, AnswerTo(rerouted.sends[0], {2})).pulled,
              IsEmpty());
  EXPECT_THAT(
      Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7})).pulled,
      IsEmpty());
  EXPECT_THAT(Receive(kThread0, AnswerTo(sent.sends[0], {6})).pulled,
              SizeIs(1));
  EXPECT_EQ(client_->bytes_pulled(), kShards * kShardBytes);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(ClientMoveTest, ALateAnswerOfTheOldOwnerIsNotTakenTwice) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Own(2, kElsewhere);
  const ClientCore::Effects rerouted = Show();
  ASSERT_THAT(Sent(rerouted), ElementsAre("1.0: 2?"));
  EXPECT_THAT(
      Receive(kThread0, AnswerTo(sent.sends.at(0), {0, 2, 4, 6}, 8)).pulled,
      IsEmpty());
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  const ClientCore::Effects done =
      Receive(kElsewhere, AnswerTo(rerouted.sends[0], {2}, 9));
  ASSERT_THAT(done.pulled, SizeIs(1));
  EXPECT_EQ(done.pulled[0].shards.at(2).version, 9u);
}

TEST_F(ClientMoveTest, APullThatHasMovedGoesBeforeThoseThatWait) {
  options_.window_bytes = kShardBytes;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  ASSERT_THAT(Sent(sent), ElementsAre("0.0: 0?", "0.1: 1?"));
  Message moved;
  Relocate(kThread1, 5, AddAnswer(sent.sends[0], 0, &moved).mutable_refusal());
  EXPECT_THAT(Sent(Receive(kThread0, moved)), ElementsAre("0.0: 2?"));
  EXPECT_THAT(Sent(Receive(kThread1, AnswerTo(sent.sends[1], {1}))),
              ElementsAre("0.1: 0?"));
}

TEST_F(ClientMoveTest, ANewerRelocationWinsAndAnOlderOneIsIgnored) {
  PushNumbers(0, 0);
  Reply(kThread0, 0, 1);
  EXPECT_THAT(Moved(kThread0, 2, kElsewhere, 2).sends, IsEmpty())
      << "no newer than our view";
  EXPECT_THAT(Sent(Moved(kThread0, 2, kElsewhere, 5)), SizeIs(1));
  EXPECT_THAT(Moved(kThread0, 2, kThread1, 4).sends, IsEmpty());
  EXPECT_THAT(Moved(kThread0, 2, kThread1, 5).sends, IsEmpty());
  EXPECT_THAT(Sent(Moved(kElsewhere, 2, kThread1, 6)),
              ElementsAre("0.1: 2#1 [8, 9, 10, 11]"));
}

TEST_F(ClientMoveTest, ARelocationToAnUnknownServerWaitsForItsView) {
  PushNumbers(0, 0);
  Reply(kThread0, 0, 1);
  EXPECT_THAT(Moved(kThread0, 2, {2, 0}, 3).sends, IsEmpty());
  EXPECT_THAT(Moved(kThread0, 2, {1, 1}, 3).sends, IsEmpty())
      << "no such thread";
  EXPECT_THAT(Sent(Tick()), ElementsAre("0.0: 2#1 [8, 9, 10, 11]"));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2)) << "asks there again, soon";
  wire::ServerMember& server = *view_.add_server();
  server.set_index(2);
  server.add_thread();
  Move(2, {2, 0});
  EXPECT_THAT(Show().sends, IsEmpty()) << "the source is still the owner";
  EXPECT_THAT(Sent(Moved(kThread0, 2, {2, 0}, 3)),
              ElementsAre("2.0: 2#1 [8, 9, 10, 11]"));
}

TEST_F(ClientMoveTest, RelocationsThatMakeNoSenseAreIgnored) {
  PushNumbers(0, 0);
  Reply(kThread0, 0, 1);
  for (const int32_t shard : {-1, kShards}) {
    Message message;
    wire::PushAnswer& answer =
        *message.header.mutable_push_reply()->add_answer();
    answer.set_shard(shard);
    Relocate(kElsewhere, 9, answer.mutable_refusal());
    EXPECT_THAT(Receive(kThread0, message).sends, IsEmpty());
  }
  EXPECT_THAT(Moved(kThread0, 2, {1, -1}, 9).sends, IsEmpty());
  EXPECT_THAT(Moved(kThread0, 2, {-1, 0}, 9).sends, IsEmpty());
}

TEST_F(ClientMoveTest, MovedWithoutARelocationIsAskedAgainSoon) {
  PushNumbers(0, 0);
  Reply(kThread0, 0, 1);
  EXPECT_THAT(Reply(kThread0, 2, 0, Outcome::kMoved).sends, IsEmpty());
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(2));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2));
}

TEST_F(ClientMoveTest, AViewThatStillListsTheMoveDoesNotUndoIt) {
  PushNumbers(0, 0);
  Move(2, kElsewhere);
  Show();
  EXPECT_THAT(Sent(Moved(kThread0, 2, kElsewhere, 3)), SizeIs(1));
  EXPECT_THAT(Show().sends, IsEmpty()) << "something else has changed";
  view_.clear_move();
  Own(2, kElsewhere);
  EXPECT_THAT(Show().sends, IsEmpty()) << "done, as we know";
  EXPECT_THAT(Sent(Tick()), testing::Contains("1.0: 2#1 [8, 9, 10, 11]"));
}

TEST_F(ClientMoveTest, AViewWithANewOwnerReroutes) {
  for (const int table : {0, 1}) PushNumbers(0, table);
  Own(2, kElsewhere);
  Own(3, kElsewhere);
  EXPECT_THAT(Sent(Show()), ElementsAre("1.0: 2#1 [8, 9, 10, 11]",
                                        "1.0: 3#1 [12, 13, 14, 15]"));
}

TEST_F(ClientMoveTest, AViewThatGivesTheMoveUpTakesEverythingBack) {
  PushNumbers(0, 0);
  Move(2, kElsewhere);
  Show();
  Moved(kThread0, 2, kElsewhere, 3);
  view_.clear_move();
  EXPECT_THAT(Sent(Show()), ElementsAre("0.0: 2#1 [8, 9, 10, 11]"));
}

TEST_F(ClientMoveTest, WhatHasMovedCountsOnceAsPushedAndIsAllAcknowledged) {
  options_.window_bytes = 3 * kShardBytes;
  Restart();
  ClientCore::Effects sent = PushNumbers(0, 0);
  const ClientCore::Effects second = PushNumbers(0, 1);
  sent.sends.insert(sent.sends.end(), second.sends.begin(), second.sends.end());
  Moved(kThread0, 2, kElsewhere, 5);
  Moved(kThread0, 6, kElsewhere, 5);
  Moved(kThread1, 3, kElsewhere, 5);
  EXPECT_EQ(client_->unacknowledged_bytes(), kShards * kShardBytes);
  AcknowledgeAll(std::move(sent));
  AcknowledgeAll(Tick());
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  EXPECT_EQ(client_->bytes_pushed(), kShards * kShardBytes);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(ClientMoveTest, WhatIsSentToANewOwnerCountsAsSentAgain) {
  PushNumbers(0, 0);
  Moved(kThread0, 2, kElsewhere, 5);
  EXPECT_EQ(client_->bytes_pushed(), 4 * kShardBytes);
  EXPECT_EQ(client_->bytes_resent(), kShardBytes);
}

TEST_F(ClientMoveTest, WhatTheOldOwnerAcceptedIsNotSentToTheNewOne) {
  options_.window_bytes = kShardBytes;
  Restart();
  PushNumbers(0, 0);
  Own(2, kThread1);  // Was queued, and is now queued there.
  Own(0, kThread1);  // Was sent, and is now queued there.
  EXPECT_THAT(Sent(Show()), IsEmpty());
  Reply(kThread0, 0, 1);
  std::vector<int32_t> sent = ShardsOf(Reply(kThread1, 1, 1));
  for (const int32_t shard : {3, 0, 2}) {
    const std::vector<int32_t> more = ShardsOf(Reply(kThread1, shard, 1));
    sent.insert(sent.end(), more.begin(), more.end());
  }
  EXPECT_THAT(sent, testing::UnorderedElementsAre(2, 3));
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  EXPECT_EQ(client_->bytes_pushed(), 4 * kShardBytes);
  EXPECT_EQ(client_->bytes_resent(), 0u);
}

TEST_F(ClientMoveTest, NothingIsKeptOfServersThatAreGone) {
  Own(2, kElsewhere);
  Show();
  AcknowledgeAll(PushNumbers(0, 0));
  EXPECT_EQ(client_->sizes().links, 3u);
  Own(2, kThread0);
  view_.mutable_server()->RemoveLast();
  Show();
  EXPECT_EQ(client_->sizes().links, 2u);
  for (int i = 0; i < 100; ++i) Reply({i, 7}, 0, 0);
  EXPECT_EQ(client_->sizes().links, 2u) << "answers make no links";
}

// ---- Splits -----------------------------------------------------------------

TEST_F(ClientMoveTest, WhatWaitsForASplitShardIsSplitAsItIs) {
  options_.window_bytes = kShardBytes;
  Restart();
  for (const int table : {0, 1}) PushNumbers(0, table);
  Split(0, 1);   // In flight.
  Split(2, 10);  // Queued.
  EXPECT_THAT(Show().sends, IsEmpty());
  const ClientCore::Effects again = Tick();
  EXPECT_THAT(Sent(again), ElementsAre("0.0: 0#1 [0]", "0.0: 8#1 [1, 2, 3]",
                                       "0.1: 1#1 [4, 5, 6, 7]"));
  for (const wire::Push& push :
       again.sends.at(0).message.header.push_request().push()) {
    EXPECT_EQ(push.gradient(), 5u);
  }
  EXPECT_THAT(Reply(kThread0, 0, 1).sends, IsEmpty()) << "one half of it";
  EXPECT_THAT(Sent(Reply(kThread0, 8, 1)),
              ElementsAre("0.0: 2#1 [8, 9]", "0.0: 9#1 [10, 11]"));
}

TEST_F(ClientMoveTest, AnAcknowledgedPushOfTheWholeIsNotSentInParts) {
  PushNumbers(0, 0);
  Reply(kThread0, 0, 1);
  Split(0, 1);
  Show();
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(2, 1, 3));
}

TEST_F(ClientMoveTest, PartsGoOnWithTheWholesSequence) {
  for (const int table : {0, 1}) AcknowledgeAll(PushNumbers(0, table));
  Split(0, 1);
  Split(8, 2);
  Show();
  const std::vector<std::string> sent = Sent(PushNumbers(1, 0));
  EXPECT_THAT(sent, testing::IsSupersetOf({"0.0: 0#2 [100]", "0.0: 8#2 [101]",
                                           "0.0: 9#2 [102, 103]"}));
  EXPECT_THAT(sent, SizeIs(6));
}

TEST_F(ClientMoveTest, APartIsComputedFromTheVersionOfTheWhole) {
  Split(0, 1);
  Split(8, 2);
  Show();
  versions_[0] = 7;
  const ClientCore::Effects sent = PushNumbers(0, 0);
  int parts = 0;
  for (const ClientSend& send : sent.sends) {
    const wire::Push& push = send.message.header.push_request().push(0);
    const bool part = push.shard() == 0 || push.shard() >= kShards;
    EXPECT_EQ(push.gradient(), part ? 7u : 5u) << push.shard();
    parts += part;
  }
  EXPECT_EQ(parts, 3);
}

TEST_F(ClientMoveTest, APartMayHaveAVersionOfItsOwn) {
  Split(0, 1);
  Show();
  versions_.push_back(9);
  for (const ClientSend& send : PushNumbers(0, 0).sends) {
    const wire::Push& push = send.message.header.push_request().push(0);
    EXPECT_EQ(push.gradient(), push.shard() == 8 ? 9u : 5u);
  }
  versions_.push_back(9);
  EXPECT_THAT(std::string(TryPush(0, 1).message()),
              HasSubstr("10 base versions"));
}

TEST_F(ClientMoveTest, ADeclaredClockIsDeclaredForBothParts) {
  PullResult joined;
  joined.shards.resize(kShards);
  joined.shards[1].shard_clock = 7;
  client_->StartAt(joined, now_, &effects_);
  Take();
  Split(0, 1);
  Show();
  EXPECT_THAT(Sent(Tick()),
              testing::IsSupersetOf({"0.0: 0#1 at 7", "0.0: 8#1 at 7"}));
}

TEST_F(ClientMoveTest, APartOfAShardThatWasJoinedAsAWholeLagsAsItDoes) {
  PullResult joined;
  joined.shards.resize(kShards);
  for (ShardValue& value : joined.shards) value.shard_clock = 7;
  joined.shards[2].shard_clock = 6;
  Split(0, 1);
  Split(2, 10);
  Show();
  EXPECT_EQ(client_->StartAt(joined, now_, &effects_), 7);
  EXPECT_THAT(Sent(Take()), ElementsAre("0.0: 2#1 at 7", "0.0: 9#1 at 7"));
}

TEST_F(ClientMoveTest, APartGoesItsOwnWay) {
  PushNumbers(0, 0);
  Split(0, 1);
  Show();
  EXPECT_THAT(Sent(Moved(kThread0, 8, kElsewhere, 5)),
              ElementsAre("1.0: 8#1 [1, 2, 3]"));
  Own(0, kThread1);
  Own(8, kElsewhere);
  view_.set_number(5);
  EXPECT_THAT(Sent(Show()), ElementsAre("0.1: 0#1 [0]"));
}

TEST_F(ClientMoveTest, APartThatMovesInTheViewThatMakesItIsSplitBeforeItMoves) {
  PushNumbers(0, 0);
  Split(0, 1);
  Own(8, kElsewhere);
  EXPECT_THAT(Sent(Show()), ElementsAre("1.0: 8#1 [1, 2, 3]"));
  EXPECT_THAT(Sent(Tick()), testing::Contains("0.0: 0#1 [0]"));
}

TEST_F(ClientMoveTest, BytesOfSplitShardsAreCountedOnceAndAllAcknowledged) {
  options_.window_bytes = kShardBytes;
  Restart();
  for (const int table : {0, 1}) PushNumbers(0, table);
  Split(0, 1);
  Split(2, 10);
  Split(8, 3);
  Show();
  Moved(kThread0, 10, kElsewhere, 9);
  Moved(kThread0, 2, kElsewhere, 9);
  EXPECT_EQ(client_->unacknowledged_bytes(), kShards * kShardBytes);
  for (int i = 0; i < 4; ++i) AcknowledgeAll(Tick());
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  EXPECT_EQ(client_->bytes_pushed(), kShards * kShardBytes);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

// The floats of all gradients that were sent, by shard.
std::map<int32_t, std::vector<float>> GradientsIn(
    const ClientCore::Effects& effects) {
  std::map<int32_t, std::vector<float>> gradients;
  for (const ClientSend& send : effects.sends) {
    size_t next = 0;
    for (const wire::Push& push : send.message.header.push_request().push()) {
      const Payload& frame = send.message.payloads.at(next++);
      const size_t elements =
          push.has_encoding() ? static_cast<size_t>(push.encoding().elements())
                              : frame.size() / sizeof(float);
      const Payload floats =
          FloatsOf({frame, CodeOf(push.encoding())}, elements);
      std::vector<float>& values = gradients[push.shard()];
      values.resize(elements);
      std::memcpy(values.data(), floats.data(), floats.size());
    }
  }
  return gradients;
}

TEST_F(ClientMoveTest, PartsOfAGradientInACodeAreWhatTheWholeHasThere) {
  const wire::View start = view_;
  for (const GradientCode& code :
       {GradientCode{.kind = wire::Encoding::FLOAT16},
        GradientCode{.kind = wire::Encoding::INT8, .block = 2},
        GradientCode{.kind = wire::Encoding::SPARSE, .block = 3, .kept = 2}}) {
    SCOPED_TRACE(code.kind);
    options_.window_bytes = 1;  // A message at a time; others wait.
    view_ = start;
    accepted_.clear();
    Restart();
    std::vector<float> values(16);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 5) - 2;
    Payload bytes = Payload::Allocate(code.Bytes(values.size()));
    Rng rng(1);
    Encode(code, Keep::kLargest, values, &rng, bytes.MutableData());
    const CodedGradient gradient(bytes, code);
    const Payload whole = FloatsOf(gradient, values.size());
    std::memcpy(values.data(), whole.data(), whole.size());
    const auto of = [&](size_t begin, size_t end) {
      return std::vector<float>(
          values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(end));
    };
    for (const int table : {0, 1}) {
      ASSERT_TRUE(client_
                      ->Push(0, TableId{table}, gradient, StepOptions(),
                             versions_, now_, &effects_)
                      .ok());
    }
    const auto first = GradientsIn(Take());
    EXPECT_EQ(first.at(0), of(0, 4));
    Split(0, 1);   // In flight, as shards 0 and 8.
    Split(2, 10);  // Queued, as shards 2 and 9.
    Show();
    std::map<int32_t, std::vector<float>> sent;
    std::deque<ClientCore::Effects> unread;
    unread.push_back(Tick());
    for (; !unread.empty(); unread.pop_front()) {
      for (auto& [shard, floats] : GradientsIn(unread.front()))
        sent[shard] = std::move(floats);
      for (const ClientSend& send : unread.front().sends) {
        for (const wire::Push& push : send.message.header.push_request().push())
          unread.push_back(Reply(send.to, push.shard(), push.seq()));
      }
    }
    EXPECT_EQ(sent.at(0), of(0, 1));
    EXPECT_EQ(sent.at(8), of(1, 4));
    EXPECT_EQ(sent.at(2), of(8, 10));
    EXPECT_EQ(sent.at(9), of(10, 12));
    EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  }
}

TEST_F(ClientMoveTest, APullUnderWayAsksForBothParts) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  Receive(kThread0, AnswerTo(sent.sends.at(0), {2, 4, 6}));
  Split(0, 1);
  Show();
  // Asked for under a view in which it was whole.
  Receive(kThread0, Refuse(sent.sends[0], 0, Outcome::kMoved));
  const ClientCore::Effects again = Tick();
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2));
  ASSERT_THAT(Sent(again), ElementsAre("0.0: 0?", "0.0: 8?"));
  Message answer = AnswerTo(again.sends[0], {8, 0});
  answer.header.set_view_number(view_.number());
  answer.payloads = {Numbers({1, 2, 3}), Numbers({0})};
  const ClientCore::Effects done = Receive(kThread0, answer);
  EXPECT_TRUE(done.failure.ok()) << done.failure;
  ASSERT_THAT(done.pulled, SizeIs(1));
  ASSERT_THAT(done.pulled[0].shards, SizeIs(kShards + 1));
  EXPECT_THAT(Elements(done.pulled[0].shards[0].values), ElementsAre(0));
  EXPECT_THAT(Elements(done.pulled[0].shards[8].values), ElementsAre(1, 2, 3));
  EXPECT_EQ(done.pulled[0].view->shard_count(), kShards + 1);
  EXPECT_EQ(client_->bytes_pulled(), kShards * kShardBytes);
}

TEST_F(ClientMoveTest, AnAnswerFromBeforeTheSplitIsAskedForAgain) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  Split(0, 1);
  Show();
  Message old = AnswerTo(sent.sends.at(0), {0, 2, 4, 6});
  old.header.set_view_number(2);
  const ClientCore::Effects effects = Receive(kThread0, old);
  EXPECT_TRUE(effects.failure.ok()) << effects.failure;
  EXPECT_THAT(effects.pulled, IsEmpty());
  EXPECT_THAT(Sent(Tick()), ElementsAre("0.0: 0?", "0.0: 8?"));
}

TEST_F(ClientMoveTest, WhatWasAnsweredAsAWholeIsSplit) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message whole = AnswerTo(sent.sends.at(0), {0, 2, 4, 6}, 7);
  whole.payloads[0] = Numbers({20, 21, 22, 23});
  Receive(kThread0, whole);
  Split(0, 1);
  Split(8, 2);
  EXPECT_THAT(Show().sends, IsEmpty());
  const ClientCore::Effects done =
      Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  ASSERT_THAT(done.pulled, SizeIs(1));
  const std::vector<ShardValue>& shards = done.pulled[0].shards;
  ASSERT_THAT(shards, SizeIs(kShards + 2));
  EXPECT_THAT(Elements(shards[0].values), ElementsAre(20));
  EXPECT_THAT(Elements(shards[8].values), ElementsAre(21));
  EXPECT_THAT(Elements(shards[9].values), ElementsAre(22, 23));
  for (const int shard : {0, 8, 9}) EXPECT_EQ(shards[shard].version, 7u);
}

TEST_F(ClientMoveTest, APullAfterTheSplitIsOfTheParts) {
  options_.message_bytes = 4096;
  Restart();
  Split(0, 1);
  Show();
  client_->Pull(0, 0, now_, &effects_);
  EXPECT_THAT(Sent(Take()), testing::IsSupersetOf({"0.0: 0?", "0.0: 8?"}));
}

// Some of it answered, some asked for, some queued, and one table not pushed.
TEST_F(ClientMoveTest, APullBehindPushesIsOfThePartsWhereverItStands) {
  options_.window_bytes = 2 * kShardBytes;
  Restart();
  const uint64_t id = client_->PullBehindPushes();
  std::deque<ClientSend> asked;
  int answered = 0;
  std::optional<PullResult> pulled;
  const auto take = [&](ClientCore::Effects effects) {
    EXPECT_TRUE(effects.failure.ok()) << effects.failure;
    for (ClientSend& send : effects.sends) {
      if (send.message.header.has_pull_request())
        asked.push_back(std::move(send));
    }
    if (!effects.pulled.empty()) pulled = std::move(effects.pulled.front());
  };
  // One shard, with its number in all elements.
  const auto answer = [&](const ClientSend& send, int32_t shard) {
    Message message;
    message.header.set_view_number(view_.number());
    AddAnswer(send, shard, &message).mutable_values()->set_version(2);
    const std::shared_ptr<const View> view = *View::Create(view_);
    const auto elements =
        static_cast<size_t>(view->shard(ShardId{shard}).region.size());
    message.payloads.push_back(
        Numbers(std::vector<float>(elements, static_cast<float>(shard))));
    ++answered;
    take(Receive(send.to, message));
  };
  take(PushNumbers(0, 1));
  ASSERT_THAT(asked, SizeIs(4)) << "two of each thread: the window is full";
  answer(asked.front(), 4);
  asked.pop_front();
  Split(4, 1);   // Shard 8; answered.
  Split(6, 10);  // Shard 9; asked for.
  Split(0, 2);   // Shard 10; not pushed.
  take(Show());
  take(PushNumbers(0, 0));
  Split(2, 9);  // Shard 11; queued.
  Own(2, kElsewhere);
  take(Show());
  for (int round = 0; round < 100 && !pulled.has_value(); ++round) {
    while (!asked.empty()) {
      const ClientSend send = asked.front();
      asked.pop_front();
      for (const int32_t shard :
           slackline::ShardsOf(send.message.header.pull_request()))
        answer(send, shard);
    }
    ClientCore::Effects again = Tick();  // Nobody has got a push.
    AcknowledgeAll(again);
    take(std::move(again));
    take(Wake());
  }
  ASSERT_TRUE(pulled.has_value());
  EXPECT_EQ(pulled->pull_id, id);
  ASSERT_THAT(pulled->shards, SizeIs(kShards + 4));
  for (int32_t shard = 0; shard < kShards + 4; ++shard) {
    const std::vector<float> values =
        Elements(pulled->shards[static_cast<size_t>(shard)].values);
    EXPECT_THAT(values, testing::Each(shard == 8 ? 4 : shard)) << shard;
  }
  EXPECT_EQ(client_->bytes_pulled(), kShards * kShardBytes);
}

}  // namespace slackline::client_core_moves_test
