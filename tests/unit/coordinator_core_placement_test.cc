// Goal: that shards move as they are told to, that servers come and go, and
// when the coordinator plans moves by itself. Method: a job of a few members,
// played by hand on virtual time.
#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_placement_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- Moves ------------------------------------------------------------------

TEST_F(PlacementTest, AMoveIsOrderedAndItsEndGivesTheShardAway) {
  StartJob();
  ASSERT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0));
  const CoordinatorCore::Effects ordered = Ask(Moving({2}, 1));
  const wire::CallReply reply = ReplyIn(ordered);
  EXPECT_EQ(reply.code(), wire::OK);
  EXPECT_EQ(reply.plan().summary(), "1 shards to server 1");
  ASSERT_EQ(reply.plan().move_size(), 1);
  EXPECT_EQ(reply.plan().move(0).name(), "weight[4, 6)");
  EXPECT_EQ(reply.plan().move(0).bytes(), 2 * 4 * 2) << "with its slot";
  const wire::View* const view = ViewFor(ordered, Server(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok());
  EXPECT_THAT(MovesOf(*view), ElementsAre("2>1.0"));
  EXPECT_EQ(view->move(0).id(), view->number());
  EXPECT_EQ(view->owner_server(2), 0) << "until it is done";

  now_ += absl::Seconds(3);
  const CoordinatorCore::Effects done = Done(2);
  const wire::View* const next = ViewFor(done, Worker(0));
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(MovesOf(*next), IsEmpty());
  EXPECT_EQ(next->owner_server(2), 1);
  EXPECT_GT(next->number(), view->number());
  EXPECT_THAT(done.log, ElementsAre(HasSubstr(
                            "shard 2 (weight[4, 6)) has moved from server 0 to "
                            "server 1: 24 bytes in 7 ms, not served for at "
                            "most 300 us")));
  ASSERT_EQ(done.moves.size(), 1u);
  EXPECT_EQ(done.moves[0].seconds(), 3);
  EXPECT_EQ(done.moves[0].shard_bytes(), 16);
  EXPECT_EQ(done.moves[0].reason(), "a user asked for it");
}

TEST_F(PlacementTest, AMoveThatIsNotDoneYetChangesNothing) {
  StartJob();
  Ask(Moving({2}, 1));
  EXPECT_EQ(ViewFor(Said(2, run::HandOverState::COPYING), Worker(0)), nullptr);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0));
}

TEST_F(PlacementTest, TheEndOfAMoveCountsOnce) {
  StartJob();
  Ask(Moving({2}, 1));
  run::ServerStats stats;
  run::HandOverState& state = *stats.add_hand_over();
  state.set_shard(2);
  state.set_state(run::HandOverState::DONE);
  state.set_move(ViewNow().move(0).id() + 1);
  EXPECT_EQ(Tell(0, stats).moves.size(), 0u) << "of another move";
  state.set_move(ViewNow().move(0).id());
  EXPECT_EQ(Tell(0, stats).moves.size(), 1u);
  const uint64_t number = ViewNow().number();
  EXPECT_EQ(Tell(0, stats).moves.size(), 0u);
  EXPECT_EQ(ViewNow().number(), number);
  EXPECT_EQ(core_->Summary().shards_moved(), 1);
}

TEST_F(PlacementTest, ARepeatedCallIsAnsweredAgainAndDoneOnce) {
  StartJob();
  const CoordinatorCore::Effects first = Call(kUser, 0, 9, Moving({2}, 1));
  const uint64_t number = ViewNow().number();
  const CoordinatorCore::Effects again = Call(kUser, 0, 9, Moving({2}, 1));
  EXPECT_EQ(ReplyIn(again).SerializeAsString(),
            ReplyIn(first).SerializeAsString());
  EXPECT_EQ(ViewNow().number(), number);
  PeerId other = kUser;
  other.instance = 6;
  EXPECT_THAT(Answers(Call(other, 0, 9, Moving({2}, 1))),
              ElementsAre("observer.0.6:9 REJECTED"))
      << "another's call of that number is not this one";
}

