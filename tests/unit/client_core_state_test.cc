// Goal: at the start and the end of a phase by all-reduce a worker's client
// pulls and installs the state of shards bit for bit, also while they move and
// are split in two. Method: the shard threads are played by hand, on virtual
// time.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/state_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/support/modes.h"
#include "tests/unit/client_core_fixture.h"

namespace slackline::client_core_state_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- State ------------------------------------------------------------------

// Adam's slots. Elements of the state of shard s: 100 s and on, in slot i
// 100 s + 10 (i + 1) and on.
class ClientStateTest : public ClientMoveTest {
 protected:
  ClientStateTest() {
    for (wire::Table& table : *view_.mutable_table())
      table.mutable_optimizer()->mutable_adam()->set_learning_rate(1);
    options_.message_bytes = 6 * kShardBytes;  // Two shards.
    *view_.add_phase()->mutable_mode() = ModeOf("allreduce");
    view_.mutable_phase(1)->set_from(5);
    Restart();
  }

  static ShardValue StateOf(int32_t shard, Version version = 9) {
    ShardValue state;
    state.version = version;
    const float first = 100.0f * static_cast<float>(shard);
    for (const float offset : {0.0f, 10.0f, 20.0f}) {
      std::vector<float> elements(4);
      for (int i = 0; i < 4; ++i)
        elements[i] = first + offset + static_cast<float>(i);
      if (offset == 0) {
        state.values = Numbers(elements);
      } else {
        state.slots.push_back(Numbers(elements));
      }
    }
    return state;
  }
  static Message StateAnswerTo(const ClientSend& send,
                               const std::vector<int32_t>& shards) {
    Message message;
    for (const int32_t shard : shards) {
      const ShardValue state = StateOf(shard);
      wire::PullAnswer::State& answer =
          *AddAnswer(send, shard, &message).mutable_state();
      answer.mutable_values()->set_version(state.version);
      answer.mutable_values()->set_shard_clock(2);
      answer.set_hash(StateHash(state.version, state.values, state.slots));
      answer.set_slots(static_cast<int32_t>(state.slots.size()));
      message.payloads.push_back(state.values);
      message.payloads.insert(message.payloads.end(), state.slots.begin(),
                              state.slots.end());
    }
    return message;
  }
  static std::vector<std::vector<float>> Tensors(const ShardValue& state) {
    std::vector<std::vector<float>> tensors = {Elements(state.values)};
    for (const Payload& slot : state.slots) tensors.push_back(Elements(slot));
    return tensors;
  }

  ClientCore::Effects Install(Clock clock, const std::vector<int32_t>& shards) {
    std::vector<ClientCore::InstalledShard> installed;
    for (const int32_t shard : shards)
      installed.push_back({ShardId{shard}, StateOf(shard)});
    client_->Install(clock, std::move(installed), now_, &effects_);
    return Take();
  }
  // "1.0: 0#1 v9 at 7 [0, 1, 2, 3] [10, 11, 12, 13] [20, 21, 22, 23]", in
  // messages.
  static std::vector<std::vector<std::string>> Installed(
      const ClientCore::Effects& effects) {
    std::vector<std::vector<std::string>> messages;
    for (const ClientSend& send : effects.sends) {
      std::vector<std::string>& lines = messages.emplace_back();
      const wire::PushRequest& request = send.message.header.push_request();
      EXPECT_EQ(request.phases(), 2);
      size_t frame = 0;
      for (const wire::Push& push : request.push()) {
        const wire::Push::Installation& installation = push.installation();
        lines.push_back(absl::StrCat(send.to.server, ".", send.to.thread, ": ",
                                     push.shard(), "#", push.seq()));
        if (push.has_gradient()) {
          absl::StrAppend(
              &lines.back(), " [",
              absl::StrJoin(Elements(send.message.payloads.at(frame++)), ", "),
              "]");
          continue;
        }
        absl::StrAppend(&lines.back(), " v", installation.version(), " at ",
                        push.clock());
        const auto first =
            send.message.payloads.begin() + static_cast<std::ptrdiff_t>(frame);
        const std::vector<Payload> frames(first, first + 3);
        for (const Payload& tensor : frames) {
          absl::StrAppend(&lines.back(), " [",
                          absl::StrJoin(Elements(tensor), ", "), "]");
        }
        EXPECT_EQ(installation.hash(),
                  StateHash(installation.version(), frames[0],
                            {frames[1], frames[2]}))
            << lines.back();
        frame += 3;
      }
      EXPECT_EQ(frame, send.message.payloads.size());
    }
    return messages;
  }
};

