// Goal: a worker's client asks with a probe about what has no answer, and sends
// again what was lost or refused, and nothing else. Method: the shard threads
// are played by hand, on virtual time.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/unit/client_core_fixture.h"

namespace slackline::client_core_retransmission_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Probes -----------------------------------------------------------------

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

TEST_F(ClientCoreTest, HowLongAServerTakesToAnswerIsCounted) {
  Push(0, 0);
  now_ += absl::Milliseconds(3);
  Reply(kThread0, 0, 1);
  now_ += absl::Milliseconds(4);
  Reply(kThread1, 1, 1);
  Reply(kThread1, 1, 1);  // Once more.
  ASSERT_THAT(client_->answers(), SizeIs(1)) << "both threads are of server 0";
  const auto& [server, answers] = *client_->answers().begin();
  EXPECT_EQ(server, kThread0.server);
  EXPECT_EQ(answers.messages, 2u);
  EXPECT_EQ(answers.time, absl::Milliseconds(3 + 7));
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

TEST_F(ClientCoreTest, APushThatALaterOneOvertookIsProbedAtOnce) {
  Push(0, 0);
  const ClientCore::Effects probe = Reply(kThread0, 2, 1);
  ASSERT_THAT(probe.sends, SizeIs(1));
  EXPECT_THAT(probe.sends[0].message.header.probe_request().shard(),
              ElementsAre(0));
  EXPECT_THAT(ShardsOf(ReplyToProbe(probe.sends[0])), ElementsAre(0));
  EXPECT_EQ(Elapsed(), absl::ZeroDuration());
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

// ---- Time-outs --------------------------------------------------------------

TEST_F(ClientCoreTest, AProbeOlderThanAllPushesInFlightIsNoReasonToBackOff) {
  Push(0, 0);
  const ClientCore::Effects probes = Wake();
  for (const int32_t shard : {0, 2}) Reply(kThread0, shard, 1);
  Push(0, 1);
  for (const int32_t shard : {1, 3, 5, 7}) Reply(kThread1, shard, 1);
  for (const ClientSend& probe : probes.sends) ReplyToProbe(probe);
  // RFC 6298 with the samples 100, 100 and 0 ms, not doubled.
  EXPECT_EQ(client_->NextWakeup(),
            now_ + absl::Microseconds(87'500) + 4 * absl::Microseconds(53'125));
}

TEST_F(ClientCoreTest, UnansweredProbesBackOffToTheirMaximum) {
  Push(0, 0);
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 5; ++i) {
    const absl::Time before = now_;
    for (const ClientSend& send : Wake().sends) EXPECT_TRUE(IsProbe(send));
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(100), absl::Milliseconds(100),
                          absl::Milliseconds(200), absl::Milliseconds(400),
                          absl::Milliseconds(400)));
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

TEST_F(ClientCoreTest, ProgressEndsTheBackOff) {
  Push(0, 0);
  Tick();
  Tick();
  Reply(kThread0, 0, 1);
  Reply(kThread1, 1, 1);
  EXPECT_EQ(client_->NextWakeup(), now_ + absl::Milliseconds(100));
}

// ---- Refusals ---------------------------------------------------------------

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

}  // namespace slackline::client_core_retransmission_test
