// Goal: what a worker's client sends, where to, when it sends it again, and how
// much of it is on its way at once, also while shards move and are cut in two.
// Method: the shard threads are played by hand, on virtual time.
#include "worker/client/client_core.h"

#include <cstring>
#include <functional>
#include <map>
#include <memory>
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
  *view.add_phase()->mutable_mode() = ModeOf("asp");
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
  void Restart() {
    client_.emplace(options_, *View::Create(TestView()));
    accepted_.clear();
  }

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
    for (const ClientCore::Send& send : effects_.sends) {
      const wire::PushRequest& push = send.message.header.push_request();
      for (const wire::Push& fact : push.push())
        sent_as_[{send.to, fact.shard()}] = push.request_id();
    }
    return std::exchange(effects_, ClientCore::Effects());
  }

  ClientCore::Effects Receive(Owner from, const Message& message) {
    client_->OnMessage(from, message, now_, &effects_);
    return Take();
  }
  ClientCore::Effects Reply(Owner from, int32_t shard, uint64_t acked,
                            Outcome outcome = Outcome::kOk,
                            const std::string& error = "") {
    Message message;
    wire::PushReply& reply = *message.header.mutable_push_reply();
    reply.set_request_id(sent_as_[{from, shard}]);
    wire::PushAnswer& answer = *reply.add_answer();
    answer.set_shard(shard);
    answer.set_accepted_seq(acked);
    if (outcome == Outcome::kOk) {
      accepted_[shard] = acked;
    } else {
      *answer.mutable_refusal() = RefusalOf(outcome, error);
    }
    return Receive(from, message);
  }
  // As a shard thread that has accepted what Reply() has acknowledged.
  ClientCore::Effects ReplyToProbe(const ClientCore::Send& send) {
    const wire::ProbeRequest& probe = send.message.header.probe_request();
    Message message;
    wire::ProbeReply& reply = *message.header.mutable_probe_reply();
    reply.set_request_id(probe.request_id());
    for (const int32_t shard : probe.shard()) {
      wire::ProbeAnswer& answer = *reply.add_answer();
      answer.set_shard(shard);
      answer.set_accepted_seq(accepted_[shard]);
    }
    return Receive(send.to, message);
  }
  static bool IsProbe(const ClientCore::Send& send) {
    return send.message.header.has_probe_request();
  }

  // Moves to the next wake-up.
  ClientCore::Effects Wake() {
    now_ = std::max(now_, client_->NextWakeup());
    client_->OnTick(now_, &effects_);
    return Take();
  }
  // The same; probes are answered at once.
  ClientCore::Effects Tick() {
    ClientCore::Effects woken = Wake();
    ClientCore::Effects all;
    for (ClientCore::Send& send : woken.sends) {
      if (!IsProbe(send)) {
        all.sends.push_back(std::move(send));
        continue;
      }
      for (ClientCore::Send& more : ReplyToProbe(send).sends)
        all.sends.push_back(std::move(more));
    }
    return all;
  }
  absl::Duration Elapsed() const { return now_ - absl::UnixEpoch(); }

  // The shards of the pushes or pulls that were sent, in order.
  static std::vector<int32_t> ShardsOf(const ClientCore::Effects& effects) {
    std::vector<int32_t> shards;
    for (const ClientCore::Send& send : effects.sends) {
      const wire::Header& header = send.message.header;
      const std::vector<int32_t> sent =
          header.has_push_request()
              ? slackline::ShardsOf(header.push_request().push())
              : slackline::ShardsOf(header.pull_request());
      shards.insert(shards.end(), sent.begin(), sent.end());
    }
    return shards;
  }

  // An answer with these shards of a pull that was sent.
  static Message AnswerTo(const ClientCore::Send& send,
                          const std::vector<int32_t>& shards,
                          Version version = 3) {
    Message message;
    for (const int32_t shard : shards) {
      wire::PullAnswer& answer = AddAnswer(send, shard, &message);
      answer.mutable_values()->set_version(version);
      answer.mutable_values()->set_shard_clock(2);
      message.payloads.push_back(Payload::Allocate(kShardBytes));
    }
    return message;
  }
  static wire::PullAnswer& AddAnswer(const ClientCore::Send& send,
                                     int32_t shard, Message* message) {
    wire::PullAnswer& answer =
        *message->header.mutable_pull_reply()->add_answer();
    answer.set_pull(send.message.header.pull_request().pull(0).id());
    answer.set_shard(shard);
    return answer;
  }
  static Message Refuse(const ClientCore::Send& send, int32_t shard,
                        Outcome outcome) {
    Message message;
    *AddAnswer(send, shard, &message).mutable_refusal() = RefusalOf(outcome);
    return message;
  }
  static Message Parked(const ClientCore::Send& send, int32_t shard, int rank,
                        Clock clock = 0) {
    Message message;
    wire::PullAnswer& answer = AddAnswer(send, shard, &message);
    answer.mutable_parked()->set_rank(rank);
    answer.mutable_parked()->set_clock(clock);
    return message;
  }

  ClientCore::Options options_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Version> versions_ = std::vector<Version>(kShards, 5);
  std::optional<ClientCore> client_;
  ClientCore::Effects effects_;
  std::map<std::pair<Owner, int32_t>, uint64_t> sent_as_;
  std::map<int32_t, uint64_t> accepted_;  // By shard.
};

