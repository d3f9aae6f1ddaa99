// Goal: a server stays for as long as its shards are needed, leaves when they
// are not, and says the true reason when it cannot stay. Method: coordinator
// and shard threads are played by hand, on virtual time.
#include "server/control/server_core.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::server_core_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using End = ServerCore::End;

constexpr int kThreads = 2;
constexpr absl::Duration kLease = absl::Seconds(5);

class ServerCoreTest : public ::testing::Test {
 protected:
  explicit ServerCoreTest(int index = 1) {
    options_.member.join.set_role(wire::JoinRequest::SERVER);
    options_.member.join.set_index(index);
    options_.member.join.set_token(42);
    options_.member.coordinators = {"head:7700"};
    options_.threads = kThreads;
    core_.emplace(options_);
    ServerCore::Effects effects;
    core_->Start(now_, &effects);
    core_->OnLink(LinkState::kUp, now_);
  }

  ServerCore::Effects Receive(const Message& message) {
    ServerCore::Effects effects;
    core_->OnMessage(message, now_, &effects);
    return effects;
  }
  ServerCore::Effects Join() {
    Message message;
    wire::JoinReply& reply = *message.header.mutable_join_reply();
    reply.set_token(42);
    reply.set_code(wire::OK);
    reply.set_incarnation(7);
    reply.set_lease_ms(5000);
    return Receive(message);
  }
  ServerCore::Effects RefuseAsEnded(wire::JobEnd::Cause cause) {
    Message message;
    wire::JoinReply& reply = *message.header.mutable_join_reply();
    reply.set_token(42);
    reply.set_code(wire::REJECTED);
    reply.set_error("the job has ended: the reason");
    reply.set_obstacle(wire::JoinReply::JOB_ENDED);
    reply.mutable_end()->set_cause(cause);
    reply.mutable_end()->set_reason("the reason");
    return Receive(message);
  }
  // Four shards; this server owns `owned` of them.
  Message ViewOf(wire::JobState state, int owned) {
    Message message;
    wire::View& view = *message.header.mutable_view();
    view.set_number(++view_number_);
    view.set_state(state);
    view.mutable_end()->set_reason("the reason");
    for (int index : {0, 1}) {
      wire::ServerMember& server = *view.add_server();
      server.set_index(index);
      server.set_draining(index == 1 && draining_);
      for (int t = 0; t < kThreads; ++t)
        server.add_thread()->add_endpoint("tcp://x");
    }
    wire::Table& table = *view.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name("w");
    table.add_shape(4);
    table.set_shard_elements(1);
    for (int i = 0; i < 4; ++i) {
      view.add_owner_server(i < owned ? 1 : 0);
      view.add_owner_thread(0);
    }
    for (int i = 0; i < followed_; ++i) {
      wire::Follower& follower = *view.add_follower();
      follower.set_shard(3 - followed_ + i + 1);
      follower.set_server(1);
    }
    *view.add_phase()->mutable_mode() = ModeOf("bsp");
    return message;
  }
  ServerCore::Effects OnStats(int thread, uint64_t view_number,
                              const run::ServerStats& stats = {}) {
    ServerCore::Effects effects;
    core_->OnStats(thread, view_number, stats, now_, &effects);
    return effects;
  }
  ServerCore::Effects Interrupt() {
    ServerCore::Effects effects;
    core_->Interrupt("server 1 was interrupted", now_, &effects);
    return effects;
  }
  ServerCore::Effects Retire() {
    ServerCore::Effects effects;
    core_->Retire("server 1 was interrupted", now_, &effects);
    return effects;
  }
  ServerCore::Effects Break() {
    ServerCore::Effects effects;
    core_->OnFailure(absl::UnavailableError("shard thread 0: poll: broken"),
                     now_, &effects);
    return effects;
  }
  ServerCore::Effects Tick() {
    now_ = std::max(now_, core_->NextWakeup());
    ServerCore::Effects effects;
    core_->OnTick(now_, &effects);
    return effects;
  }
  // The coordinator's answer to the call in `effects`.
  ServerCore::Effects Answer(const ServerCore::Effects& effects,
                             wire::Code code) {
    Message message;
    message.header.mutable_call_reply()->set_call_id(CallIn(effects).call_id());
    message.header.mutable_call_reply()->set_code(code);
    return Receive(message);
  }
  static wire::Call CallIn(const ServerCore::Effects& effects) {
    for (const Message& message : effects.sends) {
      if (message.header.has_call()) return message.header.call();
    }
    return wire::Call();
  }
  ServerCore::Effects Fenced() {
    Message message;
    message.header.mutable_heartbeat_reply()->set_incarnation(7);
    message.header.mutable_heartbeat_reply()->set_code(wire::FENCED);
    return Receive(message);
  }