TEST_F(ClientStateTest, AStateIsPutTogetherFromItsParts) {
  const uint64_t id = client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  ASSERT_THAT(sent.sends, SizeIs(4)) << "two shards each";
  for (const ClientSend& send : sent.sends) {
    const wire::PullRequest& request = send.message.header.pull_request();
    EXPECT_TRUE(request.pull(0).has_state());
    EXPECT_EQ(request.pull(0).state().clock(), 5);
    EXPECT_EQ(request.phases(), 2);
  }
  Receive(kThread0, StateAnswerTo(sent.sends[0], {2}));
  Receive(kThread0, StateAnswerTo(sent.sends[0], {0}));
  Receive(kThread0, StateAnswerTo(sent.sends[1], {4, 6}));
  Receive(kThread1, StateAnswerTo(sent.sends[2], {3, 1}));
  const ClientCore::Effects done =
      Receive(kThread1, StateAnswerTo(sent.sends[3], {5, 7}));
  EXPECT_TRUE(done.failure.ok()) << done.failure;
  ASSERT_THAT(done.pulled, SizeIs(1));
  EXPECT_EQ(done.pulled[0].pull_id, id);
  for (int32_t shard = 0; shard < kShards; ++shard) {
    const ShardValue& state = done.pulled[0].shards.at(shard);
    EXPECT_EQ(Tensors(state), Tensors(StateOf(shard)));
    EXPECT_EQ(state.version, 9u);
  }
  EXPECT_EQ(client_->bytes_pulled(), 3 * kShards * kShardBytes);
}

TEST_F(ClientStateTest, TheWindowCountsSlotsToo) {
  options_.message_bytes = 1;
  options_.window_bytes = 7 * kShardBytes;
  Restart();
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_THAT(ShardsOf(sent), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(ShardsOf(Receive(kThread0, StateAnswerTo(sent.sends[0], {0}))),
              ElementsAre(4));
}

TEST_F(ClientStateTest, FingerprintsBelongToTheEntriesThatHaveThem) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message message = Refuse(sent.sends.at(0), 0, Outcome::kRetry);
  const Message second = StateAnswerTo(sent.sends[0], {2});
  message.header.mutable_pull_reply()->MergeFrom(second.header.pull_reply());
  message.payloads = second.payloads;
  const ClientCore::Effects effects = Receive(kThread0, message);
  EXPECT_TRUE(effects.failure.ok()) << effects.failure;
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0)) << "the other one is there";
}

TEST_F(ClientStateTest, OtherBitsThanThoseThatWereSentAreAFailure) {
  const auto state_of = [](Message& m) -> wire::PullAnswer::State& {
    return *m.header.mutable_pull_reply()->mutable_answer(0)->mutable_state();
  };
  const auto failure_after = [&](const std::function<void(Message&)>& spoil) {
    Restart();
    client_->PullState(5, now_, &effects_);
    const ClientCore::Effects sent = Take();
    Message answer = StateAnswerTo(sent.sends.at(0), {0});
    spoil(answer);
    return Receive(kThread0, answer).failure;
  };
  EXPECT_TRUE(failure_after([](Message&) {}).ok());
  const std::vector<std::function<void(Message&)>> spoils = {
      [](Message& m) {
        m.payloads[0] = Numbers({0, 1, 2, 4});
      },
      [](Message& m) {
        m.payloads[2] = Numbers({0, 0, 0, 0});
      },
      [&](Message& m) { state_of(m).mutable_values()->set_version(8); },
      [&](Message& m) { state_of(m).clear_hash(); },
  };
  for (const auto& spoil : spoils) {
    const absl::Status failure = failure_after(spoil);
    EXPECT_EQ(failure.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(failure.message()),
                AllOf(HasSubstr("server 0 thread 0"), HasSubstr("weight[0, 4)"),
                      HasSubstr("other bits arrived")));
  }
}

TEST_F(ClientStateTest, ASlotOfTheWrongSizeIsAFailure) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message answer = StateAnswerTo(sent.sends.at(0), {0});
  answer.payloads[2] = Numbers({1, 2, 3, 4, 5});
  answer.header.mutable_pull_reply()
      ->mutable_answer(0)
      ->mutable_state()
      ->set_hash(StateHash(9, answer.payloads[0],
                           {answer.payloads[1], answer.payloads[2]}));
  EXPECT_THAT(std::string(Receive(kThread0, answer).failure.message()),
              HasSubstr("with 20 bytes as FLOAT32; 16 as FLOAT32 are"));
}

TEST_F(ClientStateTest, AStateWithAnotherNumberOfSlotsThanItsTableIsAnError) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message answer = StateAnswerTo(sent.sends.at(0), {0});
  wire::PullAnswer::State& state =
      *answer.header.mutable_pull_reply()->mutable_answer(0)->mutable_state();
  state.set_slots(1);
  EXPECT_THAT(std::string(Receive(kThread0, answer).failure.message()),
              HasSubstr("with 1 optimizer slots, the table has 2"));
}