// ---- Push -------------------------------------------------------------------

TEST_F(ClientCoreTest, ATableIsCutIntoItsShardsForTheirOwners) {
  const ClientCore::Effects effects = Push(0, 0);
  ASSERT_THAT(effects.sends, SizeIs(4));
  for (const ClientCore::Send& send : effects.sends) {
    const wire::PushRequest& push = send.message.header.push_request();
    ASSERT_EQ(push.push_size(), 1);
    EXPECT_EQ(send.to, (Owner{0, push.push(0).shard() % 2}));
    EXPECT_EQ(push.push(0).seq(), 1u);
    EXPECT_EQ(push.push(0).gradient(), 5u);
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
  EXPECT_THAT(slackline::ShardsOf(
                  effects.sends.at(0).message.header.push_request().push()),
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

TEST_F(ClientCoreTest, SilenceIsFollowedByAProbeAndNoGradient) {
  Push(0, 0);
  Reply(kThread1, 1, 1);
  Reply(kThread1, 3, 1);
  const ClientCore::Effects effects = Wake();
  EXPECT_EQ(Elapsed(), absl::Milliseconds(100));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].to, kThread0);
  EXPECT_THAT(effects.sends[0].message.header.probe_request().shard(),
              ElementsAre(0, 2));
  EXPECT_THAT(effects.sends[0].message.payloads, IsEmpty());
  EXPECT_EQ(client_->bytes_resent(), 0u);
  EXPECT_EQ(client_->retries(), 0u);
}

TEST_F(ClientCoreTest, WhatAProbeShowsToBeMissingIsSentAgainOnceInOrder) {
  Push(0, 0);
  Push(0, 1);
  const ClientCore::Effects probes = Wake();
  ASSERT_THAT(probes.sends, SizeIs(2));
  accepted_[2] = 1;  // Its acknowledgement was lost.
  EXPECT_THAT(ShardsOf(ReplyToProbe(probes.sends[0])), ElementsAre(0, 4, 6));
  EXPECT_EQ(client_->unacknowledged_bytes(), 7 * kShardBytes);
  EXPECT_EQ(client_->bytes_resent(), 3 * kShardBytes);
  EXPECT_EQ(client_->bytes_pushed(), 8 * kShardBytes);
  EXPECT_EQ(client_->retries(), 3u);
  EXPECT_THAT(ReplyToProbe(probes.sends[0]).sends, IsEmpty())
      << "the reply came twice, and knows nothing of what was sent since";
}

TEST_F(ClientCoreTest, ANewPushIsNotMissingFromTheReplyToAnOlderProbe) {
  Push(0, 0);
  const ClientCore::Effects probes = Wake();
  Push(0, 1);
  EXPECT_THAT(ShardsOf(ReplyToProbe(probes.sends.at(0))), ElementsAre(0, 2));
}

TEST_F(ClientCoreTest, AProbeThatCannotBeAnsweredYetIsAskedAgainLater) {
  Push(0, 0);
  for (const int32_t shard : {1, 3}) Reply(kThread1, shard, 1);
  ClientCore::Effects probes = Wake();
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 4; ++i) {
    Message message;
    wire::ProbeReply& reply = *message.header.mutable_probe_reply();
    const wire::ProbeRequest& probe =
        probes.sends.at(0).message.header.probe_request();
    reply.set_request_id(probe.request_id());
    for (const int32_t shard : probe.shard()) {
      wire::ProbeAnswer& answer = *reply.add_answer();
      answer.set_shard(shard);
      answer.mutable_refusal()->mutable_retry();
    }
    EXPECT_THAT(Receive(kThread0, message).sends, IsEmpty());
    const absl::Time before = now_;
    probes = Wake();
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(200), absl::Milliseconds(400),
                          absl::Milliseconds(400), absl::Milliseconds(400)));
  EXPECT_EQ(client_->bytes_resent(), 0u);
}

