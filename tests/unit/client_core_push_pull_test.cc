// Goal: what a worker's client sends, where to, how much of it is on its way at
// once, and what it makes of the answers. Method: the shard threads are played
// by hand, on virtual time.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/unit/client_core_fixture.h"

namespace slackline::client_core_push_pull_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Push -------------------------------------------------------------------

TEST_F(ClientCoreTest, ATableIsSplitIntoItsShardsForTheirOwners) {
  const ClientCore::Effects effects = Push(0, 0);
  ASSERT_THAT(effects.sends, SizeIs(4));
  for (const ClientSend& send : effects.sends) {
    const wire::PushRequest& push = send.message.header.push_request();
    ASSERT_EQ(push.push_size(), 1);
    EXPECT_EQ(send.to, (Owner{0, push.push(0).shard() % 2}));
    EXPECT_EQ(push.push(0).seq(), 1u);
    EXPECT_EQ(push.push(0).gradient(), 5u);
    EXPECT_FALSE(push.push(0).has_options());
    EXPECT_EQ(send.message.payloads.at(0).size(), kShardBytes);
  }
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * kShardBytes);
}

TEST_F(ClientCoreTest, AMomentumWhereTheOptimizerHasNoneIsRefused) {
  const absl::Status pushed =
      client_->Push(0, TableId{1}, Payload::Allocate(4 * kShardBytes),
                    {.momentum = 0.5}, versions_, now_, &effects_);
  EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(pushed.message()),
      ::testing::HasSubstr("a momentum of 0.5; the optimizer has none"));
  EXPECT_THAT(effects_.sends, ::testing::IsEmpty());
}

TEST_F(ClientCoreTest, EachShardOfATableIsToldTheFactorOfItsGradient) {
  EXPECT_TRUE(client_
                  ->Push(0, TableId{1}, Payload::Allocate(4 * kShardBytes),
                         {.rate_factor = 0.25}, versions_, now_, &effects_)
                  .ok());
  const ClientCore::Effects effects = Push(0, 0);
  std::vector<std::pair<int32_t, double>> told;
  for (const ClientSend& send : effects.sends) {
    for (const wire::Push& push : send.message.header.push_request().push()) {
      if (push.has_options())
        told.push_back({push.shard(), push.options().rate_factor()});
    }
  }
  for (const ClientSend& send : Reply(kThread0, 4, 1).sends)
    EXPECT_FALSE(send.message.header.push_request().push(0).has_advance());
  EXPECT_THAT(told, ::testing::UnorderedElementsAre(
                        std::pair(4, 0.25), std::pair(5, 0.25),
                        std::pair(6, 0.25), std::pair(7, 0.25)));
}

TEST_F(ClientCoreTest, TheShardsOfATableThatIsSkippedLearnThatItsClockIsDone) {
  ASSERT_TRUE(client_->SkipTable(0, TableId{1}, now_, &effects_).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      client_->SkipTable(0, TableId{1}, now_, &effects_)))
      << "twice in a clock";
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  std::vector<std::pair<int32_t, Clock>> advanced;
  std::vector<int32_t> pushed;
  for (const ClientSend& send : Push(0, 0).sends) {
    for (const wire::Push& push : send.message.header.push_request().push()) {
      if (push.has_advance()) {
        advanced.push_back({push.shard(), push.clock()});
      } else {
        pushed.push_back(push.shard());
      }
    }
  }
  EXPECT_THAT(advanced, ::testing::UnorderedElementsAre(
                            std::pair(4, Clock{1}), std::pair(5, Clock{1}),
                            std::pair(6, Clock{1}), std::pair(7, Clock{1})));
  EXPECT_THAT(pushed, ::testing::UnorderedElementsAre(0, 1, 2, 3));
  // The clock is over, as after pushes of both tables.
  EXPECT_TRUE(client_->SkipTable(1, TableId{0}, now_, &effects_).ok());
}

TEST_F(ClientCoreTest, AMessageIsClosedAtItsSizeOrAtTheEndOfTheClock) {
  options_.message_bytes = 3 * kShardBytes;
  Restart();
  EXPECT_THAT(Push(0, 1).sends, IsEmpty())
      << "two shards for each thread so far";
  const ClientCore::Effects effects = Push(0, 0);
  EXPECT_THAT(effects.sends, SizeIs(4));
  EXPECT_THAT(slackline::ShardsOf(
                  effects.sends.at(0).message.header.push_request().push()),
              ElementsAre(4, 6, 0));
}