  absl::Time now_ = absl::UnixEpoch();
  ServerCore::Options options_;
  std::optional<ServerCore> core_;
  uint64_t view_number_ = 1;
  bool draining_ = false;
  int followed_ = 0;  // Of the last shards.
};

class Server0CoreTest : public ServerCoreTest {
 protected:
  Server0CoreTest() : ServerCoreTest(0) { core_->SetHostsCoordinator(true); }
};

TEST_F(ServerCoreTest, TheEndWaitsForTheLastStatisticsOfEveryThread) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  run::ServerStats stats;
  stats.set_pushes(3);
  OnStats(0, view_number_, stats);
  const ServerCore::Effects last = Receive(ViewOf(wire::FINISHED, 2));
  ASSERT_NE(last.view, nullptr);
  EXPECT_TRUE(last.ask_stats);
  EXPECT_FALSE(last.end.has_value());
  // One that was under way does not count.
  EXPECT_FALSE(OnStats(0, view_number_ - 1, stats).end.has_value());
  stats.set_pushes(4);
  EXPECT_FALSE(OnStats(0, view_number_, stats).end.has_value());
  const ServerCore::Effects end = OnStats(1, view_number_, stats);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kFinished);
  EXPECT_TRUE(end.end->status.ok());
  ASSERT_EQ(end.sends.size(), 1u);
  EXPECT_EQ(end.sends[0].header.view_number(), view_number_);
  EXPECT_EQ(end.sends[0].header.heartbeat().server().pushes(), 8u);
}

TEST_F(ServerCoreTest, AThreadThatDoesNotAnswerHoldsUpTheEndForAWhileOnly) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  Receive(ViewOf(wire::FAILED, 2));
  const absl::Time told = now_;
  const ServerCore::Effects end = Tick();
  EXPECT_EQ(now_ - told, options_.last_stats_max);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kFailed);
  EXPECT_EQ(end.end->status.message(), "the reason");
}

TEST_F(ServerCoreTest, DrainedItLeavesOnceNothingIsThere) {
  Join();
  draining_ = true;
  EXPECT_FALSE(CallIn(Receive(ViewOf(wire::RUNNING, 1))).has_leave());
  const ServerCore::Effects leaves = Receive(ViewOf(wire::RUNNING, 0));
  ASSERT_TRUE(CallIn(leaves).has_leave());
  EXPECT_EQ(CallIn(leaves).leave().failure(), "");
  const ServerCore::Effects left = Answer(leaves, wire::OK);
  ASSERT_TRUE(left.end.has_value());
  EXPECT_EQ(left.end->kind, End::Kind::kLeft);
  EXPECT_TRUE(left.end->status.ok());
}

TEST_F(ServerCoreTest, DrainedItStaysWhileItFollowsShards) {
  Join();
  draining_ = true;
  followed_ = 2;
  EXPECT_FALSE(CallIn(Receive(ViewOf(wire::RUNNING, 0))).has_leave());
  followed_ = 0;
  EXPECT_TRUE(CallIn(Receive(ViewOf(wire::RUNNING, 0))).has_leave());
}

TEST_F(ServerCoreTest, IfTheAnswerToItsLeaveIsLostBeingFencedSaysTheSame) {
  Join();
  draining_ = true;
  Receive(ViewOf(wire::RUNNING, 0));
  const ServerCore::Effects fenced = Fenced();
  ASSERT_TRUE(fenced.end.has_value());
  EXPECT_EQ(fenced.end->kind, End::Kind::kLeft);
}