TEST_F(ClientCoreTest, AProbeOlderThanAllPushesInFlightIsNoReasonToBackOff) {
  Push(0, 0);
  const ClientCore::Effects probes = Wake();
  for (const int32_t shard : {0, 2}) Reply(kThread0, shard, 1);
  Push(0, 1);
  for (const int32_t shard : {1, 3, 5, 7}) Reply(kThread1, shard, 1);
  for (const ClientCore::Send& probe : probes.sends) ReplyToProbe(probe);
  // RFC 6298 with the samples 100, 100 and 0 ms, not doubled.
  EXPECT_EQ(client_->NextWakeup(),
            now_ + absl::Microseconds(87'500) + 4 * absl::Microseconds(53'125));
}

TEST_F(ClientCoreTest, UnansweredProbesBackOffToTheirMaximum) {
  Push(0, 0);
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 5; ++i) {
    const absl::Time before = now_;
    for (const ClientCore::Send& send : Wake().sends)
      EXPECT_TRUE(IsProbe(send));
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(100), absl::Milliseconds(100),
                          absl::Milliseconds(200), absl::Milliseconds(400),
                          absl::Milliseconds(400)));
}

TEST_F(ClientCoreTest, APushThatALaterOneOvertookIsProbedAtOnce) {
  Push(0, 0);
  const ClientCore::Effects probe = Reply(kThread0, 2, 1);
  ASSERT_THAT(probe.sends, SizeIs(1));
  EXPECT_THAT(probe.sends[0].message.header.probe_request().shard(),
              ElementsAre(0));
  EXPECT_THAT(ShardsOf(ReplyToProbe(probe.sends[0])), ElementsAre(0));
  EXPECT_EQ(Elapsed(), absl::ZeroDuration());
}

TEST_F(ClientCoreTest, TheTimeOutFollowsTheRoundTripsOfEachThread) {
  Push(0, 0);
  now_ += absl::Milliseconds(90);
  for (const int32_t shard : {0, 2}) Reply(kThread0, shard, 1);
  for (const int32_t shard : {1, 3}) Reply(kThread1, shard, 1);
  Push(0, 1);
  now_ += absl::Milliseconds(90);
  for (const int32_t shard : {5, 7}) Reply(kThread1, shard, 1);
  // RFC 6298: SRTT 90 ms; RTTVAR 45 ms, then 33.75 ms. No more for thread 0.
  const absl::Time sent = now_ - absl::Milliseconds(90);
  EXPECT_EQ(client_->NextWakeup(),
            sent + absl::Milliseconds(90) + 4 * absl::Microseconds(33750));
  EXPECT_THAT(Wake().sends, SizeIs(1));
}