TEST_F(PlacementTest, WhatCannotMoveIsRefusedWithTheReason) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  Ask(Draining(2));
  Ask(Moving({0}, 1));
  const uint64_t number = ViewNow().number();
  const struct {
    std::function<void(wire::Call&)> call;
    const char* reason;
  } cases[] = {
      {Moving({2}, 3), "the job has no server 3"},
      {Moving({2}, -1), "the job has no server -1"},
      {Moving({2}, 2), "server 2 is being drained"},
      {Moving({2}, 1, 1), "server 1 has no thread 1; it has 1"},
      {Moving({2}, 1, -2), "server 1 has no thread -2; it has 1"},
      {Moving({2, 5}, 1), "there is no shard 5; the job has shards 0 to 4"},
      {Moving({-1}, 1), "there is no shard -1"},
      {Moving({0}, 1), "shard 0 (weight[0, 2)) is on its way already"},
      {Rebalancing, "1 moves are under way; try again when they are done"},
      {Draining(3), "the job has no server 3"},
      {Draining(0), "server 0 hosts the coordinator and has to stay"},
  };
  for (const auto& c : cases) {
    const wire::CallReply reply = ReplyIn(Ask(c.call));
    wire::Call call;
    c.call(call);
    // What is under way passes.
    EXPECT_EQ(reply.code(), call.has_rebalance() ? wire::BUSY : wire::REJECTED)
        << c.reason;
    EXPECT_THAT(reply.error(), HasSubstr(c.reason));
    EXPECT_EQ(ViewNow().number(), number) << c.reason;
  }
}

TEST_F(PlacementTest, NothingMovesWhereNothingMay) {
  const auto why = [&] { return ReplyIn(Ask(Moving({2}, 1))).error(); };
  EXPECT_EQ(why(), "the job does not run");
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_EQ(why(), "the job does not run");

  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  EXPECT_EQ(why(),
            "the workers hold the model while they all-reduce; shards can move "
            "once the mode has changed");

  options_.config.mutable_sync()->mutable_asp();
  options_.config.mutable_rebalance()->set_mode(config::Rebalance::OFF);
  Restart();
  StartJob();
  EXPECT_THAT(why(), HasSubstr("rebalance { mode: OFF }; MANUAL allows it"));
}

TEST_F(PlacementTest, AMoveToWhereTheShardIsAlreadyIsNone) {
  StartJob();
  const uint64_t number = ViewNow().number();
  const wire::CallReply reply = ReplyIn(Ask(Moving({0, 2}, 0)));
  EXPECT_EQ(reply.code(), wire::OK);
  EXPECT_EQ(reply.plan().summary(), "all of it is on server 0 already");
  EXPECT_EQ(ViewNow().number(), number);
}

TEST_F(PlacementTest, NoMoreMovesThanTheBoundAreUnderWayAtAServer) {
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  Restart();
  StartJob();
  AddServer(2);
  AddServer(3);
  Ask(Moving({0, 2, 4}, 2));
  Ask(Moving({1, 3}, 3));
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>2.0", "1>3.0"))
      << "those of other servers do not wait for these";
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_EQ(status.plan().move_size(), 5);
  int ordered = 0;
  for (const run::PlannedMove& move : status.plan().move())
    ordered += move.ordered();
  EXPECT_EQ(ordered, 2);
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("1>3.0", "2>2.0"));
  EXPECT_EQ(ViewNow().move(1).id(), ViewNow().number())
      << "of the view that orders";
  Done(1);
  Done(2);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("3>3.0", "4>2.0"));
  Done(3);
  Done(4);
  EXPECT_THAT(Owners(), ElementsAre(2, 3, 2, 3, 2));
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
}

TEST_F(PlacementTest, StatusAndSummarySayWhatHasMoved) {
  StartJob();
  Ask(Moving({0, 2}, 1));
  Done(0);
  Done(2);
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_EQ(status.moved_size(), 2);
  EXPECT_EQ(status.moved(0).shard(), 0);
  EXPECT_EQ(status.moved(1).shard(), 2);
  EXPECT_EQ(status.moves(), 2);
  EXPECT_EQ(status.next_server(), 2);
  const wire::StatusReply rest = core_->Status(now_, /*moves_known=*/1);
  ASSERT_EQ(rest.moved_size(), 1);
  EXPECT_EQ(rest.moved(0).shard(), 2);
  EXPECT_EQ(core_->Summary().shards_moved(), 2);
  EXPECT_EQ(core_->Summary().bytes_moved(), 48u);
  EXPECT_EQ(core_->Summary().move_pause_micros().max(), 300);
}