TEST_F(ClientCoreTest, ThroughAFastSocketTheShardsOfATableShareMessages) {
  options_.message_bytes = kShardBytes;
  options_.socket_message_bytes = 2 * kShardBytes;
  options_.by_socket = [](const View& view, Owner to) {
    EXPECT_NE(view.FindServer(to.server), nullptr);
    return to == kThread0;
  };
  Restart();
  const auto acknowledge = [&](Clock clock, absl::Duration took) {
    now_ += took;
    for (const int table : {0, 1}) {
      for (const int32_t shard : {0, 1, 2, 3})
        Reply(shard % 2 == 0 ? kThread0 : kThread1, 4 * table + shard,
              static_cast<uint64_t>(clock) + 1);
    }
  };
  Clock clock = 0;
  EXPECT_THAT(Push(clock, 1).sends, SizeIs(4)) << "nothing is measured yet";
  EXPECT_THAT(Push(clock, 0).sends, SizeIs(4));
  // More than two shards in a millisecond.
  for (; clock < 50; ++clock) {
    acknowledge(clock, absl::Microseconds(100));
    Push(clock + 1, 1);
    Push(clock + 1, 0);
  }
  acknowledge(clock++, absl::Microseconds(100));
  const ClientCore::Effects fast = Push(clock, 1);
  ASSERT_THAT(fast.sends, SizeIs(3));
  for (const ClientSend& send : fast.sends) {
    EXPECT_EQ(send.message.header.push_request().push_size(),
              send.to == kThread0 ? 2 : 1)
        << "thread 1 is reached through memory";
  }
  Push(clock, 0);
  // Less than one in a millisecond.
  for (; clock < 100; ++clock) {
    acknowledge(clock, absl::Milliseconds(20));
    Push(clock + 1, 1);
    Push(clock + 1, 0);
  }
  acknowledge(clock++, absl::Milliseconds(20));
  EXPECT_THAT(Push(clock, 1).sends, SizeIs(4));
}

TEST_F(ClientCoreTest, AMessageThatMayBecomeLargerDoesNotWaitForAnotherTable) {
  options_.message_bytes = 2 * kShardBytes;
  options_.socket_message_bytes = 4 * kShardBytes;
  options_.by_socket = [](const View&, Owner) { return true; };
  Restart();
  Clock clock = 0;
  for (; clock < 50; ++clock) {
    for (const int table : {1, 0}) {
      EXPECT_THAT(Push(clock, table).sends, SizeIs(2)) << "a half of it each";
      for (const int32_t shard : {0, 1, 2, 3})
        Reply(shard % 2 == 0 ? kThread0 : kThread1, 4 * table + shard,
              static_cast<uint64_t>(clock) + 1);
    }
  }
}

TEST_F(ClientCoreTest, TheWindowLimitsBytesInFlightToEachThread) {
  options_.window_bytes = 2 * kShardBytes;
  Restart();
  EXPECT_THAT(ShardsOf(Push(0, 0)), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(ShardsOf(Push(0, 1)), IsEmpty()) << "both windows are full";
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(4));
  EXPECT_THAT(ShardsOf(Reply(kThread1, 1, 1)), ElementsAre(5));
  EXPECT_EQ(client_->unacknowledged_bytes(), 6 * kShardBytes)
      << "queued ones included";
}

TEST_F(ClientCoreTest, EarlierTablesOvertakeWhatTheWindowHoldsBack) {
  options_.window_bytes = kShardBytes;
  Restart();
  EXPECT_THAT(ShardsOf(Push(0, 1)), ElementsAre(4, 5));
  EXPECT_THAT(ShardsOf(Push(0, 0)), IsEmpty());
  // Those of the next clock overtake none of this one.
  EXPECT_THAT(ShardsOf(Push(1, 1)), IsEmpty());
  EXPECT_THAT(ShardsOf(Push(1, 0)), IsEmpty());
  std::vector<int32_t> sent;
  for (const auto& [shard, seq] : std::vector<std::pair<int32_t, uint64_t>>{
           {4, 1}, {0, 1}, {2, 1}, {6, 1}, {0, 2}, {2, 2}, {4, 2}}) {
    for (const int32_t next : ShardsOf(Reply(kThread0, shard, seq)))
      sent.push_back(next);
  }
  EXPECT_THAT(sent, ElementsAre(0, 2, 6, 0, 2, 4, 6));
}