TEST_F(ServerCoreTest, ALeaveThatIsRefusedIsTriedAgainWithANewerView) {
  Join();
  draining_ = true;
  const ServerCore::Effects leaves = Receive(ViewOf(wire::RUNNING, 0));
  const ServerCore::Effects refused = Answer(leaves, wire::REJECTED);
  EXPECT_FALSE(refused.end.has_value());
  EXPECT_FALSE(CallIn(refused).has_leave());
  EXPECT_FALSE(CallIn(Receive(ViewOf(wire::RUNNING, 1))).has_leave());
  EXPECT_TRUE(CallIn(Receive(ViewOf(wire::RUNNING, 0))).has_leave());
}

TEST_F(ServerCoreTest, InterruptedWithShardsItStopsTheJob) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  EXPECT_EQ(CallIn(Interrupt()).stop().reason(), "server 1 was interrupted");
  Receive(ViewOf(wire::FAILED, 2));
  OnStats(0, view_number_);
  const ServerCore::Effects end = OnStats(1, view_number_);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kFailed);
}

TEST_F(ServerCoreTest, WhoseTimeIsOverIsDrainedAndLeaves) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  const ServerCore::Effects asks = Retire();
  ASSERT_TRUE(CallIn(asks).has_drain());
  EXPECT_EQ(CallIn(asks).drain().server(), 1);
  EXPECT_EQ(asks.log.size(), 1u);
  EXPECT_TRUE(Retire().sends.empty());  // It is under way.
  const ServerCore::Effects answered = Answer(asks, wire::OK);
  EXPECT_TRUE(answered.sends.empty());
  EXPECT_FALSE(answered.end.has_value());
}

TEST_F(ServerCoreTest, WhereNobodyTakesItsShardsItAsksForACheckpointAndGoesOn) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  const ServerCore::Effects asks = Answer(Retire(), wire::REJECTED);
  EXPECT_TRUE(CallIn(asks).has_suspend());
  EXPECT_EQ(CallIn(asks).suspend().reason(), "server 1 was interrupted");
  EXPECT_EQ(asks.log.size(), 2u);
  EXPECT_FALSE(Answer(asks, wire::OK).end.has_value());
  Message last = ViewOf(wire::FAILED, 2);
  last.header.mutable_view()->mutable_end()->set_cause(wire::JobEnd::SUSPENDED);
  Receive(last);
  OnStats(0, view_number_);
  const ServerCore::Effects end = OnStats(1, view_number_);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kFailed);
  EXPECT_TRUE(IsSuspended(end.end->status));
}

// Whoever stays has the coordinator; but where all others are gone, who is to
// leave has it, and so hears what becomes of the job.
TEST_F(ServerCoreTest, WhoIsToLeaveMayHaveTheCoordinatorAndSaysThatItLeaves) {
  for (const char* const why : {"it stays", "drained", "told to end"}) {
    SCOPED_TRACE(why);
    core_.emplace(options_);
    ServerCore::Effects effects;
    core_->Start(now_, &effects);
    core_->OnLink(LinkState::kUp, now_);
    Join();
    draining_ = why == std::string("drained");
    Receive(ViewOf(wire::RUNNING, 2));
    if (why == std::string("told to end")) Retire();
    EXPECT_FALSE(core_->CandidacyAt(now_).may_host);
    for (const absl::Time end = now_ + kLease; now_ < end;) Tick();
    EXPECT_TRUE(core_->CandidacyAt(now_).may_host);
    EXPECT_EQ(core_->CandidacyAt(now_).leaves, why != std::string("it stays"));
  }
}

TEST_F(ServerCoreTest, ComingWhenTheJobHasEndedItEndsAsTheJobHas) {
  const ServerCore::Effects late = RefuseAsEnded(wire::JobEnd::COMPLETED);
  ASSERT_TRUE(late.end.has_value());
  EXPECT_EQ(late.end->kind, End::Kind::kFinished);
  EXPECT_TRUE(late.end->status.ok());
  EXPECT_EQ(late.log.size(), 1u);
}