TEST_F(PlacementTest, AShardLostOnItsWayFailsTheJob) {
  StartJob();
  const PeerId added = AddServer(2);
  Ask(Moving({2}, 2));
  const run::ServerStats stats = LostOnItsWay(2, 2);
  Tell(0, stats);
  EXPECT_EQ(core_->state(), wire::RUNNING) << "server 2 is alive";
  Pass(absl::Seconds(6), {added});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Tell(0, stats);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              HasSubstr("server 2, to which shard 2 was just moving from "
                        "server 0, has died"));
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SHARD_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(2));
  EXPECT_THAT(core_->view().end().shard(), ElementsAre(2));
}

TEST_F(PlacementTest, TheDeathOfAnEmptyServerCancelsTheMovesToIt) {
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  Restart();
  StartJob();
  const PeerId added = AddServer(2);
  Ask(Moving({0, 2}, 2));
  Ask(Moving({4}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>2.0"));
  Pass(absl::Seconds(6), {added});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(ViewNow().server_size(), 2);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("4>1.0")) << "it has its turn";
  Done(4);
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 1));
}

TEST_F(PlacementTest, TheDeathOfAServerWithShardsFailsTheJobDuringMovesToo) {
  StartJob();
  Ask(Moving({1, 3}, 0));
  Done(1);
  Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(1));
}

// ---- Servers come -----------------------------------------------------------

TEST_F(PlacementTest, AServerMayJoinARunningJob) {
  StartJob();
  EXPECT_EQ(core_->Status(now_).next_server(), 2);
  const CoordinatorCore::Effects effects =
      SendJoin(Server(4), JoinOf(Server(4)));
  const wire::View* const view = ViewFor(effects, Worker(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(View::Create(*view).ok());
  ASSERT_EQ(view->server_size(), 3);
  EXPECT_EQ(view->server(2).index(), 4) << "indexes may be left out";
  EXPECT_NE(ViewFor(effects, Server(4)), nullptr);
  EXPECT_EQ(core_->Status(now_).next_server(), 5);
  EXPECT_EQ(Join(Server(4)).code(), wire::OK) << "repeated";
  EXPECT_EQ(ViewNow().server_size(), 3);
}

TEST_F(PlacementTest, AnAddedServerTakesAnIndexThatNoOtherHas) {
  StartJob();
  const PeerId added = AddServer(3);
  const auto join = [&](int index) {
    PeerId peer = Server(index);
    peer.instance = 999 + static_cast<uint64_t>(index);
    return Join(peer);
  };
  for (const int index : {-1, 100000}) {
    const wire::JoinReply reply = join(index);
    EXPECT_EQ(reply.code(), wire::REJECTED) << index;
    EXPECT_THAT(reply.error(),
                HasSubstr(absl::StrCat("server ", index, ": the job runs")));
    EXPECT_THAT(reply.error(), HasSubstr("from 4 on, below 100000"));
  }
  for (const int index : {1, 3}) {
    const wire::JoinReply reply = join(index);
    EXPECT_EQ(reply.code(), wire::RETRY) << index;
    EXPECT_THAT(reply.error(), HasSubstr("holds this place"));
  }
  EXPECT_EQ(join(2).code(), wire::OK) << "left out before";
  Pass(absl::Seconds(6), {added, Server(2)});
  EXPECT_EQ(join(3).code(), wire::OK) << "that one is gone";
  EXPECT_EQ(ViewNow().server_size(), 3);
}

TEST_F(PlacementTest, BeforeTheJobRunsOnlyTheConfigsServersJoin) {
  const wire::JoinReply reply = Join(Server(2));
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_THAT(reply.error(), HasSubstr("the index must be in [0, 2)"));
}

TEST_F(PlacementTest, AServerMayJoinAnAllReduceJobAndWaitsForShards) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t group = ViewNow().group();
  AddServer(2);
  EXPECT_EQ(ViewNow().server_size(), 3);
  EXPECT_EQ(ViewNow().group(), group) << "the workers are the same";
}

TEST_F(PlacementTest, AServersDeathFailsAnAllReduceJob) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Server(1)});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(), HasSubstr("its shards are lost"));
}