// Tables of different rules in one message: each answer says how many it has.
TEST_F(ClientStateTest, TheBytesOfAStateAreThoseOfEachTablesSlots) {
  view_.mutable_table(1)
      ->mutable_optimizer()
      ->mutable_momentum()
      ->set_learning_rate(1);
  Restart();
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  std::vector<std::vector<int32_t>> asked;
  for (const ClientSend& send : sent.sends)
    asked.push_back(slackline::ShardsOf(send.message.header.pull_request()));
  // Up to 6 tensors: two shards of three, or three of two.
  EXPECT_THAT(asked, ElementsAre(ElementsAre(0, 2), ElementsAre(4, 6),
                                 ElementsAre(1, 3), ElementsAre(5, 7)));
  Receive(kThread0, StateAnswerTo(sent.sends.at(0), {0, 2}));
  EXPECT_EQ(client_->bytes_pulled(), 6 * kShardBytes);
  Message answer = StateAnswerTo(sent.sends.at(1), {4});
  answer.payloads.pop_back();
  wire::PullAnswer::State& state =
      *answer.header.mutable_pull_reply()->mutable_answer(0)->mutable_state();
  state.set_slots(1);
  state.set_hash(StateHash(9, answer.payloads[0], {answer.payloads[1]}));
  EXPECT_TRUE(Receive(kThread0, answer).failure.ok());
  EXPECT_EQ(client_->bytes_pulled(), 8 * kShardBytes);
}

TEST_F(ClientStateTest, AStateIsAskedForWhereTheShardHasGone) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message moved;
  Relocate(kElsewhere, 7,
           AddAnswer(sent.sends.at(0), 2, &moved).mutable_refusal());
  const ClientCore::Effects effects = Receive(kThread0, moved);
  ASSERT_THAT(Sent(effects), ElementsAre("1.0: 2?"));
  const wire::Pull& pull =
      effects.sends[0].message.header.pull_request().pull(0);
  EXPECT_TRUE(pull.has_state());
  EXPECT_EQ(pull.state().clock(), 5);
  Receive(kElsewhere, StateAnswerTo(effects.sends[0], {2}));
  EXPECT_EQ(client_->bytes_pulled(), 3 * kShardBytes);
}

TEST_F(ClientStateTest, AStateThatCameAsAWholeIsSplit) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread0, StateAnswerTo(sent.sends.at(0), {0}));
  Split(0, 1);
  Show();
  Receive(kThread0, StateAnswerTo(sent.sends[0], {2}));
  Receive(kThread0, StateAnswerTo(sent.sends[1], {4, 6}));
  Receive(kThread1, StateAnswerTo(sent.sends[2], {1, 3}));
  const ClientCore::Effects done =
      Receive(kThread1, StateAnswerTo(sent.sends[3], {5, 7}));
  ASSERT_THAT(done.pulled, SizeIs(1));
  const ShardValue& kept = done.pulled[0].shards.at(0);
  const ShardValue& rest = done.pulled[0].shards.at(kShards);
  using Floats = std::vector<float>;
  EXPECT_THAT(Tensors(kept), ElementsAre(Floats{0}, Floats{10}, Floats{20}));
  EXPECT_THAT(Tensors(rest), ElementsAre(Floats{1, 2, 3}, Floats{11, 12, 13},
                                         Floats{21, 22, 23}));
  EXPECT_EQ(rest.version, 9u);
}

TEST_F(ClientStateTest, AStateUnderWayIsAskedForInParts) {
  client_->PullState(5, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Split(0, 1);
  Show();
  Receive(kThread0, Refuse(sent.sends.at(0), 0, Outcome::kMoved));
  const ClientCore::Effects again = Tick();
  ASSERT_THAT(Sent(again), ElementsAre("0.0: 0?", "0.0: 2?", "0.0: 8?"));
  EXPECT_TRUE(again.sends[0].message.header.pull_request().pull(0).has_state());
}

// ---- Installations ----------------------------------------------------------

TEST_F(ClientStateTest, AnInstallationGoesToTheOwnersWithItsFingerprint) {
  EXPECT_THAT(
      Installed(Install(7, {0, 1, 2, 4})),
      ElementsAre(ElementsAre("0.0: 0#1 v9 at 7 [0, 1, 2, 3] [10, 11, 12, 13] "
                              "[20, 21, 22, 23]",
                              "0.0: 2#1 v9 at 7 [200, 201, 202, 203] "
                              "[210, 211, 212, 213] [220, 221, 222, 223]"),
                  ElementsAre("0.0: 4#1 v9 at 7 [400, 401, 402, 403] "
                              "[410, 411, 412, 413] [420, 421, 422, 423]"),
                  ElementsAre("0.1: 1#1 v9 at 7 [100, 101, 102, 103] "
                              "[110, 111, 112, 113] [120, 121, 122, 123]")));
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * 3 * kShardBytes);
}

