// Goal: a member joins, keeps its lease, repeats what may be lost, and gives up
// with a sentence when the coordinator is gone.
// Method: the coordinator is played by hand, on virtual time.
#include "common/membership/member_core.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MemberCoreTest : public ::testing::Test {
 protected:
  MemberCoreTest() {
    options_.join.set_role(wire::JoinRequest::WORKER);
    options_.join.set_token(42);
    options_.coordinator_address = "head:7700";
    options_.start_timeout = absl::Seconds(10);
    options_.join_retry = absl::Milliseconds(200);
    options_.call_retry = absl::Milliseconds(500);
    member_.emplace(options_);
    member_->Start(now_, &first_);
  }

  static Message JoinReply(wire::Code code, const std::string& error = "",
                           uint64_t token = 42) {
    Message message;
    wire::JoinReply& reply = *message.header.mutable_join_reply();
    reply.set_token(token);
    reply.set_code(code);
    reply.set_error(error);
    reply.set_incarnation(7);
    reply.set_lease_ms(5000);
    return message;
  }

  static Message ViewOf(uint64_t number) {
    Message message;
    message.header.mutable_view()->set_number(number);
    message.header.mutable_view()->set_state(wire::RUNNING);
    return message;
  }

  MemberCore::Effects Receive(const Message& message) {
    MemberCore::Effects effects;
    member_->OnMessage(message, now_, &effects);
    return effects;
  }

  // Moves to the next wake-up.
  MemberCore::Effects Tick() {
    now_ = std::max(now_, member_->NextWakeup());
    MemberCore::Effects effects;
    member_->OnTick(now_, &effects);
    return effects;
  }

  void Join() {
    ASSERT_TRUE(Receive(JoinReply(wire::OK)).joined);
    ASSERT_EQ(member_->incarnation(), 7u);
  }

  absl::Time now_ = absl::UnixEpoch();
  MemberCore::Options options_;
  std::optional<MemberCore> member_;
  MemberCore::Effects first_;
};

TEST_F(MemberCoreTest, AsksAgainUntilItIsAnswered) {
  ASSERT_THAT(first_.sends, SizeIs(1));
  for (int i = 1; i <= 3; ++i) {
    const MemberCore::Effects effects = Tick();
    EXPECT_EQ(now_, absl::UnixEpoch() + i * absl::Milliseconds(200));
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_EQ(effects.sends[0].header.join_request().token(), 42u);
  }
  const MemberCore::Effects joined = Receive(JoinReply(wire::OK));
  EXPECT_TRUE(joined.joined);
  ASSERT_THAT(joined.sends, SizeIs(1));
  EXPECT_EQ(joined.sends[0].header.heartbeat().incarnation(), 7u);
  EXPECT_EQ(member_->lease(), absl::Seconds(5));
}

TEST_F(MemberCoreTest, AReplyToAnotherProcessIsNotForUs) {
  EXPECT_FALSE(Receive(JoinReply(wire::OK, "", /*token=*/41)).joined);
  EXPECT_EQ(member_->incarnation(), 0u);
}

TEST_F(MemberCoreTest, WithoutACoordinatorItSaysWhereItLooked) {
  MemberCore::Effects effects;
  while (effects.failure.ok()) effects = Tick();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(10));
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(effects.failure.message()),
              AllOf(HasSubstr("no coordinator answered at head:7700"),
                    HasSubstr("10s")));
}

TEST_F(MemberCoreTest, WhatKeptItWaitingIsTheReasonForGivingUp) {
  EXPECT_TRUE(Receive(JoinReply(wire::RETRY, "worker 0 holds this place"))
                  .failure.ok());
  MemberCore::Effects effects;
  while (effects.failure.ok()) effects = Tick();
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("worker 0 holds this place"));
}

TEST_F(MemberCoreTest, ARefusalIsFinal) {
  const MemberCore::Effects effects =
      Receive(JoinReply(wire::REJECTED, "another config"));
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("another config"));
}

TEST_F(MemberCoreTest, FiveHeartbeatsFitIntoALease) {
  Join();
  for (int i = 1; i <= 5; ++i) {
    ASSERT_THAT(Tick().sends, SizeIs(1));
    EXPECT_EQ(now_, absl::UnixEpoch() + i * absl::Seconds(1));
  }
}

TEST_F(MemberCoreTest, TakesOverNewerViewsOnlyAndSaysSo) {
  Join();
  const MemberCore::Effects effects = Receive(ViewOf(5));
  ASSERT_NE(effects.view, nullptr);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.view_number(), 5u);
  EXPECT_EQ(Receive(ViewOf(5)).view, nullptr);
  EXPECT_EQ(Receive(ViewOf(4)).view, nullptr);
  EXPECT_EQ(member_->view()->number(), 5u);
  EXPECT_NE(Receive(ViewOf(6)).view, nullptr);
}