// ---- Servers go -------------------------------------------------------------

TEST_F(PlacementTest, ADrainedServerGivesAllAwayAndLeaves) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  const CoordinatorCore::Effects effects = Ask(Draining(1));
  const wire::CallReply reply = ReplyIn(effects);
  EXPECT_EQ(reply.code(), wire::OK) << reply.error();
  EXPECT_EQ(reply.plan().move_size(), 2);
  for (const run::PlannedMove& move : reply.plan().move())
    EXPECT_EQ(move.reason(), "server 1 is drained");
  const wire::View* const view = ViewFor(effects, Server(1));
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(view->server(1).draining());
  EXPECT_FALSE(view->server(0).draining());

  const auto leave = [&](uint64_t id) {
    return Call(Server(1), servers_[1], id,
                [](wire::Call& call) { call.mutable_leave(); });
  };
  const CoordinatorCore::Effects early = leave(1);
  EXPECT_THAT(Answers(early), ElementsAre("server.1.201:1 REJECTED"));
  EXPECT_THAT(early.sends[0].message.header.call_reply().error(),
              HasSubstr("still has shards"));
  Done(1);
  EXPECT_THAT(Answers(leave(2)), ElementsAre("server.1.201:2 REJECTED"));
  Done(3);
  const CoordinatorCore::Effects left = leave(3);
  EXPECT_THAT(Answers(left), ElementsAre("server.1.201:3 OK"));
  EXPECT_THAT(left.log, ElementsAre(HasSubstr("had no shards and has left")));
  EXPECT_EQ(core_->state(), wire::RUNNING);
  ASSERT_NE(ViewFor(left, Worker(0)), nullptr);
  EXPECT_EQ(ViewNow().server_size(), 2);
  EXPECT_THAT(Owners(), Not(testing::Contains(1)));
}

TEST_F(PlacementTest, AnEmptyServerToWhichAShardIsOnItsWayHasToStay) {
  StartJob();
  AddServer(2);
  Ask(Moving({0}, 2));
  const CoordinatorCore::Effects effects =
      Call(Server(2), servers_[2], 1,
           [](wire::Call& call) { call.mutable_leave(); });
  EXPECT_THAT(effects.sends.at(0).message.header.call_reply().error(),
              HasSubstr("server 2 (pid 4202 on somewhere) still has shards, or "
                        "is to get some"));
}

TEST_F(PlacementTest, AServerWithoutShardsMayLeaveUnlessItIsTheFirst) {
  StartJob();
  AddServer(2);
  Ask(Moving({0, 2, 4}, 1));
  for (const int32_t shard : {0, 2, 4}) Done(shard);
  const auto leave = [&](int server) {
    return Answers(Call(Server(server), servers_[server], 1,
                        [](wire::Call& call) { call.mutable_leave(); }));
  };
  EXPECT_THAT(leave(2), ElementsAre("server.2.202:1 OK"));
  EXPECT_THAT(leave(0), ElementsAre("server.0.200:1 REJECTED"))
      << "it hosts the coordinator";
  EXPECT_EQ(ViewNow().server_size(), 2);
}

TEST_F(PlacementTest, TheLastServerThatTakesShardsIsNotDrained) {
  StartJob();
  AddServer(2);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  EXPECT_EQ(ReplyIn(Ask(Draining(1))).code(), wire::OK);
  EXPECT_EQ(ReplyIn(Ask(Draining(2))).code(), wire::OK)
      << "server 0 is left to take them";
  EXPECT_EQ(ReplyIn(Ask(Draining(1))).code(), wire::OK) << "as it is already";
}