TEST_F(ServerCoreTest, ComingWhenTheJobHasFailedItFails) {
  const ServerCore::Effects late = RefuseAsEnded(wire::JobEnd::SERVER_LOST);
  ASSERT_TRUE(late.end.has_value());
  EXPECT_EQ(late.end->kind, End::Kind::kFailed);
  EXPECT_EQ(late.end->status.message(), "the reason");
  EXPECT_FALSE(IsSuspended(late.end->status));
}

TEST_F(ServerCoreTest, ComingWhenTheJobIsSuspendedItSaysSo) {
  const ServerCore::Effects late = RefuseAsEnded(wire::JobEnd::SUSPENDED);
  ASSERT_TRUE(late.end.has_value());
  EXPECT_EQ(late.end->kind, End::Kind::kFailed);
  EXPECT_TRUE(IsSuspended(late.end->status));
}

TEST_F(ServerCoreTest, WhomTheCoordinatorInItsProcessCouldNotTellEndsAsTheJob) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  wire::JobEnd end;
  end.set_cause(wire::JobEnd::SERVER_LOST);
  end.set_reason("the reason");
  ServerCore::Effects effects;
  core_->OnCoordinatorOver(end, &effects);
  ASSERT_TRUE(effects.end.has_value());
  EXPECT_EQ(effects.end->kind, End::Kind::kFailed);
  EXPECT_EQ(effects.end->status.message(), "the reason");
  EXPECT_THAT(effects.log,
              ElementsAre(HasSubstr("could not tell this server")));
}

TEST_F(ServerCoreTest, WhoWasToldOfTheEndTellsItsLastStatistics) {
  Join();
  Receive(ViewOf(wire::FINISHED, 2));
  wire::JobEnd end;
  end.set_cause(wire::JobEnd::COMPLETED);
  ServerCore::Effects effects;
  core_->OnCoordinatorOver(end, &effects);
  EXPECT_FALSE(effects.end.has_value());
  OnStats(0, view_number_);
  effects = OnStats(1, view_number_);
  ASSERT_TRUE(effects.end.has_value());
  EXPECT_EQ(effects.end->kind, End::Kind::kFinished);
  EXPECT_FALSE(effects.sends.empty());
}

TEST_F(ServerCoreTest, WhoHostsTheCoordinatorAsksForACheckpointAtOnce) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  core_->SetHostsCoordinator(true);
  EXPECT_TRUE(CallIn(Retire()).has_suspend());
}

TEST_F(ServerCoreTest, WhoHasTheCoordinatorAfterAllAsksForACheckpoint) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  Answer(Retire(), wire::OK);
  core_->SetHostsCoordinator(true);
  EXPECT_TRUE(CallIn(Tick()).has_suspend());
  EXPECT_TRUE(Tick().log.empty());  // Once.
}

TEST_F(ServerCoreTest, InterruptedMeanwhileItStopsTheJob) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  const ServerCore::Effects asks = Retire();
  EXPECT_FALSE(CallIn(Interrupt()).has_suspend());
  // That is its wish now, whatever becomes of the other.
  EXPECT_TRUE(Answer(asks, wire::REJECTED).sends.empty());
}

TEST_F(ServerCoreTest, ToldTwiceThatItsTimeIsOverItStopsTheJob) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  Answer(Retire(), wire::REJECTED);
  EXPECT_FALSE(CallIn(Interrupt()).has_suspend());
}

TEST_F(ServerCoreTest, WhoseTimeIsOverBeforeItHasJoinedJustEnds) {
  const ServerCore::Effects end = Retire();
  ASSERT_TRUE(end.end.has_value());
  EXPECT_TRUE(end.sends.empty());
}

TEST_F(ServerCoreTest, WhoseTimeIsOverWhileTheCoordinatorIsSilentEnds) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  for (int i = 0; i < 30; ++i) {
    now_ += absl::Seconds(1);
    Tick();
  }
  EXPECT_FALSE(CallIn(Retire()).has_suspend());
}

