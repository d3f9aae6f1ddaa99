// Goal: what a worker's client sends, when it sends it again, and how much of
// it is on its way at once. Method: the shard threads are played by hand, on
// virtual time.
#include "worker/client/client_core.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two tables of 16 elements in shards of 4: shards 0 to 3 and 4 to 7. Even
// shards are on thread 0, odd ones on thread 1 of server 0.
constexpr int kShards = 8;
constexpr size_t kShardBytes = 16;
constexpr Owner kThread0{0, 0};
constexpr Owner kThread1{0, 1};

wire::View TestView() {
  wire::View view;
  view.set_number(2);
  view.set_state(wire::RUNNING);
  wire::ServerMember& server = *view.add_server();
  server.add_thread()->set_tcp("tcp://here:1");
  server.add_thread()->set_tcp("tcp://here:2");
  wire::WorkerMember& worker = *view.add_worker();
  worker.set_rank(1);
  worker.set_incarnation(11);
  for (const char* const name : {"weight", "bias"}) {
    wire::Table& table = *view.add_table();
    table.set_name(name);
    table.add_shape(16);
    table.set_shard_elements(4);
    table.set_first_shard((view.table_size() - 1) * 4);
  }
  for (int shard = 0; shard < kShards; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(shard % 2);
  }
  return view;
}

class ClientCoreTest : public ::testing::Test {
 protected:
  ClientCoreTest() {
    options_.rank = Rank{1};
    options_.incarnation = 11;
    options_.window_bytes = 4096;
    options_.message_bytes = 1;  // A message for each shard.
    options_.retry_initial = absl::Milliseconds(100);
    options_.retry_max = absl::Milliseconds(400);
    options_.refused_delay = absl::Milliseconds(2);
    Restart();
  }
  void Restart() { client_.emplace(options_, *View::Create(TestView())); }

  absl::Status TryPush(Clock clock, int table, size_t bytes = 4 * kShardBytes) {
    std::vector<float> gradient(bytes / sizeof(float),
                                static_cast<float>(clock));
    return client_->Push(clock, TableId{table},
                         Payload::Copy(gradient.data(), bytes), versions_, now_,
                         &effects_);
  }
  ClientCore::Effects Push(Clock clock, int table) {
    EXPECT_TRUE(TryPush(clock, table).ok());
    return Take();
  }
  ClientCore::Effects Take() {
    return std::exchange(effects_, ClientCore::Effects());
  }

  ClientCore::Effects Receive(Owner from, const Message& message) {
    client_->OnMessage(from, message, now_, &effects_);
    return Take();
  }
  ClientCore::Effects Reply(Owner from, int32_t shard, uint64_t acked,
                            wire::Code code = wire::OK,
                            const std::string& error = "") {
    Message message;
    wire::PushReply& reply = *message.header.mutable_push_reply();
    reply.add_shard(shard);
    reply.add_acked_seq(acked);
    reply.add_code(code);
    reply.set_error(error);
    return Receive(from, message);
  }

  // Moves to the next wake-up.
  ClientCore::Effects Tick() {
    now_ = std::max(now_, client_->NextWakeup());
    client_->OnTick(now_, &effects_);
    return Take();
  }
  absl::Duration Elapsed() const { return now_ - absl::UnixEpoch(); }

  // The shards of the pushes or pulls that were sent, in order.
  static std::vector<int32_t> ShardsOf(const ClientCore::Effects& effects) {
    std::vector<int32_t> shards;
    for (const ClientCore::Send& send : effects.sends) {
      const wire::Header& header = send.message.header;
      const auto& sent = header.has_push_request()
                             ? header.push_request().shard()
                             : header.pull_request().shard();
      shards.insert(shards.end(), sent.begin(), sent.end());
    }
    return shards;
  }

  // An answer with these shards of a pull that was sent.
  static Message AnswerTo(const ClientCore::Send& send,
                          const std::vector<int32_t>& shards,
                          Version version = 3) {
    Message message;
    wire::PullReply& reply = *message.header.mutable_pull_reply();
    reply.set_request_id(send.message.header.pull_request().request_id());
    for (const int32_t shard : shards) {
      reply.add_shard(shard);
      reply.add_code(wire::OK);
      reply.add_version(version);
      reply.add_shard_clock(2);
      message.payloads.push_back(Payload::Allocate(kShardBytes));
    }
    return message;
  }
  static Message CodeFor(const ClientCore::Send& send, int32_t shard,
                         wire::Code code) {
    Message message;
    wire::PullReply& reply = *message.header.mutable_pull_reply();
    reply.set_request_id(send.message.header.pull_request().request_id());
    reply.add_shard(shard);
    reply.add_code(code);
    reply.add_version(0);
    reply.add_shard_clock(0);
    return message;
  }

