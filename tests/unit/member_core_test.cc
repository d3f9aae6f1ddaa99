// Goal: a member joins, keeps its lease, repeats what may be lost, and gives up
// with a sentence when the coordinator is gone.
// Method: the coordinator is played by hand, on virtual time.
#include "common/membership/member_core.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/endpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::member_core_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MemberCoreTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRun = 0xabc;

  MemberCoreTest() {
    options_.join.set_role(wire::JoinRequest::WORKER);
    options_.join.set_token(42);
    options_.coordinators = {"head:7700"};
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
    reply.set_run(kRun);
    return message;
  }

  static Message HeartbeatReply(wire::Code code, uint64_t run = kRun) {
    Message message;
    message.header.set_run(run);
    message.header.mutable_heartbeat_reply()->set_incarnation(7);
    message.header.mutable_heartbeat_reply()->set_code(code);
    return message;
  }

  static Message RecordsAcked(uint64_t count) {
    Message message = HeartbeatReply(wire::OK);
    message.header.mutable_heartbeat_reply()->set_records_acked(count);
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

  // Until a failure, or for a minute.
  MemberCore::Effects TickOn() {
    const absl::Time end = now_ + absl::Minutes(1);
    MemberCore::Effects effects;
    std::vector<std::string> log;
    while (effects.failure.ok() && now_ < end) {
      effects = Tick();
      log.insert(log.end(), effects.log.begin(), effects.log.end());
    }
    effects.log = log;
    return effects;
  }

  // The process does not run for so long; then the driver finds nothing to
  // read.
  MemberCore::Effects StoppedFor(absl::Duration duration) {
    now_ += duration;
    MemberCore::Effects effects;
    member_->OnTick(now_, &effects);
    return effects;
  }

  static run::MetricRecord RecordOf(run::MetricRecord::Kind kind, int step) {
    run::MetricRecord record;
    record.set_kind(kind);
    record.set_step(step);
    return record;
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

TEST_F(MemberCoreTest, WhatKeepsItWaitingIsSaidOnceAndTheReasonForGivingUp) {
  MemberCore::Effects effects =
      Receive(JoinReply(wire::RETRY, "worker 0 holds this place"));
  EXPECT_TRUE(effects.failure.ok());
  EXPECT_THAT(effects.log, testing::ElementsAre(HasSubstr(
                               "tries again for up to 10s: worker 0 holds "
                               "this place")));
  EXPECT_THAT(Receive(JoinReply(wire::RETRY, "worker 0 holds this place")).log,
              testing::IsEmpty());
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

TEST_F(MemberCoreTest, FollowsNewerViewsOnlyAndSaysSo) {
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

TEST_F(MemberCoreTest, AChangeIsMadeToTheViewThatItIsAgainst) {
  Join();
  const auto change = [](uint64_t base) {
    Message message;
    wire::ViewChange& change = *message.header.mutable_view_change();
    change.set_base(base);
    change.set_number(base + 1);
    change.set_state(wire::RUNNING);
    change.set_group(base + 1);
    return message;
  };
  MemberCore::Effects early = Receive(change(5));
  EXPECT_EQ(early.view, nullptr);
  ASSERT_THAT(early.sends, SizeIs(1)) << "it says that it has none";
  EXPECT_EQ(early.sends[0].header.view_number(), 0u);
  Receive(ViewOf(5));
  const MemberCore::Effects effects = Receive(change(5));
  ASSERT_NE(effects.view, nullptr);
  EXPECT_EQ(effects.view->number(), 6u);
  EXPECT_EQ(effects.view->proto().group(), 6u);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.view_number(), 6u);
  const MemberCore::Effects again = Receive(change(5));
  EXPECT_EQ(again.view, nullptr);
  EXPECT_THAT(again.sends, IsEmpty());
  const MemberCore::Effects gap = Receive(change(7));
  EXPECT_EQ(gap.view, nullptr);
  ASSERT_THAT(gap.sends, SizeIs(1)) << "view 7 is lost";
  EXPECT_EQ(gap.sends[0].header.view_number(), 6u);
}

TEST_F(MemberCoreTest, AViewThatDoesNotFitIsNotFollowedAndEndsNothing) {
  Join();
  Receive(ViewOf(5));
  Message bad = ViewOf(6);
  bad.header.mutable_view()->add_owner_server(0);
  Message bad_change;
  wire::ViewChange& change = *bad_change.header.mutable_view_change();
  change.set_base(5);
  change.set_number(7);
  change.set_state(wire::RUNNING);
  change.set_entered(-1);
  for (const Message& message : {bad, bad_change}) {
    const MemberCore::Effects effects = Receive(message);
    EXPECT_EQ(effects.view, nullptr);
    EXPECT_EQ(effects.failure, absl::OkStatus());
    EXPECT_THAT(effects.log, SizeIs(1));
    EXPECT_THAT(Receive(message).log, IsEmpty()) << "said once";
    EXPECT_EQ(member_->view()->number(), 5u);
  }
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
  wire::Call gather;
  gather.mutable_gather()->set_place(3);
  const uint64_t id =
      member_->Call(gather, Payload::Copy("v", 1), now_, &effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.call().incarnation(), 7u);

  Message reply;
  reply.header.mutable_call_reply()->set_call_id(id);
  reply.header.mutable_call_reply()->set_code(wire::RETRY);
  reply.header.mutable_call_reply()->set_error("waits for worker 1");
  EXPECT_THAT(Receive(reply).answers, IsEmpty());
  EXPECT_EQ(member_->ObstacleOf(id), "waits for worker 1");
  effects = Tick();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Milliseconds(500));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].header.call().call_id(), id);
  EXPECT_THAT(effects.sends[0].payloads, SizeIs(1));

  reply.header.mutable_call_reply()->set_code(wire::OK);
  EXPECT_THAT(Receive(reply).answers, SizeIs(1));
  EXPECT_THAT(Receive(reply).answers, IsEmpty()) << "answered once";
  EXPECT_EQ(member_->ObstacleOf(id), "");
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

TEST_F(MemberCoreTest, IsToldWhyItWasRemoved) {
  Join();
  EXPECT_FALSE(member_->removed());
  Message reply = HeartbeatReply(wire::FENCED);
  reply.header.mutable_heartbeat_reply()->set_error(
      "was removed because it held up worker 0" + std::string(1 << 20, '!'));
  EXPECT_TRUE(Receive(reply).fenced);
  EXPECT_TRUE(member_->removed());
  EXPECT_THAT(member_->WhyFenced(now_),
              HasSubstr("it was removed because it held up worker 0!"));
  EXPECT_LT(member_->WhyFenced(now_).size(), 1200);
}

TEST_F(MemberCoreTest, TriesLinksUntilTheJobRunsAndSaysWhatIsMissing) {
  Join();
  Message reply = HeartbeatReply(wire::OK);
  wire::TryLinks& links =
      *reply.header.mutable_heartbeat_reply()->mutable_try_links();
  links.set_round(3);
  wire::ServerMember& server = *links.add_server();
  server.set_index(1);
  server.add_thread()->add_endpoint("tcp://far:80");
  const MemberCore::Effects asked = Receive(reply);
  ASSERT_TRUE(asked.try_links.has_value());
  EXPECT_EQ(NetworkEndpoint(asked.try_links->server(0).thread(0)),
            "tcp://far:80");
  EXPECT_FALSE(Receive(reply).try_links.has_value()) << "it tries already";
  const auto tried = [&](uint64_t round, bool all) {
    wire::LinksTried of;
    of.set_round(round);
    if (!all) of.add_unreached()->set_index(1);
    MemberCore::Effects effects;
    member_->OnLinks(of, now_, &effects);
    return effects;
  };
  EXPECT_THAT(tried(2, true).sends, testing::IsEmpty()) << "another round";
  Message late = reply;
  late.header.mutable_heartbeat_reply()->mutable_try_links()->set_round(2);
  EXPECT_FALSE(Receive(late).try_links.has_value()) << "a round that is over";
  EXPECT_THAT(tried(3, false).sends, testing::IsEmpty());
  std::vector<std::string> log;
  for (int i = 0; i < 10; ++i) {
    const MemberCore::Effects effects = Tick();
    log.insert(log.end(), effects.log.begin(), effects.log.end());
    for (const Message& message : effects.sends) {
      EXPECT_EQ(message.header.heartbeat().links_tried().unreached_size(), 1);
    }
    Receive(HeartbeatReply(wire::OK));
  }
  EXPECT_THAT(log, testing::ElementsAre(HasSubstr(
                       "cannot connect to server 1 at tcp://far:80 for ")));
  const MemberCore::Effects done = tried(3, true);
  ASSERT_THAT(done.sends, SizeIs(1)) << "all may wait for it";
  EXPECT_TRUE(done.sends[0].header.heartbeat().has_links_tried());
  EXPECT_EQ(done.sends[0].header.heartbeat().links_tried().unreached_size(), 0);
}

TEST_F(MemberCoreTest, AfterTwoLeasesOfSilenceTheCoordinatorIsGone) {
  Join();
  member_->OnLink(LinkState::kGone, now_);
  MemberCore::Effects effects;
  while (effects.failure.ok() && now_ < absl::UnixEpoch() + absl::Minutes(1))
    effects = Tick();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(11));
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(effects.failure.message()),
      AllOf(HasSubstr("server 0 at head:7700"), HasSubstr("silent for 11s")));
}