TEST_F(MemberCoreTest, AViewThatOvertakesTheJoinReplyIsLeftToTheNextHeartbeat) {
  EXPECT_EQ(Receive(ViewOf(5)).view, nullptr);
  EXPECT_EQ(Receive(JoinReply(wire::OK)).sends.at(0).header.view_number(), 0u);
}

TEST_F(MemberCoreTest, TheCallerAcknowledgesTheLastView) {
  Join();
  Message end = ViewOf(5);
  end.header.mutable_view()->set_state(wire::FINISHED);
  MemberCore::Effects effects = Receive(end);
  ASSERT_NE(effects.view, nullptr);
  EXPECT_THAT(effects.sends, IsEmpty());
  member_->SendHeartbeat(now_, &effects);
  EXPECT_EQ(effects.sends.at(0).header.view_number(), 5u);
}

TEST_F(MemberCoreTest, ACallIsRepeatedUntilItIsAnswered) {
  Join();
  MemberCore::Effects effects;
  wire::Call barrier;
  barrier.mutable_barrier()->set_name("b");
  const uint64_t id =
      member_->Call(barrier, Payload::Copy("v", 1), now_, &effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.call().incarnation(), 7u);

  Message reply;
  reply.header.mutable_call_reply()->set_call_id(id);
  reply.header.mutable_call_reply()->set_code(wire::RETRY);
  EXPECT_THAT(Receive(reply).answers, IsEmpty());
  effects = Tick();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Milliseconds(500));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.call().call_id(), id);
  EXPECT_THAT(effects.sends[0].payloads, SizeIs(1));

  reply.header.mutable_call_reply()->set_code(wire::OK);
  EXPECT_THAT(Receive(reply).answers, SizeIs(1));
  EXPECT_THAT(Receive(reply).answers, IsEmpty()) << "answered once";
}

TEST_F(MemberCoreTest, RecordsGoWithEveryHeartbeatUntilTheyAreAcknowledged) {
  Join();
  for (int step = 1; step <= 300; ++step) {
    run::MetricRecord record;
    record.set_step(step);
    member_->AddRecord(record, now_);
  }
  MemberCore::Effects effects = Tick();
  const wire::Heartbeat heartbeat = effects.sends.at(0).header.heartbeat();
  EXPECT_EQ(heartbeat.first_record(), 0u);
  ASSERT_EQ(heartbeat.record_size(), 256) << "no message grows without bound";

  Message reply;
  reply.header.mutable_heartbeat_reply()->set_incarnation(7);
  reply.header.mutable_heartbeat_reply()->set_code(wire::OK);
  reply.header.mutable_heartbeat_reply()->set_records_acked(250);
  Receive(reply);
  Receive(reply);
  effects = Tick();
  const wire::Heartbeat& next = effects.sends.at(0).header.heartbeat();
  EXPECT_EQ(next.first_record(), 250u);
  EXPECT_EQ(next.record_size(), 50);
  EXPECT_EQ(next.record(0).step(), 251);
}

TEST_F(MemberCoreTest, ARecordTellsItsAgeAndAnEvaluationDoesNotWait) {
  Join();
  const absl::Time joined = now_;
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::TRAIN);
  member_->AddRecord(record, now_);
  EXPECT_EQ(member_->NextWakeup(), joined + absl::Seconds(1))
      << "goes with the next heartbeat";
  now_ += absl::Milliseconds(600);
  record.set_kind(run::MetricRecord::EVAL);
  member_->AddRecord(record, now_ - absl::Milliseconds(200));
  EXPECT_LE(member_->NextWakeup(), now_);
  const MemberCore::Effects effects = Tick();
  const wire::Heartbeat& heartbeat = effects.sends.at(0).header.heartbeat();
  ASSERT_EQ(heartbeat.record_size(), 2);
  EXPECT_DOUBLE_EQ(heartbeat.record(0).seconds(), 0.6);
  EXPECT_DOUBLE_EQ(heartbeat.record(1).seconds(), 0.2);
}

TEST_F(MemberCoreTest, IsToldThatItsLeaseRanOut) {
  Join();
  Message reply;
  reply.header.mutable_heartbeat_reply()->set_code(wire::FENCED);
  reply.header.mutable_heartbeat_reply()->set_incarnation(6);
  EXPECT_FALSE(Receive(reply).fenced) << "another life was meant";
  reply.header.mutable_heartbeat_reply()->set_incarnation(7);
  EXPECT_TRUE(Receive(reply).fenced);
}

TEST_F(MemberCoreTest, AfterTwoLeasesOfSilenceTheCoordinatorIsGone) {
  Join();
  MemberCore::Effects effects;
  while (effects.failure.ok() && now_ < absl::UnixEpoch() + absl::Minutes(1))
    effects = Tick();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(11));
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(effects.failure.message()),
      AllOf(HasSubstr("server 0 at head:7700"), HasSubstr("silent for 11s")));
}

}  // namespace
}  // namespace slackline