  ClientCore::Options options_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Version> versions_ = std::vector<Version>(kShards, 5);
  std::optional<ClientCore> client_;
  ClientCore::Effects effects_;
};

// ---- Push -------------------------------------------------------------------

TEST_F(ClientCoreTest, ATableIsCutIntoItsShardsForTheirOwners) {
  const ClientCore::Effects effects = Push(0, 0);
  ASSERT_THAT(effects.sends, SizeIs(4));
  for (const ClientCore::Send& send : effects.sends) {
    const wire::PushRequest& push = send.message.header.push_request();
    ASSERT_EQ(push.shard_size(), 1);
    EXPECT_EQ(send.to, (Owner{0, push.shard(0) % 2}));
    EXPECT_EQ(push.seq(0), 1u);
    EXPECT_EQ(push.base_version(0), 5u);
    EXPECT_EQ(send.message.payloads.at(0).size(), kShardBytes);
  }
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * kShardBytes);
}

TEST_F(ClientCoreTest, AMessageIsClosedAtItsSizeOrAtTheEndOfTheClock) {
  options_.message_bytes = 3 * kShardBytes;
  Restart();
  EXPECT_THAT(Push(0, 1).sends, IsEmpty())
      << "two shards for each thread so far";
  const ClientCore::Effects effects = Push(0, 0);
  EXPECT_THAT(effects.sends, SizeIs(4));
  EXPECT_THAT(effects.sends.at(0).message.header.push_request().shard(),
              ElementsAre(4, 6, 0));
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

TEST_F(ClientCoreTest, AMessageLargerThanTheWindowGoesAlone) {
  options_.window_bytes = kShardBytes / 2;
  Restart();
  EXPECT_THAT(ShardsOf(Push(0, 0)), ElementsAre(0, 1));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(2));
}

TEST_F(ClientCoreTest, SilenceIsFollowedByAllUnacknowledgedPushesInOrder) {
  Push(0, 0);
  Reply(kThread1, 1, 1);
  Reply(kThread1, 3, 1);
  Reply(kThread0, 2, 1);  // The earlier one to shard 0 is still open.
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0, 2));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(100));
  EXPECT_EQ(client_->retries(), 2u);
  Reply(kThread0, 0, 1);
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(ClientCoreTest, RepetitionsBackOffToTheirMaximum) {
  Push(0, 0);
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 5; ++i) {
    const absl::Time before = now_;
    EXPECT_THAT(Tick().sends, SizeIs(4));
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(100), absl::Milliseconds(200),
                          absl::Milliseconds(400), absl::Milliseconds(400),
                          absl::Milliseconds(400)));
}

TEST_F(ClientCoreTest, ProgressEndsTheBackOff) {
  Push(0, 0);
  Tick();
  Tick();
  Reply(kThread0, 0, 1);
  Reply(kThread1, 1, 1);
  EXPECT_EQ(client_->NextWakeup(), now_ + absl::Milliseconds(100));
}

TEST_F(ClientCoreTest, ARefusedPushIsSentAgainSoonWithThoseBehindIt) {
  Push(0, 0);
  EXPECT_THAT(Reply(kThread0, 2, 0, wire::RETRY).sends, IsEmpty());
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0, 2));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2));
}

TEST_F(ClientCoreTest, ALateRefusalOfWhatIsAcknowledgedMeansNothing) {
  Push(0, 0);
  Reply(kThread0, 0, 1);
  Reply(kThread0, 2, 1);
  Reply(kThread0, 2, 0, wire::RETRY);
  EXPECT_EQ(client_->NextWakeup(), now_ + absl::Milliseconds(100))
      << "of thread 1";
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
  EXPECT_EQ(Push(1, 0).sends.at(0).message.header.push_request().seq(0), 2u);
}

// ---- Pull -------------------------------------------------------------------