// Where it looks again, and nobody has answered the connection, nothing says
// that the coordinator is dead: it may be stopped, behind a partition.
TEST_F(MemberCoreTest, WhoLooksAgainDoesNotTakeItsOwnLookForADeath) {
  options_.start_timeout = absl::Minutes(1);
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Receive(JoinReply(wire::RETRY, "worker 2 holds this place"));
  member_->OnLink(LinkState::kUp, now_);
  bool looked = false;
  while (now_ < absl::UnixEpoch() + absl::Seconds(30)) {
    const MemberCore::Effects effects = Tick();
    ASSERT_TRUE(effects.failure.ok()) << effects.failure;
    looked |= effects.look_at.has_value();
  }
  EXPECT_TRUE(looked);
  member_->OnLink(LinkState::kGone, now_);
  EXPECT_THAT(std::string(Tick().failure.message()),
              HasSubstr("nobody listens there any more"));
}

TEST_F(MemberCoreTest, ASilentCoordinatorThatIsThereIsWaitedFor) {
  options_.coordinator_timeout = absl::Seconds(30);
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Join();
  member_->OnLink(LinkState::kUp, now_);
  const MemberCore::Effects effects = TickOn();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(31));
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(effects.failure.message()),
              AllOf(HasSubstr("server 0 at head:7700"),
                    HasSubstr("coordinator_timeout_ms } is 30000")));
  ASSERT_THAT(effects.log, SizeIs(1)) << "it says once that it waits";
  EXPECT_THAT(effects.log[0],
              AllOf(HasSubstr("server 0 at head:7700 has been silent for 11s"),
                    HasSubstr("up to 30s")));
}