// A first table of one shard and another of several, all of one thread;
// messages and windows of two shards.
class ClientOrderTest : public ClientMoveTest {
 protected:
  void BeginWithASmallTable(int shards_of_the_other) {
    const int shards = 1 + shards_of_the_other;
    view_.mutable_table(0)->set_shape(0, 4);
    view_.mutable_table(1)->set_shape(0, 4 * shards_of_the_other);
    view_.mutable_table(1)->set_first_shard(1);
    view_.mutable_owner_server()->Truncate(shards);
    view_.mutable_owner_thread()->Truncate(shards);
    for (int32_t shard = 0; shard < shards; ++shard) Own(shard, kThread0);
    versions_.resize(static_cast<size_t>(shards));
    options_.message_bytes = options_.window_bytes = 2 * kShardBytes;
    Restart();
  }
};

TEST_F(ClientOrderTest, AMessageThatIsNotFullOvertakesAtTheEndOfTheClock) {
  BeginWithASmallTable(/*shards_of_the_other=*/4);
  EXPECT_THAT(ShardsOf(Push(0, 1)), ElementsAre(1, 2));
  EXPECT_TRUE(TryPush(0, 0, kShardBytes).ok());
  EXPECT_THAT(ShardsOf(Take()), IsEmpty());
  Reply(kThread0, 1, 1);
  EXPECT_THAT(ShardsOf(Reply(kThread0, 2, 1)), ElementsAre(0));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(3, 4));
}

TEST_F(ClientOrderTest, WhatOvertakesDoesNotJoinTheRestOfALaterTable) {
  BeginWithASmallTable(/*shards_of_the_other=*/5);
  EXPECT_TRUE(TryPush(0, 1, 5 * kShardBytes).ok());
  EXPECT_TRUE(TryPush(0, 0, kShardBytes).ok());
  EXPECT_THAT(ShardsOf(Take()), ElementsAre(1, 2));
  Reply(kThread0, 1, 1);
  EXPECT_THAT(ShardsOf(Reply(kThread0, 2, 1)), ElementsAre(0));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(3, 4));
  Reply(kThread0, 3, 1);
  EXPECT_THAT(ShardsOf(Reply(kThread0, 4, 1)), ElementsAre(5));
}

TEST_F(ClientCoreTest, AMessageLargerThanTheWindowGoesAlone) {
  options_.window_bytes = kShardBytes / 2;
  Restart();
  EXPECT_THAT(ShardsOf(Push(0, 0)), ElementsAre(0, 1));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(2));
}

TEST_F(ClientCoreTest,
       WhatIsAcknowledgedLeavesTheWindowThoughAnEarlierOneIsOpen) {
  options_.window_bytes = 2 * kShardBytes;
  Restart();
  Push(0, 0);
  Push(0, 1);
  const ClientCore::Effects effects = Reply(kThread0, 2, 1);
  EXPECT_THAT(ShardsOf(effects), ElementsAre(4))
      << "besides the probe for the one that was overtaken";
}

TEST_F(ClientCoreTest, APushOutOfTurnIsRefusedAndSendsNothing) {
  Push(0, 0);
  EXPECT_THAT(std::string(TryPush(0, 0).message()),
              HasSubstr("was pushed already"));
  EXPECT_THAT(std::string(TryPush(1, 1).message()),
              HasSubstr("expected clock 0"));
  EXPECT_THAT(std::string(TryPush(0, 2).message()),
              HasSubstr("the job has 2 tables"));
  EXPECT_THAT(std::string(TryPush(0, 1, 60).message()),
              HasSubstr("gradient of 60 bytes"));
  versions_.pop_back();
  EXPECT_THAT(std::string(TryPush(0, 1).message()),
              HasSubstr("7 base versions"));
  EXPECT_THAT(Take().sends, IsEmpty());
  versions_.push_back(5);
  EXPECT_THAT(Push(0, 1).sends, SizeIs(4));
  EXPECT_EQ(Push(1, 0).sends.at(0).message.header.push_request().push(0).seq(),
            2u);
}

// ---- Small pushes -----------------------------------------------------------