TEST_F(PlacementTest, ADrainWaitsForAServerWhenTheLastOfTheOthersHasGone) {
  StartJob();
  AddServer(2);
  Ask(Moving({0, 2, 4}, 1));
  for (const int32_t shard : {0, 2, 4}) Done(shard);
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  ASSERT_EQ(ReplyIn(Ask(Draining(1))).code(), wire::OK);
  const CoordinatorCore::Effects gone =
      Pass(options_.lease() * 2, {Server(0), Server(2)});
  ASSERT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(
      gone.log,
      testing::Contains(HasSubstr("no server is left that may take shards")));
  EXPECT_THAT(Owners(), testing::Each(1));
  AddServer(3);
  Load(1, 0.1);
  Load(3, 0.1);
  now_ += absl::Seconds(3);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  EXPECT_GT(ViewNow().move_size(), 0) << "it goes on";
}

TEST_F(PlacementTest, AServerIsNotDrainedBeforeTheLoadsAreKnown) {
  StartJob();
  Load(1, 0.1);
  const wire::CallReply reply = ReplyIn(Ask(Draining(1)));
  EXPECT_EQ(reply.code(), wire::BUSY);
  EXPECT_THAT(reply.error(),
              HasSubstr("server 0 has not said yet how loaded it is"));
  EXPECT_FALSE(ViewNow().server(1).draining());
  EXPECT_EQ(ReplyIn(Ask(Moving({0}, 1))).code(), wire::OK)
      << "it still takes shards";
}

TEST_F(PlacementTest, WhatComesToADrainedServerGoesAgain) {
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  options_.config.mutable_limits()->set_lease_ms(3600000);
  Restart();
  StartJob();
  AddServer(2);
  Ask(Moving({0, 2}, 2));
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  Ask(Draining(2));
  Done(0);
  Done(2);
  ASSERT_THAT(Owners(), ElementsAre(2, 1, 2, 1, 0));
  for (int server = 0; server < 3; ++server) Load(server, 0.1);
  now_ += absl::Seconds(3);
  CoordinatorCore::Effects effects;
  core_->OnTick(now_, &effects);
  ASSERT_THAT(MovesOf(ViewNow()), SizeIs(1));
  while (ViewNow().move_size() > 0) Done(ViewNow().move(0).shard());
  EXPECT_THAT(Owners(), Not(testing::Contains(2)));
}

// ---- Plans ------------------------------------------------------------------

TEST_F(PlacementTest, APlanMovesWorkToWhereThereIsLess) {
  StartJob();
  LoadUnevenly();
  const wire::CallReply reply = ReplyIn(Ask(Rebalancing));
  EXPECT_EQ(reply.code(), wire::OK) << reply.error();
  ASSERT_EQ(reply.plan().move_size(), 1) << reply.plan().summary();
  EXPECT_EQ(reply.plan().move(0).from_server(), 0);
  EXPECT_EQ(reply.plan().move(0).to_server(), 1);
  EXPECT_NEAR(reply.plan().worst_before(), 0.9, 1e-6);
  EXPECT_NEAR(reply.plan().worst_after(), 0.6, 1e-6);
  EXPECT_EQ(
      reply.plan().move(0).reason(),
      "server 0 thread 0 is busy 90 % of its time, server 1 thread 0 2 %");
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(PlacementTest, ADryRunOnlyPlans) {
  StartJob();
  LoadUnevenly();
  const uint64_t number = ViewNow().number();
  const wire::CallReply reply = ReplyIn(Ask(
      [](wire::Call& call) { call.mutable_rebalance()->set_dry_run(true); }));
  EXPECT_EQ(reply.plan().move_size(), 1);
  EXPECT_EQ(ViewNow().number(), number);
  EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
}

TEST_F(PlacementTest, NothingIsPlannedBeforeTheLoadsAreKnown) {
  StartJob();
  Load(0, 0.3);
  const wire::CallReply reply = ReplyIn(Ask(Rebalancing));
  EXPECT_EQ(reply.code(), wire::BUSY);
  EXPECT_EQ(reply.error(),
            "server 1 has not said yet how loaded it is; try again in a "
            "second");
}

class AutoPlacementTest : public PlacementTest {
 protected:
  AutoPlacementTest() {
    options_.config.mutable_rebalance()->set_mode(config::Rebalance::AUTO);
    options_.config.mutable_limits()->set_lease_ms(3600000);
    Restart();
  }
  // Ticks when the core wants to be woken, for so long.
  CoordinatorCore::Effects Wait(absl::Duration time) {
    CoordinatorCore::Effects effects;
    const absl::Time end = now_ + time;
    int wakeups = 0;
    while (core_->NextWakeup() <= end) {
      now_ = std::max(now_, core_->NextWakeup());
      core_->OnTick(now_, &effects);
      if (++wakeups > 1000) {
        ADD_FAILURE() << "it does not sleep";
        break;
      }
    }
    now_ = end;
    return effects;
  }
};

TEST_F(AutoPlacementTest, PlansByItselfAfterTheInterval) {
  StartJob();
  LoadUnevenly();
  Wait(absl::Milliseconds(1900));
  EXPECT_EQ(ViewNow().move_size(), 0);
  const CoordinatorCore::Effects effects = Wait(absl::Milliseconds(200));
  EXPECT_EQ(ViewNow().move_size(), 1);
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("rebalancing: ")));
  EXPECT_NE(ViewFor(effects, Server(1)), nullptr);
}