// Who has another key is refused each time that it connects, and looks again
// meanwhile; a process that ends or begins refuses for a moment.
TEST_F(MemberCoreTest, WhoIsRefusedBeforeItJoinsEndsSoonWithTheReason) {
  member_->OnLink(LinkState::kRefused, now_);
  absl::Time begin = now_;
  ASSERT_TRUE(Tick().failure.ok());
  member_->OnLink(LinkState::kGone, now_);
  while (now_ < begin + absl::Seconds(5)) {
    const MemberCore::Effects effects = Tick();
    ASSERT_TRUE(effects.failure.ok()) << effects.failure;
  }
  begin = now_;
  MemberCore::Effects effects;
  while (effects.failure.ok() && now_ < begin + absl::Seconds(20)) {
    member_->OnLink(LinkState::kRefused, now_);
    effects = Tick();
  }
  EXPECT_TRUE(absl::IsPermissionDenied(effects.failure)) << effects.failure;
  EXPECT_THAT(std::string(effects.failure.message()),
              AllOf(HasSubstr("head:7700 refuses this process"),
                    HasSubstr("the same key")));
  EXPECT_LE(now_ - begin, absl::Seconds(5));
}

// It may be a proxy that finds nobody behind it yet: it is waited for as long
// as one that is not there, and the reason is said.
TEST_F(MemberCoreTest, WhoseConnectionsAreEndedAtOnceTriesOnAndSaysWhy) {
  std::vector<std::string> log;
  MemberCore::Effects effects;
  while (effects.failure.ok() && now_ < absl::UnixEpoch() + absl::Minutes(5)) {
    member_->OnLink(LinkState::kConnected, now_);
    member_->OnLink(LinkState::kDropped, now_);
    effects = Tick();
    log.insert(log.end(), effects.log.begin(), effects.log.end());
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(effects.failure)) << effects.failure;
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("head:7700 ends each connection at once"));
  ASSERT_THAT(log, SizeIs(1));
  EXPECT_THAT(log[0], AllOf(HasSubstr("the same key"), HasSubstr("tries on")));
}