TEST_F(ServerCoreTest, InterruptedWithoutShardsItLeavesAndTheJobGoesOn) {
  Join();
  Receive(ViewOf(wire::RUNNING, 0));
  const ServerCore::Effects leaves = Interrupt();
  ASSERT_TRUE(CallIn(leaves).has_leave());
  EXPECT_EQ(Answer(leaves, wire::OK).end->kind, End::Kind::kLeft);
}

// A server that is added to a running job, before its first view has come. It
// used to stop the job.
TEST_F(ServerCoreTest, InterruptedBeforeItsFirstViewItLeavesWithTheReason) {
  Join();
  const ServerCore::Effects leaves = Interrupt();
  EXPECT_FALSE(CallIn(leaves).has_stop());
  EXPECT_EQ(CallIn(leaves).leave().failure(), "server 1 was interrupted");
  const ServerCore::Effects end = Answer(leaves, wire::OK);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kGaveUp);
  EXPECT_EQ(end.end->status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ServerCoreTest, InterruptedBeforeItHasJoinedItJustEnds) {
  const ServerCore::Effects end = Interrupt();
  ASSERT_TRUE(end.end.has_value());
  EXPECT_TRUE(end.sends.empty());
}

TEST_F(ServerCoreTest, InterruptedItDoesNotWaitForASilentCoordinator) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  Interrupt();
  const absl::Time interrupted = now_;
  ServerCore::Effects effects;
  while (!effects.end.has_value()) effects = Tick();
  EXPECT_EQ(now_ - interrupted, options_.leave_max);
  EXPECT_EQ(effects.end->status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ServerCoreTest, AThreadThatStopsWithAnErrorEndsItsMembershipAtOnce) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  const ServerCore::Effects leaves = Break();
  EXPECT_EQ(CallIn(leaves).leave().failure(), "shard thread 0: poll: broken");
  const ServerCore::Effects end = Answer(leaves, wire::OK);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->kind, End::Kind::kGaveUp);
  EXPECT_EQ(end.end->status.message(), "shard thread 0: poll: broken");
}

TEST_F(Server0CoreTest, AThreadOfTheCoordinatorsServerThatStopsEndsTheJob) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  EXPECT_EQ(CallIn(Break()).stop().reason(),
            "server 0 failed: shard thread 0: poll: broken");
  Receive(ViewOf(wire::FAILED, 2));
  OnStats(0, view_number_);
  const ServerCore::Effects end = OnStats(1, view_number_);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->status.message(), "shard thread 0: poll: broken");
}

TEST_F(ServerCoreTest, AServerThatWasStoppedForTooLongSaysSo) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  now_ += 3 * kLease;
  ServerCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_FALSE(effects.end.has_value());
  const ServerCore::Effects fenced = Fenced();
  ASSERT_TRUE(fenced.end.has_value());
  EXPECT_EQ(fenced.end->kind, End::Kind::kGaveUp);
  EXPECT_THAT(std::string(fenced.end->status.message()),
              AllOf(HasSubstr("gave this server up, and its shards with it"),
                    HasSubstr("was stopped for 15s")));
}

TEST_F(ServerCoreTest, StoppedForTooLongAndTheCoordinatorIsGoneByThen) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  now_ += 3 * kLease;
  core_->OnLink(LinkState::kGone, now_);
  ServerCore::Effects effects;
  while (!effects.end.has_value()) effects = Tick();
  EXPECT_THAT(std::string(effects.end->status.message()),
              AllOf(HasSubstr("nobody listens there any more"),
                    HasSubstr("this process itself was stopped for 15s")));
}

wire::CutPart PartOf(int32_t cut, int thread) {
  wire::CutPart part;
  part.set_cut(cut);
  part.set_thread(thread);
  part.mutable_part()->set_file("server-1-thread-0.safetensors");
  part.mutable_part()->set_shards(2);
  return part;
}