TEST_F(ClientStateTest, AnInstallationIsAcknowledgedAsPushesAre) {
  ClientCore::Effects effects = Install(7, {0, 1, 2, 4});
  Reply(kThread0, 0, 1);
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * 3 * kShardBytes)
      << "the other half of the message is missing";
  Reply(kThread0, 2, 1);
  EXPECT_EQ(client_->unacknowledged_bytes(), 2 * 3 * kShardBytes);
  AcknowledgeAll(std::move(effects));
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
  EXPECT_EQ(client_->bytes_pushed(), 4 * 3 * kShardBytes);
}

TEST_F(ClientStateTest, AnInstallationThatIsLostIsSentAgainAsItWas) {
  const auto sent = Installed(Install(7, {0}));
  EXPECT_EQ(Installed(Tick()), sent);
}

TEST_F(ClientStateTest, ARefusedInstallationIsPassedOn) {
  Install(7, {0});
  EXPECT_THAT(
      std::string(Reply(kThread0, 0, 0, Outcome::kRejected, "wrong bits")
                      .failure.message()),
      HasSubstr("wrong bits"));
}

TEST_F(ClientStateTest, TheNextPushIsOfTheInstalledClock) {
  Install(7, {0});
  EXPECT_THAT(std::string(TryPush(0, 0).message()),
              HasSubstr("expected clock 7"));
  PushNumbers(7, 0);
  const ClientCore::Effects effects = PushNumbers(7, 1);
  EXPECT_TRUE(
      effects.sends.at(0).message.header.push_request().push(0).has_gradient());
  EXPECT_THAT(Sent(effects).at(0), HasSubstr("0#2 [700, 701, 702, 703]"))
      << "the installation was the first";
}

TEST_F(ClientStateTest, WhoInstallsNothingStillGoesOnAtTheClock) {
  EXPECT_THAT(Install(7, {}).sends, IsEmpty());
  EXPECT_TRUE(TryPush(7, 0).ok());
}

TEST_F(ClientStateTest, MoreShardsMayFollowForTheSameClock) {
  Install(7, {0});
  const auto sent = Installed(Install(7, {3, 0}));
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_THAT(sent[0], ElementsAre(HasSubstr("0.1: 3#1 v9 at 7")));
  EXPECT_THAT(sent[1], ElementsAre(HasSubstr("0.0: 0#2 v9 at 7")));
}

TEST_F(ClientStateTest, AnInstallationFollowsItsShardBeforeLaterPushes) {
  Install(7, {2});
  PushNumbers(7, 0);
  PushNumbers(7, 1);
  EXPECT_THAT(
      Installed(Moved(kThread0, 2, kElsewhere, 5)),
      ElementsAre(ElementsAre("1.0: 2#1 v9 at 7 [200, 201, 202, 203] "
                              "[210, 211, 212, 213] [220, 221, 222, 223]",
                              "1.0: 2#2 [708, 709, 710, 711]")));
  EXPECT_EQ(client_->unacknowledged_bytes(), (3 + kShards) * kShardBytes);
}

TEST_F(ClientStateTest, AnInstallationOfASplitShardIsSplitAsItIs) {
  Install(7, {0, 2});
  Split(0, 1);
  Show();
  EXPECT_THAT(Installed(Tick()),
              ElementsAre(ElementsAre(
                  "0.0: 0#1 v9 at 7 [0] [10] [20]",
                  "0.0: 8#1 v9 at 7 [1, 2, 3] [11, 12, 13] [21, 22, 23]",
                  "0.0: 2#1 v9 at 7 [200, 201, 202, 203] "
                  "[210, 211, 212, 213] [220, 221, 222, 223]")));
  Reply(kThread0, 0, 1);
  Reply(kThread0, 2, 1);
  EXPECT_EQ(client_->unacknowledged_bytes(), 2 * 3 * kShardBytes);
  Reply(kThread0, 8, 1);
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
}

TEST_F(ClientStateTest, WhatIsSentSaysHowManyPhasesAndCutsTheWorkerKnows) {
  PushNumbers(0, 0);
  const wire::Header pushed = PushNumbers(0, 1).sends.at(0).message.header;
  EXPECT_EQ(pushed.push_request().phases(), 2);
  EXPECT_EQ(pushed.push_request().cuts(), 0);
  view_.add_phase()->set_from(9);
  view_.mutable_cut()->set_number(4);
  Show();
  client_->Pull(1, 1, now_, &effects_);
  const wire::Header pulled = Take().sends.at(0).message.header;
  EXPECT_EQ(pulled.pull_request().phases(), 3);
  EXPECT_EQ(pulled.pull_request().cuts(), 4);
}

}  // namespace slackline::client_core_state_test