// Another process has its address.
TEST_F(MemberCoreTest, ACoordinatorWhoseAddressRefusesIsGone) {
  Join();
  member_->OnLink(LinkState::kUp, now_);
  member_->OnLink(LinkState::kRefused, now_);
  const MemberCore::Effects effects = TickOn();
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("what listens there now is none that knows"));
}

TEST_F(MemberCoreTest, ACoordinatorThatGoesOnIsWelcome) {
  Join();
  member_->OnLink(LinkState::kUp, now_);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Tick().failure.ok());
  const MemberCore::Effects heard = Receive(HeartbeatReply(wire::OK));
  ASSERT_THAT(heard.log, SizeIs(1));
  EXPECT_THAT(heard.log[0], HasSubstr("heard again"));
  // From here on it may be silent for as long again.
  for (int i = 0; i < 10; ++i) ASSERT_THAT(Tick().log, IsEmpty());
  EXPECT_THAT(Tick().log, SizeIs(1));
}

TEST_F(MemberCoreTest, ACoordinatorThatDiesWhileItIsSilentEndsTheWait) {
  Join();
  member_->OnLink(LinkState::kUp, now_);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Tick().failure.ok());
  member_->OnLink(LinkState::kGone, now_);
  const MemberCore::Effects effects = Tick();
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("nobody listens there any more"));
}

TEST_F(MemberCoreTest, ACoordinatorThatMayReturnIsWaitedForWhenItIsGone) {
  options_.coordinator_timeout = absl::Seconds(30);
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Message reply = JoinReply(wire::OK);
  reply.header.mutable_join_reply()->set_coordinator_may_return(true);
  Receive(reply);
  member_->OnLink(LinkState::kGone, now_);
  std::vector<std::string> log;
  for (int i = 0; i < 20; ++i) {
    const MemberCore::Effects effects = Tick();
    ASSERT_TRUE(effects.failure.ok()) << effects.failure;
    EXPECT_THAT(effects.sends, SizeIs(1)) << "it goes on to say that it lives";
    log.insert(log.end(), effects.log.begin(), effects.log.end());
  }
  ASSERT_THAT(log, SizeIs(1)) << "said once";
  EXPECT_THAT(log[0], HasSubstr("waits for another one"));
  EXPECT_THAT(Receive(HeartbeatReply(wire::OK)).log, SizeIs(1));
  const absl::Time heard = now_;
  const MemberCore::Effects effects = TickOn();
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("as the first time"));
  EXPECT_EQ(now_, heard + absl::Seconds(31)) << "the timeout, as of its next "
                                                "heartbeat";
}