TEST_F(ServerCoreTest, APartOfACutIsToldUntilItIsAnswered) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  ServerCore::Effects told;
  core_->OnCutPart(PartOf(3, 1), now_, &told);
  ASSERT_TRUE(CallIn(told).has_cut_part());
  EXPECT_EQ(CallIn(told).incarnation(), 7u);
  const auto times_told_again = [&] {
    int times = 0;
    for (int tick = 0; tick < 10; ++tick) {
      const ServerCore::Effects again = Tick();
      if (!CallIn(again).has_cut_part()) continue;
      EXPECT_EQ(CallIn(again).call_id(), CallIn(told).call_id());
      EXPECT_EQ(CallIn(again).cut_part().cut(), 3);
      EXPECT_EQ(CallIn(again).cut_part().thread(), 1);
      EXPECT_EQ(CallIn(again).cut_part().part().shards(), 2);
      ++times;
    }
    return times;
  };
  EXPECT_GT(times_told_again(), 0);
  // Whatever the answer is: it has been heard.
  EXPECT_FALSE(Answer(told, wire::REJECTED).end.has_value());
  EXPECT_EQ(times_told_again(), 0);
}

TEST_F(ServerCoreTest, ItIsToldBesideALeaveAndDoesNotAnswerIt) {
  Join();
  draining_ = true;
  const ServerCore::Effects leaves = Receive(ViewOf(wire::RUNNING, 0));
  ASSERT_TRUE(CallIn(leaves).has_leave());
  ServerCore::Effects told;
  core_->OnCutPart(PartOf(1, 0), now_, &told);
  ASSERT_TRUE(CallIn(told).has_cut_part());
  EXPECT_FALSE(Answer(told, wire::OK).end.has_value());
  EXPECT_EQ(Answer(leaves, wire::OK).end->kind, End::Kind::kLeft);
}

TEST_F(ServerCoreTest, APartForAJobThatHasEndedOrIsNotJoinedIsDropped) {
  ServerCore::Effects effects;
  core_->OnCutPart(PartOf(1, 0), now_, &effects);
  EXPECT_TRUE(effects.sends.empty());
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  ServerCore::Effects told;
  core_->OnCutPart(PartOf(1, 0), now_, &told);
  EXPECT_TRUE(CallIn(told).has_cut_part());
  Receive(ViewOf(wire::FINISHED, 2));
  core_->OnCutPart(PartOf(1, 1), now_, &effects);
  EXPECT_TRUE(effects.sends.empty());
  while (!effects.end.has_value()) {
    effects = Tick();
    EXPECT_FALSE(CallIn(effects).has_cut_part()) << "nor is the first one";
  }
  core_->OnCutPart(PartOf(1, 1), now_, &effects);
}

TEST_F(ServerCoreTest, WhomACoordinatorHereHasRefusedCountsOnce) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  run::Refusals refused;
  refused.set_other_key(5);
  core_->SetCoordinatorRefused(refused);
  run::ServerStats stats;
  stats.mutable_refused()->set_other_key(2);
  Receive(ViewOf(wire::FINISHED, 2));
  OnStats(0, view_number_, stats);
  const ServerCore::Effects end = OnStats(1, view_number_, stats);
  ASSERT_EQ(end.sends.size(), 1u);
  EXPECT_EQ(end.sends[0].header.heartbeat().server().refused().other_key(), 9u);
}

TEST_F(ServerCoreTest, CollectsStatisticsAndTellsNewsOfMovesAtOnce) {
  Join();
  Receive(ViewOf(wire::RUNNING, 2));
  int asked = 0;
  const absl::Time start = now_;
  while (now_ < start + absl::Seconds(5)) asked += Tick().ask_stats;
  EXPECT_GE(asked, 10);
  run::ServerStats stats;
  EXPECT_TRUE(OnStats(0, view_number_, stats).sends.empty());
  stats.add_hand_over()->set_state(run::HandOverState::DONE);
  EXPECT_EQ(OnStats(0, view_number_, stats).sends.size(), 1u);
  EXPECT_TRUE(OnStats(0, view_number_, stats).sends.empty());
}

}  // namespace slackline::server_core_test