TEST_F(ClientCoreTest, AServerThatStoodStillDoesNotStretchTheNextTimeOut) {
  Push(0, 0);
  now_ += absl::Minutes(2);
  for (const int32_t shard : {0, 2}) Reply(kThread0, shard, 1);
  for (const int32_t shard : {1, 3}) Reply(kThread1, shard, 1);
  Push(0, 1);
  EXPECT_EQ(client_->NextWakeup(), now_ + options_.retry_max);
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

TEST_F(ClientCoreTest, ProgressEndsTheBackOff) {
  Push(0, 0);
  Tick();
  Tick();
  Reply(kThread0, 0, 1);
  Reply(kThread1, 1, 1);
  EXPECT_EQ(client_->NextWakeup(), now_ + absl::Milliseconds(100));
}

TEST_F(ClientCoreTest, OfRefusedPushesTheFirstIsTriedSoonAndTheOthersFollowIt) {
  Push(0, 0);
  Push(0, 1);
  for (const int32_t shard : {0, 2, 4, 6})
    EXPECT_THAT(Reply(kThread0, shard, 0, Outcome::kRetry).sends, IsEmpty());
  EXPECT_THAT(ShardsOf(Tick()), ElementsAre(0));
  EXPECT_EQ(Elapsed(), absl::Milliseconds(2));
  EXPECT_THAT(ShardsOf(Reply(kThread0, 0, 1)), ElementsAre(2, 4, 6));
  EXPECT_EQ(client_->bytes_resent(), 4 * kShardBytes);
}

TEST_F(ClientCoreTest, TrialsBackOffAndStartFromTheRefusal) {
  options_.retry_initial = options_.retry_max = absl::Milliseconds(30);
  Restart();
  Push(0, 0);
  for (const int32_t shard : {1, 3}) Reply(kThread1, shard, 1);
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 6; ++i) {
    now_ += absl::Milliseconds(10);  // The link's round trip.
    Reply(kThread0, 0, 0, Outcome::kRetry);
    Reply(kThread0, 2, 1);
    const absl::Time refused = now_;
    EXPECT_THAT(ShardsOf(Wake()), ElementsAre(0));
    gaps.push_back(now_ - refused);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(2), absl::Milliseconds(4),
                          absl::Milliseconds(8), absl::Milliseconds(16),
                          absl::Milliseconds(30), absl::Milliseconds(30)));
  EXPECT_EQ(client_->bytes_resent(), 6 * kShardBytes);
}

TEST_F(ClientCoreTest, ARefusalOfAnEarlierTransmissionMeansNothing) {
  Push(0, 0);
  const uint64_t first = sent_as_[{kThread0, 0}];
  Reply(kThread0, 0, 0, Outcome::kRetry);
  Tick();
  sent_as_[{kThread0, 0}] = first;
  Reply(kThread0, 0, 0, Outcome::kRetry);
  EXPECT_GT(client_->NextWakeup(), now_ + absl::Milliseconds(50));
}

TEST_F(ClientCoreTest, APushBehindAMissingOneWaitsForIt) {
  Push(0, 0);
  Push(0, 1);
  Push(1, 0);
  const uint64_t second = sent_as_[{kThread0, 0}];
  Message message;
  wire::PushReply& reply = *message.header.mutable_push_reply();
  reply.set_request_id(second);
  reply.add_answer()->mutable_refusal()->mutable_retry();  // Of shard 0.
  const ClientCore::Effects probe = Receive(kThread0, message);
  ASSERT_THAT(probe.sends, SizeIs(1)) << "the first one was overtaken";
  EXPECT_TRUE(IsProbe(probe.sends[0]));
  for (const int32_t shard : {2, 4, 6}) accepted_[shard] = 1;
  accepted_[2] = 2;
  EXPECT_THAT(ShardsOf(ReplyToProbe(probe.sends[0])), ElementsAre(0, 0))
      << "both, in order, and nothing else";
}

TEST_F(ClientCoreTest, ANewViewLetsRefusedPushesGoSoon) {
  Push(0, 0);
  for (int i = 0; i < 8; ++i) {
    Reply(kThread0, 0, 0, Outcome::kRetry);
    now_ = client_->NextWakeup();
    Tick();
  }
  Reply(kThread0, 0, 0, Outcome::kRetry);
  wire::View view = TestView();
  view.set_number(3);
  client_->OnView(*View::Create(view), now_, &effects_);
  EXPECT_EQ(client_->NextWakeup(), now_ + absl::Milliseconds(2));
}