// The name of server 0's host may be another address by then, which a new
// connection finds.
TEST_F(MemberCoreTest, TheOnlyAddressIsLookedAtAgain) {
  Message reply = JoinReply(wire::OK);
  reply.header.mutable_join_reply()->set_coordinator_may_return(true);
  for (const LinkState link : {LinkState::kUp, LinkState::kGone}) {
    SCOPED_TRACE(link == LinkState::kUp);
    member_.emplace(options_);
    member_->Start(now_, &first_);
    member_->OnLink(LinkState::kUp, now_);
    Receive(reply);
    const absl::Time heard = now_;
    member_->OnLink(link, now_);
    const absl::Duration most =
        member_->lease() + CoordinatorWatch::FoundWithin(1, member_->lease());
    std::vector<absl::Duration> looks;
    while (now_ - heard <= most) {
      if (Tick().look_at.has_value()) looks.push_back(now_ - heard);
    }
    ASSERT_GE(looks.size(), 2u) << "the first may come too early";
    EXPECT_LE(looks[0], member_->lease() * 1.2);
  }
}

TEST_F(MemberCoreTest, OneThatDoesNotComeBackIsNotLookedFor) {
  member_->OnLink(LinkState::kUp, now_);
  Receive(JoinReply(wire::OK));
  for (int i = 0; i < 30; ++i)
    EXPECT_FALSE(Tick().look_at.has_value()) << "nobody listens elsewhere";
}

class ManyCoordinatorsTest : public MemberCoreTest {
 protected:
  ManyCoordinatorsTest() {
    options_.coordinators = {"a:7700", "b:7700", "c:7700"};
    options_.join.set_job("ours");
    member_.emplace(options_);
    member_->Start(now_, &first_);
  }
  static Message JoinReplyOf(const std::string& job, wire::Code code) {
    Message reply = JoinReply(code);
    reply.header.mutable_join_reply()->set_job(job);
    reply.header.mutable_join_reply()->set_coordinator_may_return(true);
    return reply;
  }
  void JoinAt(LinkState link) {
    member_->OnLink(link, now_);
    ASSERT_TRUE(Receive(JoinReplyOf("ours", wire::OK)).joined);
  }
  // Until it looks somewhere else; then how long that took.
  std::optional<absl::Duration> TickUntilItLooksAt(size_t address) {
    const absl::Time begin = now_;
    while (now_ < begin + absl::Minutes(1)) {
      const MemberCore::Effects effects = Tick();
      if (!effects.look_at.has_value()) continue;
      EXPECT_EQ(*effects.look_at, address);
      EXPECT_FALSE(effects.sends.empty()) << "which it says at once";
      return now_ - begin;
    }
    return std::nullopt;
  }
};

TEST_F(ManyCoordinatorsTest, WhoFindsNobodyLooksAtOneAddressAfterTheOther) {
  // While it joins, too, when nobody has said how long a lease is.
  for (const size_t address : {1u, 2u, 0u, 1u}) {
    const auto after = TickUntilItLooksAt(address);
    ASSERT_TRUE(after.has_value());
    EXPECT_LE(*after, absl::Milliseconds(400));
  }
  JoinAt(LinkState::kUp);
  member_->OnLink(LinkState::kGone, now_);
  absl::Duration in_all;
  for (const size_t address : {2u, 0u, 1u, 2u})
    in_all += TickUntilItLooksAt(address).value_or(absl::InfiniteDuration());
  EXPECT_LE(in_all, member_->lease());  // Of one round and one more.
  // A coordinator is heard at the address where it has arrived.
  member_->OnLink(LinkState::kUp, now_);
  EXPECT_THAT(Receive(HeartbeatReply(wire::OK)).log,
              ElementsAre(HasSubstr("the coordinator at c:7700 is heard")));
  EXPECT_TRUE(member_->HearsCoordinator(now_));
}

TEST_F(ManyCoordinatorsTest, WhoIsConnectedAndHearsNothingLooksElsewhere) {
  JoinAt(LinkState::kUp);
  // It was heard here: it may be slow.
  const auto first = TickUntilItLooksAt(1);
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(*first, member_->lease());
  EXPECT_LE(*first, member_->lease() * 1.3);
  // Nobody was, here: a process that is stopped.
  member_->OnLink(LinkState::kUp, now_);
  const auto second = TickUntilItLooksAt(2);
  ASSERT_TRUE(second.has_value());
  EXPECT_LE(*second, member_->lease() / 2);
}