TEST_F(ClientCoreTest, SmallPushesShareAMessageOnceSeveralAreUnanswered) {
  options_.message_bytes = 4096;
  options_.small_messages_max = 2;
  Restart();
  std::vector<uint64_t> requests;
  for (Clock clock = 0; clock < 6; ++clock) {
    Push(clock, 0);
    for (const ClientSend& send : Push(clock, 1).sends) {
      if (send.to == kThread0)
        requests.push_back(send.message.header.push_request().request_id());
    }
  }
  ASSERT_THAT(requests, SizeIs(2)) << "an idle link delays nothing";
  Message message;
  message.header.mutable_push_reply()->set_request_id(requests[0]);
  for (const int32_t shard : {0, 2, 4, 6}) {
    wire::PushAnswer& answer =
        *message.header.mutable_push_reply()->add_answer();
    answer.set_shard(shard);
    answer.set_accepted_seq(1);
  }
  const ClientCore::Effects effects = Receive(kThread0, message);
  ASSERT_THAT(effects.sends, SizeIs(1));
  const auto& pushes = effects.sends[0].message.header.push_request().push();
  ASSERT_EQ(pushes.size(), 4 * 4);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(pushes[i].clock(), 2 + i / 4);
}

TEST_F(ClientCoreTest, AMessageIsFullAtSoManyEntries) {
  options_.message_bytes = 4096;
  options_.message_entries = 3;
  Restart();
  Push(0, 0);
  const ClientCore::Effects effects = Push(0, 1);
  ASSERT_THAT(effects.sends, SizeIs(4));
  EXPECT_EQ(effects.sends[0].message.header.push_request().push_size(), 3);
  EXPECT_EQ(effects.sends[1].message.header.push_request().push_size(), 1);
}

// ---- Pull -------------------------------------------------------------------

TEST_F(ClientCoreTest, APullIsPutTogetherFromItsParts) {
  options_.message_bytes = 4096;
  Restart();
  const uint64_t id = client_->Pull(3, 2, now_, &effects_);
  const ClientCore::Effects sent = Take();
  ASSERT_THAT(sent.sends, SizeIs(2));
  EXPECT_EQ(sent.sends[0].message.header.pull_request().pull(0).step().clock(),
            3);
  EXPECT_EQ(
      sent.sends[0].message.header.pull_request().pull(0).step().own_clock(),
      2);
  EXPECT_THAT(Receive(kThread0, AnswerTo(sent.sends[0], {0, 4})).pulled,
              IsEmpty());
  EXPECT_THAT(Receive(kThread1, AnswerTo(sent.sends[1], {1, 3, 5, 7})).pulled,
              IsEmpty());
  // Only what is missing is asked for again.
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(2, 6));
  const ClientCore::Effects done =
      Receive(kThread0, AnswerTo(sent.sends[0], {6, 2}, 4));
  ASSERT_THAT(done.pulled, SizeIs(1));
  EXPECT_EQ(done.pulled[0].pull_id, id);
  EXPECT_EQ(done.pulled[0].shards.at(0).version, 3u);
  EXPECT_EQ(done.pulled[0].shards.at(2).version, 4u);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(ClientMoveTest, WhatWasRoundedComesAsFloats) {
  options_.message_bytes = 4096;
  view_.mutable_table(0)->set_pulled_as(wire::Encoding::BFLOAT16);
  Restart();
  PayloadMemory memory;
  const Payload values = Numbers({1.0f / 3, -2, 1e9f, 0.1f});
  const Payload rounded =
      RoundParameters(wire::Encoding::BFLOAT16, values, memory);
  const auto answer = [&](const ClientSend& send,
                          const std::vector<int32_t>& shards, bool exact) {
    EXPECT_EQ(send.message.header.pull_request().pull(0).step().exact(), exact);
    Message message = AnswerTo(send, shards);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (exact || shards[i] >= 4) continue;
      message.header.mutable_pull_reply()
          ->mutable_answer(static_cast<int>(i))
          ->mutable_values()
          ->set_kind(wire::Encoding::BFLOAT16);
      message.payloads[i] = rounded;
    }
    return message;
  };
  client_->Pull(3, 2, now_, &effects_);
  ClientCore::Effects sent = Take();
  Receive(kThread0, answer(sent.sends.at(0), {0, 2, 4, 6}, false));
  const ClientCore::Effects done =
      Receive(kThread1, answer(sent.sends.at(1), {1, 3, 5, 7}, false));
  ASSERT_THAT(done.pulled, SizeIs(1));
  EXPECT_EQ(Elements(done.pulled[0].shards[3].values),
            Elements(ExpandParameters(wire::Encoding::BFLOAT16, rounded)));
  EXPECT_EQ(client_->bytes_pulled(), kShards / 2 * kShardBytes * 3 / 2);

  client_->PullModel(3, now_, &effects_);
  sent = Take();
  Receive(kThread0, answer(sent.sends.at(0), {0, 2, 4, 6}, true));
  EXPECT_THAT(
      Receive(kThread1, answer(sent.sends.at(1), {1, 3, 5, 7}, true)).pulled,
      SizeIs(1));

  client_->Pull(4, 3, now_, &effects_);
  sent = Take();
  const ClientCore::Effects wrong =
      Receive(kThread0, AnswerTo(sent.sends.at(0), {0, 2}));
  EXPECT_THAT(std::string(wrong.failure.message()),
              HasSubstr("with 16 bytes as FLOAT32; 8 as BFLOAT16 are "
                        "required"));
}