TEST_F(ClientCoreTest, ALateRefusalOfWhatIsAcknowledgedMeansNothing) {
  Push(0, 0);
  Reply(kThread0, 0, 1);
  Reply(kThread0, 2, 1);
  Reply(kThread0, 2, 0, Outcome::kRetry);
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
  EXPECT_EQ(Push(1, 0).sends.at(0).message.header.push_request().push(0).seq(),
            2u);
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

// A repeated question would be answered with the whole payload once more.
TEST_F(ClientCoreTest, ALateAnswerIsProbedAndNotAskedForAgain) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  const ClientCore::Effects probe = Wake();
  ASSERT_THAT(probe.sends, SizeIs(1));
  EXPECT_TRUE(IsProbe(probe.sends[0]));
  // It stood in a queue, before the reply to the probe.
  EXPECT_THAT(Receive(kThread0, AnswerTo(sent.sends[0], {0, 2, 4, 6})).pulled,
              SizeIs(1));
  EXPECT_THAT(ReplyToProbe(probe.sends[0]).sends, IsEmpty());
  EXPECT_EQ(client_->retries(), 0u);
  EXPECT_EQ(client_->NextWakeup(), absl::InfiniteFuture());
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
  const ClientCore::Waiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientCore::Waiting::Kind::kWorkers);
  EXPECT_EQ(waiting.rank, Rank{3});
  EXPECT_EQ(waiting.clock, 1);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(10))
      << "its clock has moved";
}

TEST_F(ClientCoreTest, AServerThatIsSilentForLongOutweighsAParkedPull) {
  options_.message_bytes = 4096;
  Restart();
  EXPECT_EQ(client_->WaitingFor(now_).kind,
            ClientCore::Waiting::Kind::kNothing);
  client_->Pull(1, 1, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread0, Parked(sent.sends.at(0), 0, 3));
  now_ += absl::Milliseconds(400);
  EXPECT_EQ(client_->WaitingFor(now_).kind,
            ClientCore::Waiting::Kind::kWorkers);
  now_ += absl::Milliseconds(1);
  const ClientCore::Waiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientCore::Waiting::Kind::kServer);
  EXPECT_EQ(waiting.server, 0);
  EXPECT_EQ(waiting.clock, 1);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(401));
  EXPECT_THAT(waiting.text, HasSubstr("weight[4, 8) at clock 1 from server 0 "
                                      "thread 1 (tcp://here:2) has no answer"));
}

TEST_F(ClientCoreTest, PushesWithoutAnAnswerAreWaitedFor) {
  Push(0, 0);
  now_ += absl::Milliseconds(70);
  const ClientCore::Waiting waiting = client_->WaitingFor(now_);
  EXPECT_EQ(waiting.kind, ClientCore::Waiting::Kind::kServer);
  EXPECT_EQ(waiting.server, 0);
  EXPECT_EQ(waiting.rank, std::nullopt);
  EXPECT_EQ(waiting.since_progress, absl::Milliseconds(70));
  EXPECT_THAT(waiting.text, HasSubstr("pushes of clock 0"));
}

TEST_F(ClientCoreTest, PullsThatAreRefusedAgainAndAgainBackOff) {
  options_.message_bytes = 4096;
  Restart();
  client_->Pull(0, 0, now_, &effects_);
  const ClientCore::Effects sent = Take();
  Receive(kThread1, AnswerTo(sent.sends.at(1), {1, 3, 5, 7}));
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 4; ++i) {
    for (const int32_t shard : {0, 2, 4, 6})
      Receive(kThread0, Refuse(sent.sends[0], shard, Outcome::kRetry));
    const absl::Time before = now_;
    EXPECT_THAT(Wake().sends, SizeIs(1)) << "once for all of them";
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps, ElementsAre(absl::Milliseconds(2), absl::Milliseconds(4),
                                absl::Milliseconds(8), absl::Milliseconds(16)));
}