TEST_F(ManyCoordinatorsTest, TheCoordinatorOfAnotherJobIsNotOurs) {
  EXPECT_TRUE(Receive(JoinReplyOf("other", wire::REJECTED)).failure.ok());
  EXPECT_FALSE(Receive(JoinReplyOf("other", wire::OK)).joined);
  JoinAt(LinkState::kUp);
  Message wrong;
  wrong.header.mutable_wrong_run()->set_job("other");
  wrong.header.mutable_wrong_run()->set_run(5);
  EXPECT_TRUE(Receive(wrong).failure.ok());
  wrong.header.mutable_wrong_run()->set_job("ours");
  EXPECT_FALSE(Receive(wrong).failure.ok());
}

TEST_F(ManyCoordinatorsTest, WhoNeverFindsOneSaysWhereItHasLooked) {
  EXPECT_THAT(std::string(TickOn().failure.message()),
              HasSubstr("no coordinator answered at a:7700, b:7700, c:7700"));
}

TEST_F(MemberCoreTest, WhoWaitsForItsPlaceWaitsForACoordinatorThatMayReturn) {
  options_.start_timeout = absl::Seconds(60);
  options_.coordinator_timeout = absl::Seconds(30);
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Message reply = JoinReply(wire::RETRY, "worker 0 holds this place");
  reply.header.mutable_join_reply()->set_coordinator_may_return(true);
  Receive(reply);
  const absl::Time end = now_ + absl::Seconds(29);
  while (now_ < end) {
    const MemberCore::Effects effects = Tick();
    ASSERT_TRUE(effects.failure.ok()) << effects.failure;
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_TRUE(effects.sends[0].header.has_join_request());
  }
}

TEST_F(MemberCoreTest, ItsOwnPauseIsNotTheSilenceOfTheCoordinator) {
  Join();
  const MemberCore::Effects back = StoppedFor(absl::Seconds(100));
  EXPECT_TRUE(back.failure.ok()) << back.failure;
  ASSERT_THAT(back.sends, SizeIs(1)) << "a heartbeat, which is overdue";
  const MemberCore::Effects fenced = Receive(HeartbeatReply(wire::FENCED));
  EXPECT_TRUE(fenced.fenced);
  EXPECT_TRUE(fenced.failure.ok());
  EXPECT_EQ(member_->WhyFenced(now_),
            "its lease of 5s ran out while this process was stopped for 1m40s");
}

TEST_F(MemberCoreTest, AfterAPauseADeadCoordinatorIsStillFoundOut) {
  Join();
  member_->OnLink(LinkState::kGone, now_);
  ASSERT_TRUE(StoppedFor(absl::Seconds(100)).failure.ok());
  const MemberCore::Effects effects = TickOn();
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(110));
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("this process itself was stopped for 1m40s, longer "
                        "than its lease of 5s"));
}

TEST_F(MemberCoreTest, APauseWhileItJoinsIsNotTheWaitForTheCoordinator) {
  EXPECT_TRUE(StoppedFor(absl::Seconds(100)).failure.ok());
  EXPECT_TRUE(Receive(JoinReply(wire::OK)).joined);
}