// Table 0 has the shards 0 to 3, table 1 the others.
TEST_F(ClientCoreTest, APullTellsWhenATableHasCome) {
  options_.message_bytes = 4096;
  Restart();
  const uint64_t id = client_->Pull(3, 2, now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_THAT(Receive(kThread0, AnswerTo(sent.sends[0], {0, 4, 6})).brought,
              IsEmpty());
  const ClientCore::Effects second =
      Receive(kThread1, AnswerTo(sent.sends[1], {1, 5, 7}, 4));
  ASSERT_THAT(second.brought, SizeIs(1));
  EXPECT_EQ(second.brought[0].pull_id, id);
  EXPECT_EQ(second.brought[0].table, TableId{1});
  EXPECT_FALSE(client_->BroughtBy(id, TableId{0}).has_value());
  EXPECT_FALSE(client_->BroughtBy(id + 1, TableId{1}).has_value());
  const std::optional<TableValues> values = client_->BroughtBy(id, TableId{1});
  ASSERT_TRUE(values.has_value());
  ASSERT_THAT(values->pieces, SizeIs(4));
  EXPECT_EQ(values->pieces[0].shard, ShardId{4});
  EXPECT_EQ(values->pieces[0].version, 3u);
  EXPECT_EQ(values->pieces[3].version, 4u);
  Receive(kThread0, AnswerTo(sent.sends[0], {2}));
  const ClientCore::Effects last =
      Receive(kThread1, AnswerTo(sent.sends[1], {3}));
  EXPECT_THAT(last.brought, SizeIs(1));
  ASSERT_THAT(last.pulled, SizeIs(1));
  EXPECT_THAT(last.pulled[0].Of(TableId{0}).pieces, SizeIs(4));
  EXPECT_FALSE(client_->BroughtBy(id, TableId{0}).has_value()) << "it is over";
}

// The replies to the pushes were lost.
TEST_F(ClientCoreTest, AnAnswerShowsThatThePushesOfEarlierClocksAreAccepted) {
  options_.message_bytes = 4096;
  Restart();
  for (const Clock clock : {0, 1}) {
    for (const int table : {0, 1}) Push(clock, table);
  }
  EXPECT_EQ(client_->unacknowledged_bytes(), 2 * kShards * kShardBytes);
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  ASSERT_THAT(sent.sends, SizeIs(2));
  Receive(kThread0, AnswerTo(sent.sends[0], {0, 2, 4, 6}));
  Receive(kThread1, AnswerTo(sent.sends[1], {1, 3, 5, 7}));
  EXPECT_EQ(client_->unacknowledged_bytes(), kShards * kShardBytes)
      << "of clock 1 the answer says nothing";
}

TEST_F(ClientCoreTest, ARepeatedAnswerIsIgnored) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread0, AnswerTo(sent.sends[0], {0, 2}, 3));
  Receive(kThread0, AnswerTo(sent.sends[0], {0, 2}, 9));
  Receive(kThread0, AnswerTo(sent.sends[0], {4, 6}, 3));
  Receive(kThread0, AnswerTo(sent.sends[0], {4, 6}, 9));
  const ClientCore::Effects done =
      Receive(kThread1, AnswerTo(sent.sends[1], {1, 3, 5, 7}));
  ASSERT_THAT(done.pulled, SizeIs(1));
  for (const ShardValue& value : done.pulled[0].shards)
    EXPECT_EQ(value.version, 3u);
  EXPECT_EQ(client_->bytes_pulled(), kShards * kShardBytes);
}