TEST_F(ClientCoreTest, ARefusedPullIsSentAgainSoon) {
  options_.message_bytes = 4096;
  Restart();
  client_->JoinPull(now_, &effects_);
  const ClientCore::Effects sent = Take();
  EXPECT_TRUE(
      sent.sends.at(0).message.header.pull_request().pull(0).has_join());
  Receive(kThread0, Refuse(sent.sends[0], 0, Outcome::kRetry));
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
  for (const ClientCore::Send& send : effects.sends) {
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
  for (const ClientCore::Send& send : Wake().sends)
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
              HasSubstr("with 12 bytes, the shard has 16"));
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

// ---- Small pushes
// -------------------------------------------------------------

TEST_F(ClientCoreTest, SmallPushesShareAMessageOnceSeveralAreUnanswered) {
  options_.message_bytes = 4096;
  options_.small_messages_max = 2;
  Restart();
  std::vector<uint64_t> requests;
  for (Clock clock = 0; clock < 6; ++clock) {
    Push(clock, 0);
    for (const ClientCore::Send& send : Push(clock, 1).sends) {
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

// A shard thread refuses a probe of too many shards, which ends the worker.
TEST_F(ClientCoreTest, AProbeAsksAboutTheOldestPushesFirst) {
  options_.probe_shards_max = 2;
  Restart();
  for (const int table : {0, 1}) Push(0, table);
  for (const int32_t shard : {1, 3, 5, 7}) Reply(kThread1, shard, 1);
  const ClientCore::Effects probe = Wake();
  ASSERT_THAT(probe.sends, SizeIs(1));
  EXPECT_THAT(probe.sends[0].message.header.probe_request().shard(),
              ElementsAre(0, 2));
  for (const int32_t shard : {0, 2}) accepted_[shard] = 1;
  EXPECT_THAT(ReplyToProbe(probe.sends[0]).sends, IsEmpty());
  const ClientCore::Effects next = Wake();
  ASSERT_THAT(next.sends, SizeIs(1));
  EXPECT_THAT(next.sends[0].message.header.probe_request().shard(),
              ElementsAre(4, 6));
  EXPECT_THAT(ShardsOf(ReplyToProbe(next.sends[0])), ElementsAre(4, 6));
}

TEST_F(ClientCoreTest, PushesOfSeveralClocksInOneMessageAreSentAgainInOrder) {
  options_.message_bytes = 4096;
  options_.small_messages_max = 1;
  Restart();
  for (Clock clock = 0; clock < 3; ++clock) {
    for (const int table : {0, 1}) Push(clock, table);
  }
  for (const int32_t shard : {1, 3, 5, 7}) Reply(kThread1, shard, 1);
  for (const int32_t shard : {0, 2, 4, 6}) Reply(kThread0, shard, 1);
  Reply(kThread0, 2, 1, Outcome::kRetry);  // Its second clock is too early.
  for (const int32_t shard : {0, 4, 6}) Reply(kThread0, shard, 3);
  for (const int32_t shard : {1, 3, 5, 7}) Reply(kThread1, shard, 3);
  const ClientCore::Effects again = Tick();
  ASSERT_THAT(again.sends, SizeIs(1));
  const auto& pushes = again.sends[0].message.header.push_request().push();
  ASSERT_EQ(pushes.size(), 2);
  EXPECT_EQ(pushes[0].seq(), 2u);
  EXPECT_EQ(pushes[1].seq(), 3u);
  Reply(kThread0, 2, 3);
  EXPECT_EQ(client_->unacknowledged_bytes(), 0u);
}

// ---- Moves ------------------------------------------------------------------

constexpr Owner kElsewhere{1, 0};

// The same job with server 1, which owns nothing yet.
class ClientMoveTest : public ClientCoreTest {
 protected:
  ClientMoveTest() : view_(TestView()) {
    wire::ServerMember& server = *view_.add_server();
    server.set_index(1);
    server.add_thread()->set_tcp("tcp://there:1");
    Restart();
  }
  void Restart() { client_.emplace(options_, *View::Create(view_)); }

  // The view changes to what view_ is now.
  ClientCore::Effects Show() {
    view_.set_number(view_.number() + 1);
    client_->OnView(*View::Create(view_), now_, &effects_);
    return Take();
  }
  void Own(int32_t shard, Owner owner) {
    view_.set_owner_server(shard, owner.server);
    view_.set_owner_thread(shard, owner.thread);
  }
  // Under the next number.
  void Move(int32_t shard, Owner to) {
    wire::Move& move = *view_.add_move();
    move.set_shard(shard);
    move.set_server(to.server);
    move.set_thread(to.thread);
    move.set_id(view_.number() + 1);
  }
  // The new shard stays where the whole one was.
  void Split(int32_t shard, int64_t at) {
    wire::Split& split = *view_.add_split();
    split.set_shard(shard);
    split.set_at(at);
    split.set_since(view_.number() + 1);
    view_.add_owner_server(view_.owner_server(shard));
    view_.add_owner_thread(view_.owner_thread(shard));
  }

  static void Relocate(Owner to, uint64_t as_of, wire::Refusal* refusal) {
    wire::Relocation& relocation = *refusal->mutable_moved()->mutable_to();
    relocation.set_server(to.server);
    relocation.set_thread(to.thread);
    relocation.set_as_of(as_of);
  }
  // A push was told where its shard is.
  ClientCore::Effects Moved(Owner from, int32_t shard, Owner to,
                            uint64_t as_of) {
    Message message;
    wire::PushReply& reply = *message.header.mutable_push_reply();
    reply.set_request_id(sent_as_[{from, shard}]);
    wire::PushAnswer& answer = *reply.add_answer();
    answer.set_shard(shard);
    Relocate(to, as_of, answer.mutable_refusal());
    return Receive(from, message);
  }

  // The elements of a push are their numbers in the table, plus 100 per clock.
  ClientCore::Effects PushNumbers(Clock clock, int table) {
    std::vector<float> gradient(16);
    for (int i = 0; i < 16; ++i)
      gradient[i] = static_cast<float>(100 * clock + i);
    EXPECT_TRUE(client_
                    ->Push(clock, TableId{table},
                           Payload::Copy(gradient.data(), 4 * kShardBytes),
                           versions_, now_, &effects_)
                    .ok());
    return Take();
  }
  static std::vector<float> Elements(const Payload& payload) {
    std::vector<float> elements(payload.size() / sizeof(float));
    std::memcpy(elements.data(), payload.data(), payload.size());
    return elements;
  }
  static Payload Numbers(std::vector<float> elements) {
    return Payload::Copy(elements.data(), elements.size() * sizeof(float));
  }

  // "0.1: 3#2 [100, 101]": to thread 1 of server 0, seq 2 of shard 3. Pulls are
  // "0.1: 3?".
  static std::vector<std::string> Sent(const ClientCore::Effects& effects) {
    std::vector<std::string> lines;
    for (const ClientCore::Send& send : effects.sends) {
      const wire::Header& header = send.message.header;
      const std::string to =
          absl::StrCat(send.to.server, ".", send.to.thread, ":");
      for (const int32_t shard : slackline::ShardsOf(header.pull_request()))
        lines.push_back(absl::StrCat(to, " ", shard, "?"));
      size_t frame = 0;
      for (const wire::Push& push : header.push_request().push()) {
        lines.push_back(absl::StrCat(to, " ", push.shard(), "#", push.seq()));
        if (push.has_advance()) {
          lines.back() += absl::StrCat(" at ", push.clock());
          continue;
        }
        absl::StrAppend(
            &lines.back(), " [",
            absl::StrJoin(Elements(send.message.payloads.at(frame++)), ", "),
            "]");
      }
    }
    return lines;
  }

  // Acknowledges everything that is sent, at once, until nothing more comes.
  void AcknowledgeAll(ClientCore::Effects effects) {
    while (!effects.sends.empty()) {
      ClientCore::Effects next;
      for (const ClientCore::Send& send : effects.sends) {
        Message message;
        wire::PushReply& reply = *message.header.mutable_push_reply();
        if (!send.message.header.has_push_request()) continue;
        const wire::PushRequest& push = send.message.header.push_request();
        reply.set_request_id(push.request_id());
        for (const wire::Push& fact : push.push()) {
          wire::PushAnswer& answer = *reply.add_answer();
          answer.set_shard(fact.shard());
          answer.set_accepted_seq(fact.seq());
          accepted_[fact.shard()] = fact.seq();
        }
        ClientCore::Effects more = Receive(send.to, message);
        EXPECT_TRUE(more.failure.ok()) << more.failure;
        next.sends.insert(next.sends.end(), more.sends.begin(),
                          more.sends.end());
      }
      effects = std::move(next);
    }
  }

  wire::View view_;
};

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
  for (const ClientCore::Send& send : again.sends)
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
  EXPECT_EQ(client_->links(), 3u);
  Own(2, kThread0);
  view_.mutable_server()->RemoveLast();
  Show();
  EXPECT_EQ(client_->links(), 2u);
  for (int i = 0; i < 100; ++i) Reply({i, 7}, 0, 0);
  EXPECT_EQ(client_->links(), 2u) << "answers make no links";
}

// ---- Splits -----------------------------------------------------------------

TEST_F(ClientMoveTest, WhatWaitsForASplitShardIsCutAsItIs) {
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
  for (const ClientCore::Send& send : sent.sends) {
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
  for (const ClientCore::Send& send : PushNumbers(0, 0).sends) {
    const wire::Push& push = send.message.header.push_request().push(0);
    EXPECT_EQ(push.gradient(), push.shard() == 8 ? 9u : 5u);
  }
  versions_.push_back(9);
  EXPECT_THAT(std::string(TryPush(0, 1).message()),
              HasSubstr("10 base versions"));
}

TEST_F(ClientMoveTest, ADeclaredClockIsDeclaredForBothParts) {
  ClientCore::PullResult joined;
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
  ClientCore::PullResult joined;
  joined.shards.resize(kShards);
  for (ClientCore::ShardValue& value : joined.shards) value.shard_clock = 7;
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

TEST_F(ClientMoveTest, APartThatMovesInTheViewThatMakesItIsCutBeforeItMoves) {
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

TEST_F(ClientMoveTest, WhatWasAnsweredAsAWholeIsCut) {
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
  const std::vector<ClientCore::ShardValue>& shards = done.pulled[0].shards;
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

// ---- State and installations ------------------------------------------------

// Adam's slots. Elements of the state of shard s: 100 s and on, in slot i
// 100 s + 10 (i + 1) and on.
class ClientStateTest : public ClientMoveTest {
 protected:
  ClientStateTest() {
    options_.slot_count = 2;
    options_.message_bytes = 6 * kShardBytes;  // Two shards.
    *view_.add_phase()->mutable_mode() = ModeOf("allreduce");
    view_.mutable_phase(1)->set_from(5);
    Restart();
  }

  static ClientCore::ShardValue StateOf(int32_t shard, Version version = 9) {
    ClientCore::ShardValue state;
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
  static Message StateAnswerTo(const ClientCore::Send& send,
                               const std::vector<int32_t>& shards) {
    Message message;
    for (const int32_t shard : shards) {
      const ClientCore::ShardValue state = StateOf(shard);
      wire::PullAnswer::State& answer =
          *AddAnswer(send, shard, &message).mutable_state();
      answer.mutable_values()->set_version(state.version);
      answer.mutable_values()->set_shard_clock(2);
      answer.set_hash(StateHash(state.version, state.values, state.slots));
      message.payloads.push_back(state.values);
      message.payloads.insert(message.payloads.end(), state.slots.begin(),
                              state.slots.end());
    }
    return message;
  }
  static std::vector<std::vector<float>> Tensors(
      const ClientCore::ShardValue& state) {
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
    for (const ClientCore::Send& send : effects.sends) {
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
  for (const ClientCore::Send& send : sent.sends) {
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
    const ClientCore::ShardValue& state = done.pulled[0].shards.at(shard);
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
              HasSubstr("with 20 bytes, the shard has 16"));
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

TEST_F(ClientStateTest, AStateThatCameAsAWholeIsCut) {
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
  const ClientCore::ShardValue& kept = done.pulled[0].shards.at(0);
  const ClientCore::ShardValue& rest = done.pulled[0].shards.at(kShards);
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

TEST_F(ClientStateTest, AnInstallationOfASplitShardIsCutAsItIs) {
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

TEST_F(ClientStateTest, WhatIsSentSaysHowManyPhasesTheWorkerKnows) {
  PushNumbers(0, 0);
  EXPECT_EQ(
      PushNumbers(0, 1).sends.at(0).message.header.push_request().phases(), 2);
  view_.add_phase()->set_from(9);
  Show();
  client_->Pull(1, 1, now_, &effects_);
  EXPECT_EQ(Take().sends.at(0).message.header.pull_request().phases(), 3);
}

}  // namespace
}  // namespace slackline