TEST_F(AutoPlacementTest, PlansNothingBeforeAllLoadsAreKnown) {
  StartJob();
  Load(0, 0.3);
  Wait(absl::Seconds(10));
  EXPECT_EQ(ViewNow().move_size(), 0);
  Load(1, 0.01);
  Wait(absl::Seconds(3));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, PlansNothingWhileMovesAreUnderWay) {
  StartJob();
  Ask(Moving({1}, 0));
  LoadUnevenly();
  Wait(absl::Seconds(10));
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("1>0.0"));
}

TEST_F(AutoPlacementTest, LoadsAreMeasuredAnewAfterAMove) {
  options_.config.mutable_rebalance()->set_rest_ms(0);
  Restart();
  StartJob();
  LoadUnevenly();
  Wait(absl::Milliseconds(2100));
  ASSERT_EQ(ViewNow().move_size(), 1);
  Wait(absl::Milliseconds(1900));
  Done(ViewNow().move(0).shard());
  LoadUnevenly();
  Wait(absl::Milliseconds(1900));
  EXPECT_EQ(ViewNow().move_size(), 0);
  Wait(absl::Milliseconds(200));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, AShardThatHasMovedRests) {
  StartJob();
  Ask(Moving({0, 2, 4}, 1));
  for (const int32_t shard : {0, 2, 4}) Done(shard);
  Load(0, 0.01);
  run::ServerStats stats;
  run::ThreadLoad& load = *stats.add_thread();
  load.set_bytes_per_busy_second(1e9);
  for (const int32_t shard : {0, 2, 4}) {
    load.add_shard()->set_shard(shard);
    load.mutable_shard(load.shard_size() - 1)->set_busy(0.3);
  }
  Tell(1, stats);
  Wait(absl::Seconds(9));
  EXPECT_EQ(ViewNow().move_size(), 0) << "those with load rest";
  Wait(absl::Seconds(4));
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(AutoPlacementTest, OnlyAutoPlansByItself) {
  options_.config.mutable_rebalance()->set_mode(config::Rebalance::MANUAL);
  Restart();
  StartJob();
  LoadUnevenly();
  EXPECT_THAT(Wait(absl::Seconds(30)).log, IsEmpty());
  EXPECT_EQ(ViewNow().move_size(), 0);
}

TEST_F(AutoPlacementTest, WhereNothingMovesItSleepsAllTheSame) {
  options_.config.mutable_rebalance()->set_mode(config::Rebalance::OFF);
  Restart();
  StartJob();
  LoadUnevenly();
  Wait(absl::Seconds(30));
  EXPECT_EQ(ViewNow().move_size(), 0);
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  servers_.clear();
  workers_.clear();
  StartJob();
  Wait(absl::Seconds(30));
}

TEST_F(AutoPlacementTest, PlansNothingWhileTheModeChanges) {
  steps_total_ = 100;
  StartJob();
  LoadUnevenly();
  Ask([](wire::Call& call) {
    call.mutable_set_mode()->mutable_mode()->mutable_asp();
  });
  Wait(absl::Seconds(10));
  EXPECT_EQ(ViewNow().move_size(), 0);
}

}  // namespace slackline::coordinator_core_placement_test