TEST_F(ClientCoreTest, TheWindowLimitsPullsAskedFor) {
  options_.window_bytes = 2 * kShardBytes;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_THAT(ShardsOf(sent), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(ShardsOf(Receive(kThread0, AnswerTo(sent.sends[0], {0}))),
              ElementsAre(4));
}

// ---- Pulls behind pushes ----------------------------------------------------

// "push 0, 2" and "pull 0, 2", in order.
std::vector<std::string> Kinds(const ClientCore::Effects& effects) {
  std::vector<std::string> kinds;
  for (const ClientSend& send : effects.sends) {
    const wire::Header& header = send.message.header;
    kinds.push_back(
        header.has_push_request()
            ? absl::StrCat(
                  "push ",
                  absl::StrJoin(ShardsOf(header.push_request().push()), ", "))
            : absl::StrCat(
                  "pull ",
                  absl::StrJoin(ShardsOf(header.pull_request()), ", ")));
  }
  return kinds;
}

TEST_F(ClientCoreTest, EachMessageOfGradientsIsFollowedByAPullOfItsShards) {
  options_.message_bytes = 2 * kShardBytes;
  Restart();
  for (const int table : {0, 1}) Push(0, table);
  const uint64_t id = client_->PullBehindPushes();
  EXPECT_THAT(Take().sends, IsEmpty());
  const ClientCore::Effects first = Push(1, 1);
  EXPECT_THAT(Kinds(first),
              ElementsAre("push 4, 6", "pull 4, 6", "push 5, 7", "pull 5, 7"));
  const wire::Pull& pull = first.sends[1].message.header.pull_request().pull(0);
  EXPECT_EQ(pull.step().clock(), 2);
  EXPECT_EQ(pull.step().own_clock(), 2);
  EXPECT_FALSE(pull.step().exact());
  // It may be answered before the others are pushed.
  EXPECT_THAT(Receive(kThread0, AnswerTo(first.sends[1], {4, 6})).brought,
              IsEmpty());
  EXPECT_THAT(Receive(kThread1, AnswerTo(first.sends[3], {5, 7})).brought,
              SizeIs(1));
  const ClientCore::Effects second = Push(1, 0);
  EXPECT_THAT(Kinds(second),
              ElementsAre("push 0, 2", "pull 0, 2", "push 1, 3", "pull 1, 3"));
  Receive(kThread0, AnswerTo(second.sends[1], {0, 2}));
  const ClientCore::Effects done =
      Receive(kThread1, AnswerTo(second.sends[3], {1, 3}));
  ASSERT_THAT(done.pulled, SizeIs(1));
  EXPECT_EQ(done.pulled[0].pull_id, id);
  // It was behind the pushes of that clock alone.
  EXPECT_THAT(Kinds(Push(2, 0)), ElementsAre("push 0, 2", "push 1, 3"));
}

TEST_F(ClientCoreTest, WhatIsNotSentIsNotAskedFor) {
  options_.window_bytes = 2 * kShardBytes;
  Restart();
  client_->PullBehindPushes();
  EXPECT_THAT(Kinds(Push(0, 0)),
              ElementsAre("push 0", "pull 0", "push 2", "pull 2", "push 1",
                          "pull 1", "push 3", "pull 3"));
  const ClientCore::Effects second = Push(0, 1);
  EXPECT_THAT(Kinds(second), IsEmpty());
  // The window of pulls is full, too.
  EXPECT_THAT(Kinds(Reply(kThread0, 0, 1)), ElementsAre("push 4"));
}

TEST_F(ClientCoreTest, APullBehindPushesGoesOnceThoughAPushIsRepeated) {
  client_->PullBehindPushes();
  Push(0, 0);
  Reply(kThread0, 0, 0, Outcome::kRetry);
  EXPECT_THAT(Kinds(Wake()), ElementsAre("push 0"));
}

TEST_F(ClientCoreTest, AForgottenPullIsAnsweredInVain) {
  options_.window_bytes = 4 * kShardBytes;
  Restart();
  const uint64_t id = client_->PullBehindPushes();
  const ClientCore::Effects sent = Push(0, 0);
  client_->ForgetPull(id, now_, &effects_);
  Take();
  EXPECT_EQ(client_->sizes().pulls, 0u);
  EXPECT_EQ(client_->sizes().pull_messages, 0u);
  EXPECT_FALSE(client_->HasBrought(id, TableId{0}));
  const ClientCore::Effects late =
      Receive(kThread0, AnswerTo(sent.sends.at(1), {0}));
  EXPECT_TRUE(late.failure.ok()) << late.failure;
  EXPECT_THAT(late.pulled, IsEmpty());
  for (const std::string& kind : Kinds(Push(0, 1)))
    EXPECT_THAT(kind, HasSubstr("push"));
  // The window is free, and the next one is as any.
  client_->Pull(1, 1, now_, &effects_);
  EXPECT_THAT(ShardsOf(Take()), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

// ---- What is waited for -----------------------------------------------------

TEST_F(ClientCoreTest, AParkedPullNamesForWhomItWaitsAndIsNoRetry) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  now_ += absl::Milliseconds(30);
  EXPECT_THAT(client_->WaitingFor(now_).text,
              HasSubstr("weight[0, 4) at clock 1 from server 0 thread 0 "
                        "(tcp://here:1) has no "
                        "answer for 30ms"));
  Receive(kThread1, AnswerTo(sent.sends[1], {1, 3, 5, 7}));
  Tick();
  EXPECT_EQ(client_->retries(), 1u);
  Receive(kThread0, Parked(sent.sends[0], 0, 3));
  EXPECT_EQ(client_->retries(), 0u);
  EXPECT_THAT(client_->WaitingFor(now_).text,
              HasSubstr("waits for rank 3, whose clock is 0"));
}

TEST_F(ClientCoreTest, AParkedPullAsksNowAndThenForWhomItWaits) {
  options_.message_bytes = 4096;
  options_.retry_max = absl::Seconds(4);
  Restart();
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 3; ++i) {
    const absl::Time before = now_;
    EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0, 2, 4, 6));
    gaps.push_back(now_ - before);
    Receive(kThread0, Parked(sent.sends[0], 0, 3, i / 2));
  }
  EXPECT_THAT(gaps, ElementsAre(absl::Milliseconds(100), absl::Seconds(1),
                                absl::Seconds(1)));
  EXPECT_EQ(client_->retries(), 0u);
  now_ += absl::Milliseconds(10);
  const ClientWaiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientWaiting::Kind::kWorkers);
  EXPECT_EQ(waiting.rank, Rank{3});
  EXPECT_EQ(waiting.clock, 1);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(10))
      << "its clock has moved";
}