TEST_F(ClientCoreTest, APullIsPutTogetherFromItsParts) {
  options_.message_bytes = 4096;
  Restart();
  const uint64_t id = client_->Pull(3, 2, now_, &effects_);
  const ClientCore::Effects sent = Take();
  ASSERT_THAT(sent.sends, SizeIs(2));
  EXPECT_EQ(sent.sends[0].message.header.pull_request().clock(), 3);
  EXPECT_EQ(sent.sends[0].message.header.pull_request().own_clock(), 2);
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
  for (const ClientCore::ShardValue& value : done.pulled[0].shards)
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

TEST_F(ClientCoreTest, AParkedPullNamesForWhomItWaitsAndIsNoRetry) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  now_ += absl::Milliseconds(30);
  EXPECT_THAT(client_->WaitingFor(now_),
              HasSubstr("weight[0, 4) at clock 1 from server 0 thread 0 "
                        "(tcp://here:1) has no "
                        "answer for 30ms"));
  Receive(kThread1, AnswerTo(sent.sends[1], {1, 3, 5, 7}));
  Tick();
  EXPECT_EQ(client_->retries(), 1u);
  Message parked = CodeFor(sent.sends[0], 0, wire::PARKED);
  parked.header.mutable_pull_reply()->set_waiting_rank(3);
  Receive(kThread0, parked);
  EXPECT_EQ(client_->retries(), 0u);
  EXPECT_THAT(client_->WaitingFor(now_),
              HasSubstr("waits for rank 3, whose clock is 0"));
}

TEST_F(ClientCoreTest, ARefusedPullIsSentAgainSoon) {
  options_.message_bytes = 4096;
  Restart();
  client_->JoinPull(now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_TRUE(sent.sends.at(0).message.header.pull_request().join());
  Receive(kThread0, CodeFor(sent.sends[0], 0, wire::RETRY));
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2));
}

// ---- Start, views, failures -------------------------------------------------

TEST_F(ClientCoreTest, StartsAtTheLargestClockAndDeclaresItWhereAShardLags) {
  ClientCore::PullResult joined;
  joined.shards.resize(kShards);
  for (int shard = 0; shard < kShards; ++shard) {
    joined.shards[shard].shard_clock = shard == 4 ? 6 : 7;
  }
  EXPECT_EQ(client_->StartAt(joined, now_, &effects_), 7);
  const ClientCore::Effects effects = Take();
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::PushRequest& push =
      effects.sends[0].message.header.push_request();
  EXPECT_TRUE(push.advance());
  EXPECT_EQ(push.clock(), 7);
  EXPECT_THAT(push.shard(), ElementsAre(4));
  EXPECT_THAT(effects.sends[0].message.payloads, IsEmpty());
  EXPECT_FALSE(TryPush(0, 0).ok());
  Push(7, 0);
  const ClientCore::Effects second = Push(7, 1);
  EXPECT_EQ(second.sends.at(0).message.header.push_request().shard(0), 4);
  EXPECT_EQ(second.sends.at(0).message.header.push_request().seq(0), 2u)
      << "the declaration was the first";
}

TEST_F(ClientCoreTest, WhoIsNoMemberAnyMoreIsFenced) {
  Push(0, 0);
  EXPECT_TRUE(Reply(kThread0, 0, 0, wire::FENCED).fenced);
  wire::View without = TestView();
  without.set_number(3);
  without.clear_worker();
  client_->OnView(*View::Create(without), absl::UnixEpoch(), &effects_);
  EXPECT_TRUE(Take().fenced);
}

TEST_F(ClientCoreTest, ARefusalIsPassedOnWithTheServersReason) {
  Push(0, 0);
  const ClientCore::Effects effects =
      Reply(kThread0, 2, 0, wire::REJECTED, "its next clock is 4");
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
              HasSubstr("with 12 bytes, the shard has 16"));
}

TEST_F(ClientCoreTest, AnswersThatMakeNoSenseAreSurvived) {
  Push(0, 0);
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Message reply;
  reply.header.mutable_push_reply()->add_shard(0);  // No code, no number.
  Receive(kThread0, reply);
  Reply(kThread0, 99, 1);
  Reply(kThread0, -1, 1);
  Message answer = AnswerTo(sent.sends[0], {0});
  answer.payloads.clear();
  Receive(kThread0, answer);
  answer = AnswerTo(sent.sends[0], {99});
  Receive(kThread0, answer);
  answer = AnswerTo(sent.sends[0], {0});
  answer.header.mutable_pull_reply()->clear_version();
  EXPECT_TRUE(Receive(kThread0, answer).failure.ok());
  EXPECT_EQ(client_->unacknowledged_bytes(), 4 * kShardBytes);
  EXPECT_EQ(client_->bytes_pulled(), 0u);
}

}  // namespace
}  // namespace slackline