TEST_F(MemberCoreTest, WhoeverWaitsForItsPlaceNoticesADeadCoordinator) {
  options_.start_timeout = absl::Seconds(60);
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Receive(JoinReply(wire::RETRY, "worker 0 holds this place"));
  member_->OnLink(LinkState::kGone, now_);
  const MemberCore::Effects effects = TickOn();
  EXPECT_EQ(effects.failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_LE(now_, absl::UnixEpoch() + absl::Milliseconds(10400));
  EXPECT_THAT(std::string(effects.failure.message()),
              HasSubstr("server 0 at head:7700"));
}

TEST_F(MemberCoreTest, EverythingItSaysBelongsToTheRunThatItHasJoined) {
  EXPECT_EQ(first_.sends.at(0).header.run(), 0u);
  const MemberCore::Effects joined = Receive(JoinReply(wire::OK));
  EXPECT_EQ(member_->run(), kRun);
  EXPECT_EQ(joined.sends.at(0).header.run(), kRun);
  MemberCore::Effects effects;
  wire::Call call;
  call.mutable_leave();
  member_->Call(call, Payload(), now_, &effects);
  EXPECT_EQ(effects.sends.at(0).header.run(), kRun);
}

TEST_F(MemberCoreTest, WhatAnotherRunSaysIsIgnored) {
  Join();
  EXPECT_FALSE(Receive(HeartbeatReply(wire::FENCED, kRun + 1)).fenced);
  Message view = ViewOf(5);
  view.header.set_run(kRun + 1);
  EXPECT_EQ(Receive(view).view, nullptr);
}

TEST_F(MemberCoreTest, TheCoordinatorOfAnotherRunEndsItByName) {
  options_.join.set_job("digits");
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Join();
  Message message;
  message.header.set_run(0xdef);
  message.header.mutable_wrong_run()->set_job("letters");
  message.header.mutable_wrong_run()->set_run(kRun);
  EXPECT_TRUE(Receive(message).failure.ok()) << "our own";
  message.header.mutable_wrong_run()->set_run(0xdef);
  const absl::Status failure = Receive(message).failure;
  EXPECT_EQ(failure.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(failure.message()),
              AllOf(HasSubstr("another run (0000000000000abc) of job 'digits'"),
                    HasSubstr("runs job 'letters' (run 0000000000000def)")));
}

TEST_F(MemberCoreTest, RecordsThatNobodyTakesAreBoundedAndEvaluationsAreKept) {
  options_.records_max = 300;
  member_.emplace(options_);
  member_->Start(now_, &first_);
  Join();
  member_->AddRecord(RecordOf(run::MetricRecord::TRAIN, 0), now_);
  ASSERT_EQ(Tick().sends.at(0).header.heartbeat().record_size(), 1);
  for (int step = 1; step <= 1000; ++step) {
    member_->AddRecord(RecordOf(step % 100 == 0 ? run::MetricRecord::EVAL
                                                : run::MetricRecord::TRAIN,
                                step),
                       now_);
  }

  std::vector<int64_t> evaluations;
  std::vector<int64_t> all;
  std::vector<std::string> log;
  while (all.size() < 300) {
    const MemberCore::Effects effects = Tick();
    ASSERT_THAT(effects.sends, SizeIs(1));
    const wire::Heartbeat heartbeat = effects.sends[0].header.heartbeat();
    ASSERT_EQ(heartbeat.first_record(), all.size());
    ASSERT_GT(heartbeat.record_size(), 0);
    for (const run::MetricRecord& record : heartbeat.record()) {
      all.push_back(record.step());
      if (record.kind() == run::MetricRecord::EVAL)
        evaluations.push_back(record.step());
    }
    const MemberCore::Effects reply = Receive(RecordsAcked(all.size()));
    log.insert(log.end(), reply.log.begin(), reply.log.end());
  }
  EXPECT_EQ(all.front(), 0) << "it was sent, so its number is fixed";
  EXPECT_THAT(evaluations, testing::ElementsAre(100, 200, 300, 400, 500, 600,
                                                700, 800, 900, 1000));
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  ASSERT_THAT(log, SizeIs(1));
  EXPECT_THAT(log[0], HasSubstr("701 metric records were dropped"));
}

TEST_F(MemberCoreTest, ACallThatNobodyWaitsForIsNotRepeated) {
  Join();
  MemberCore::Effects effects;
  wire::Call get;
  get.mutable_store_get()->set_key("k");
  const uint64_t id = member_->Call(get, Payload(), now_, &effects);
  member_->Cancel(id);
  for (int i = 0; i < 10; ++i) {
    for (const Message& message : Tick().sends)
      EXPECT_FALSE(message.header.has_call());
  }
  Message reply;
  reply.header.mutable_call_reply()->set_call_id(id);
  reply.header.mutable_call_reply()->set_code(wire::OK);
  EXPECT_THAT(Receive(reply).answers, IsEmpty());
  member_->Cancel(id);
}

}  // namespace slackline::member_core_test