TEST_F(ClientCoreTest, AServerThatIsSilentForLongOutweighsAParkedPull) {
  options_.message_bytes = 4096;
  Restart();
  EXPECT_EQ(client_->WaitingFor(now_).kind, ClientWaiting::Kind::kNothing);
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread0, Parked(sent.sends.at(0), 0, 3));
  now_ += absl::Milliseconds(400);
  EXPECT_EQ(client_->WaitingFor(now_).kind, ClientWaiting::Kind::kWorkers);
  now_ += absl::Milliseconds(1);
  const ClientWaiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientWaiting::Kind::kServer);
  EXPECT_EQ(waiting.server, 0);
  EXPECT_EQ(waiting.clock, 1);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(401));
  EXPECT_THAT(waiting.text, HasSubstr("weight[4, 8) at clock 1 from server 0 "
                                      "thread 1 (tcp://here:2) has no answer"));
}

TEST_F(ClientCoreTest, PushesWithoutAnAnswerAreWaitedFor) {
  Push(0, 0);
  now_ += absl::Milliseconds(70);
  const ClientWaiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientWaiting::Kind::kServer);
  EXPECT_EQ(waiting.server, 0);
  EXPECT_EQ(waiting.rank, std::nullopt);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(70));
  EXPECT_THAT(waiting.text, HasSubstr("pushes of clock 0"));
}

// ---- Start, views, failures -------------------------------------------------

TEST_F(ClientCoreTest, StartsAtTheLargestClockAndDeclaresItWhereAShardLags) {
  PullResult joined;
  joined.shards.resize(kShards);
  for (int shard = 0; shard < kShards; ++shard) {
    joined.shards[shard].shard_clock = shard == 4 ? 6 : 7;
  }
  EXPECT_EQ(client_->StartAt(joined, now_, &effects_), 7);
  const ClientCore::Effects effects = Take();
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::PushRequest& push =
      effects.sends[0].message.header.push_request();
  ASSERT_EQ(push.push_size(), 1);
  EXPECT_TRUE(push.push(0).has_advance());
  EXPECT_EQ(push.push(0).clock(), 7);
  EXPECT_EQ(push.push(0).shard(), 4);
  EXPECT_THAT(effects.sends[0].message.payloads, IsEmpty());
  EXPECT_FALSE(TryPush(0, 0).ok());
  Push(7, 0);
  const ClientCore::Effects second = Push(7, 1);
  EXPECT_EQ(second.sends.at(0).message.header.push_request().push(0).shard(),
            4);
  EXPECT_EQ(second.sends.at(0).message.header.push_request().push(0).seq(), 2u)
      << "the declaration was the first";
}

TEST_F(ClientCoreTest, SkippedClocksAreDeclaredToAllShardsBehindThePushes) {
  Push(0, 0);
  Push(0, 1);
  Take();
  client_->SkipTo(4, now_, &effects_);
  const ClientCore::Effects effects = Take();
  int shards = 0;
  for (const ClientSend& send : effects.sends) {
    const wire::PushRequest& push = send.message.header.push_request();
    for (const wire::Push& fact : push.push()) {
      EXPECT_TRUE(fact.has_advance());
      EXPECT_EQ(fact.clock(), 4);
      EXPECT_EQ(fact.seq(), 2u);
    }
    shards += push.push_size();
  }
  EXPECT_EQ(shards, kShards);
  EXPECT_FALSE(TryPush(1, 0).ok());
  EXPECT_TRUE(TryPush(4, 0).ok());
}

TEST_F(ClientCoreTest, AnswersOfAnotherRunAreIgnored) {
  options_.run = 77;
  Restart();
  EXPECT_EQ(Push(0, 0).sends.at(0).message.header.run(), 77u);
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_EQ(sent.sends.at(0).message.header.run(), 77u);
  Message answer = AnswerTo(sent.sends[0], {0});
  answer.header.set_run(78);
  Receive(kThread0, answer);
  EXPECT_EQ(client_->bytes_pulled(), 0u);
  answer.header.set_run(0);
  Receive(kThread0, answer);
  EXPECT_EQ(client_->bytes_pulled(), kShardBytes);
  for (const ClientSend& send : Wake().sends)
    EXPECT_EQ(send.message.header.run(), 77u);
}

TEST_F(ClientCoreTest, WhoIsNoMemberAnyMoreIsFenced) {
  Push(0, 0);
  EXPECT_TRUE(Reply(kThread0, 0, 0, Outcome::kFenced).fenced);
  wire::View without = TestView();
  without.set_number(3);
  without.clear_worker();
  client_->OnView(*View::Create(without), absl::UnixEpoch(), &effects_);
  EXPECT_TRUE(Take().fenced);
}

TEST_F(ClientCoreTest, ARefusalIsPassedOnWithTheServersReason) {
  Push(0, 0);
  const ClientCore::Effects effects =
      Reply(kThread0, 2, 0, Outcome::kRejected, "its next clock is 4");
  EXPECT_THAT(std::string(effects.failure.message()),
              AllOf(HasSubstr("server 0 thread 0"), HasSubstr("weight[8, 12)"),
                    HasSubstr("its next clock is 4")));
}

TEST_F(ClientCoreTest, AnAnswerOfTheWrongSizeIsAFailure) {
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message answer = AnswerTo(sent.sends[0], {0});
  answer.payloads[0] = Payload::Allocate(kShardBytes - 4);
  EXPECT_THAT(std::string(Receive(kThread0, answer).failure.message()),
              HasSubstr("with 12 bytes as FLOAT32; 16 as FLOAT32 are"));
}

TEST_F(ClientCoreTest, AnswersThatMakeNoSenseAreSurvived) {
  Push(0, 0);
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message reply;
  reply.header.mutable_push_reply()->add_answer();  // No number.
  Receive(kThread0, reply);
  Reply(kThread0, 99, 1);
  Reply(kThread0, -1, 1);
  Message answer = AnswerTo(sent.sends[0], {0});
  answer.payloads.clear();
  Receive(kThread0, answer);
  answer = AnswerTo(sent.sends[0], {99});
  Receive(kThread0, answer);
  answer = AnswerTo(sent.sends[0], {0});
  answer.header.mutable_pull_reply()->mutable_answer(0)->clear_what();
  EXPECT_TRUE(Receive(kThread0, answer).failure.ok());
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * kShardBytes);
  EXPECT_EQ(client_->bytes_pulled(), 0u);
}

}  // namespace slackline::client_core_push_pull_test
