// Goal: with copies of each shard elsewhere, a job goes on without a server
// that dies: its shards have other owners in the view that lacks it, and the
// copies that are missing are made anew, a few at a time, on servers that stay.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_copies_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Shards of two elements over three servers of one thread: shards 0 and 3
// belong to server 0, 1 and 4 to server 1, 2 to server 2.
class CopiesTest : public PlacementTest {
 protected:
  CopiesTest() {
    options_.servers = 3;
    options_.config.set_replicas(1);
    Restart();
  }

  // "1 2+": servers 1 and 2 follow the shard, and server 2 is in sync.
  std::string Followers(int32_t shard) {
    std::vector<std::string> texts;
    for (const wire::Follower& follower : core_->view().follower()) {
      if (follower.shard() != shard) continue;
      texts.push_back(
          absl::StrCat(follower.server(), follower.in_sync() ? "+" : ""));
    }
    return absl::StrJoin(texts, " ");
  }
  std::vector<std::string> AllFollowers() {
    std::vector<std::string> texts;
    for (int32_t shard = 0; shard < ViewNow().owner_server_size(); ++shard)
      texts.push_back(Followers(shard));
    return texts;
  }
  int Copying() {
    const wire::View view = ViewNow();
    return static_cast<int>(
        std::count_if(view.follower().begin(), view.follower().end(),
                      [](const auto& f) { return !f.in_sync(); }));
  }

  // What the owner says of a follower as it is listed now.
  run::FollowerState StateOf(const wire::Follower& follower) {
    run::FollowerState state;
    state.set_shard(follower.shard());
    state.set_server(follower.server());
    state.set_since(follower.since());
    state.set_in_sync(true);
    return state;
  }
  // The owners say that the copies which are made now are in sync.
  CoordinatorCore::Effects CopiesAreMade() {
    const wire::View view = ViewNow();
    CoordinatorCore::Effects all;
    for (const wire::Follower& follower : view.follower()) {
      if (follower.in_sync()) continue;
      run::ServerStats stats;
      *stats.add_follower() = StateOf(follower);
      CoordinatorCore::Effects effects =
          Tell(view.owner_server(follower.shard()), stats);
      std::move(effects.log.begin(), effects.log.end(),
                std::back_inserter(all.log));
    }
    return all;
  }
  void MakeAllCopies() {
    for (int i = 0; i < 100 && Copying() > 0; ++i) CopiesAreMade();
  }

  CoordinatorCore::Effects Kill(std::vector<int> servers) {
    std::vector<PeerId> silent;
    for (const int server : servers) silent.push_back(Server(server));
    return Pass(options_.lease() + absl::Seconds(1), silent);
  }

  // Whatever has happened: what a view may have, and what the budget allows
  // to be begun. Copies that the owner before had begun go on beyond it.
  void Check() {
    const wire::View& view = core_->view();
    ASSERT_TRUE(View::Create(view).ok()) << View::Create(view).status();
    std::map<int32_t, int> busy;
    std::set<int32_t> begun;
    for (const wire::Follower& follower : view.follower()) {
      if (follower.in_sync()) continue;
      for (const int32_t server :
           {follower.server(), view.owner_server(follower.shard())}) {
        ++busy[server];
        if (follower.since() == view.number()) begun.insert(server);
      }
    }
    for (const int32_t server : begun) {
      EXPECT_LE(busy[server], options_.config.rebalance().concurrent_moves())
          << "server " << server;
    }
  }
};

// ---- At the start -----------------------------------------------------------

TEST_F(CopiesTest, EachShardHasACopyElsewhereFromTheStart) {
  StartJob();
  const wire::View view = ViewNow();
  ASSERT_EQ(view.follower_size(), 5);
  std::map<int32_t, std::set<int32_t>> where;  // By owner.
  for (const wire::Follower& follower : view.follower()) {
    EXPECT_TRUE(follower.in_sync());
    EXPECT_EQ(follower.since(), view.number());
    where[view.owner_server(follower.shard())].insert(follower.server());
  }
  EXPECT_THAT(where[0], ElementsAre(1, 2)) << "each has its share";
  EXPECT_THAT(where[1], ElementsAre(0, 2));
  EXPECT_EQ(core_->Status(now_).copies(), "");
}

TEST_F(CopiesTest, TwoCopiesAreOnTwoServers) {
  options_.config.set_replicas(2);
  Restart();
  StartJob();
  for (int32_t shard = 0; shard < 5; ++shard) {
    std::set<int32_t> servers = {Owners()[shard]};
    for (const wire::Follower& follower : core_->view().follower()) {
      if (follower.shard() == shard) servers.insert(follower.server());
    }
    EXPECT_THAT(servers, ElementsAre(0, 1, 2));
  }
}

TEST_F(CopiesTest, ACopyIsOnAnotherHostIfThereIsOne) {
  options_.servers = 4;
  Restart();
  for (int i = 0; i < 4; ++i) {
    wire::JoinRequest join = JoinOf(Server(i));
    join.set_host_id(i < 2 ? "left" : "right");
    servers_.push_back(Join(Server(i), join).incarnation());
  }
  for (int i = 0; i < 2; ++i) workers_.push_back(Join(Worker(i)).incarnation());
  ASSERT_EQ(core_->state(), wire::RUNNING);
  for (const wire::Follower& follower : core_->view().follower())
    EXPECT_NE(follower.server() < 2, Owners()[follower.shard()] < 2);
}

TEST_F(CopiesTest, WithoutReplicasThereAreNone) {
  options_.config.set_replicas(0);
  Restart();
  StartJob();
  AddServer(3);
  EXPECT_EQ(ViewNow().follower_size(), 0);
  EXPECT_EQ(core_->Status(now_).copies(), "");
}

// ---- A server dies ----------------------------------------------------------

TEST_F(CopiesTest, WhoHasACopyOwnsTheShardsOfAServerThatDies) {
  StartJob();
  const std::vector<int32_t> owners = Owners();
  const std::vector<std::string> followers = AllFollowers();
  const uint64_t before = ViewNow().number();
  const CoordinatorCore::Effects effects = Kill({1});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  const wire::View view = ViewNow();
  EXPECT_EQ(view.number(), before + 1) << "all of it in one view";
  EXPECT_EQ(view.server_size(), 2);
  for (size_t shard = 0; shard < 5; ++shard) {
    if (owners[shard] == 1) {
      EXPECT_EQ(absl::StrCat(Owners()[shard], "+"), followers[shard]);
    } else {
      EXPECT_EQ(Owners()[shard], owners[shard]);
    }
  }
  EXPECT_THAT(effects.warnings,
              Contains(AllOf(HasSubstr("2 shards of server 1 belong now to "
                                       "server 0 (1), server 2 (1)"),
                             HasSubstr("had copies"))));
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.shards_taken_over(), 2);
  ASSERT_EQ(summary.servers_lost_size(), 1);
  EXPECT_THAT(summary.servers_lost(0),
              AllOf(HasSubstr("server 1 (pid"), HasSubstr("2 shards of")));
  Check();
}

TEST_F(CopiesTest, AServerThatLeavesWithAFailureIsReplacedToo) {
  StartJob();
  Call(Server(2), servers_[2], 1, [](wire::Call& call) {
    call.mutable_leave()->set_failure("its disk is full");
  });
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(Owners(), Each(Not(2)));
  EXPECT_THAT(core_->Summary().servers_lost(0), HasSubstr("its disk is full"));
}

TEST_F(CopiesTest, CopiesThatAreMissingAreMadeAnew) {
  StartJob();
  Kill({1});
  EXPECT_THAT(core_->Status(now_).copies(), HasSubstr("of 5 shards"));
  MakeAllCopies();
  Check();
  for (int32_t shard = 0; shard < 5; ++shard)
    EXPECT_EQ(Followers(shard), Owners()[shard] == 0 ? "2+" : "0+");
  EXPECT_EQ(core_->Status(now_).copies(), "");
  EXPECT_GE(core_->Summary().copies_made(), 3);
  Kill({2});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(Owners(), Each(0)) << "so it outlives the next one";
}

TEST_F(CopiesTest, NoMoreThanTheBudgetIsMadeAtOneTime) {
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  Restart();
  StartJob();
  Kill({1});
  while (Copying() > 0) {
    EXPECT_EQ(Copying(), 1) << "two servers, each with one";
    Check();
    CopiesAreMade();
  }
  EXPECT_THAT(AllFollowers(), Each(Not(IsEmpty())));
}

TEST_F(CopiesTest, WithoutACopyInSyncTheJobEnds) {
  StartJob();
  Kill({1});
  ASSERT_GT(Copying(), 0);
  Kill({2});
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_THAT(core_->view().end().server(), ElementsAre(2));
  EXPECT_THAT(core_->reason(), AllOf(HasSubstr("its shards are lost"),
                                     HasSubstr("no copy in sync of shard"),
                                     HasSubstr("replicas: 2")));
}

TEST_F(CopiesTest, TwoServersThatDieAtOnceTakeTheirCopiesWithThem) {
  StartJob();
  Kill({1, 2});
  EXPECT_EQ(core_->state(), wire::FAILED);
}

TEST_F(CopiesTest, WithTwoCopiesTwoServersMayDieAtOnce) {
  options_.config.set_replicas(2);
  options_.servers = 4;
  Restart();
  StartJob();
  Kill({1, 2});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(Owners(), Each(::testing::AnyOf(0, 3)));
  Check();
  MakeAllCopies();
  for (int32_t shard = 0; shard < 5; ++shard)
    EXPECT_EQ(Followers(shard), Owners()[shard] == 0 ? "3+" : "0+");
  EXPECT_THAT(core_->Status(now_).copies(), HasSubstr("no server is left"));
}

TEST_F(CopiesTest, WhenNoServerIsLeftPeopleAreToldAndTheJobGoesOn) {
  options_.servers = 2;
  Restart();
  StartJob();
  const CoordinatorCore::Effects effects = Kill({1});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(ViewNow().follower_size(), 0);
  EXPECT_THAT(effects.warnings,
              Contains(AllOf(HasSubstr("5 shards of 5 have fewer than 1 copy"),
                             HasSubstr("slackline servers add"))));
  AddServer(2);
  MakeAllCopies();
  EXPECT_THAT(AllFollowers(), Each("2+"));
  EXPECT_EQ(core_->Status(now_).copies(), "");
}

// ---- What owners say --------------------------------------------------------

TEST_F(CopiesTest, OnlyTheOwnersWordOnAListedFollowerCounts) {
  StartJob();
  Kill({1});
  const wire::View view = ViewNow();
  const auto listed =
      std::find_if(view.follower().begin(), view.follower().end(),
                   [](const auto& f) { return !f.in_sync(); });
  ASSERT_NE(listed, view.follower().end());
  const int owner = view.owner_server(listed->shard());
  const auto says = [&](int server, const run::FollowerState& state) {
    run::ServerStats stats;
    *stats.add_follower() = state;
    Tell(server, stats);
    return ViewNow().number() > view.number();
  };
  const run::FollowerState good = StateOf(*listed);
  run::FollowerState bad = good;
  EXPECT_FALSE(says(listed->server(), good)) << "not its owner";
  bad.set_in_sync(false);
  EXPECT_FALSE(says(owner, bad));
  bad = good;
  bad.set_since(good.since() - 1);
  EXPECT_FALSE(says(owner, bad)) << "an earlier copy there";
  bad = good;
  bad.set_shard(77);
  EXPECT_FALSE(says(owner, bad));
  bad.set_shard(-1);
  EXPECT_FALSE(says(owner, bad));
  bad = good;
  bad.set_server(9);
  EXPECT_FALSE(says(owner, bad));
  EXPECT_TRUE(says(owner, good));
}

TEST_F(CopiesTest, StatisticsOfMoreFollowersThanThereCanBeAreRefused) {
  StartJob();
  run::ServerStats stats;
  for (int i = 0; i < 11; ++i) stats.add_follower();
  const CoordinatorCore::Effects effects = Tell(1, stats);
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("11 followers")));
}

// ---- Moves ------------------------------------------------------------------

TEST_F(CopiesTest, AMoveToAFollowerChangesPlaces) {
  StartJob();
  const int to = Followers(1) == "0+" ? 0 : 2;
  Ask(Moving({1}, to));
  const uint64_t id = ViewNow().number();
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre(absl::StrCat("1>", to, ".0")));
  Done(1);
  EXPECT_EQ(Owners()[1], to);
  EXPECT_EQ(Followers(1), "1+");
  for (const wire::Follower& follower : core_->view().follower()) {
    if (follower.shard() == 1) {
      EXPECT_EQ(follower.since(), id);
    }
  }
  EXPECT_EQ(Copying(), 0);
}

TEST_F(CopiesTest, AMoveElsewhereKeepsTheCopy) {
  StartJob();
  const std::string before = Followers(1);
  Ask(Moving({1}, before == "0+" ? 2 : 0));
  Done(1);
  EXPECT_EQ(Followers(1), before);
  Check();
}

TEST_F(CopiesTest, AShardWaitsUntilItsCopyIsInSync) {
  StartJob();
  Kill({1});
  const wire::View view = ViewNow();
  const auto copy = std::find_if(view.follower().begin(), view.follower().end(),
                                 [](const auto& f) { return !f.in_sync(); });
  ASSERT_NE(copy, view.follower().end());
  Ask(Moving({copy->shard()}, copy->server()));
  EXPECT_EQ(ViewNow().move_size(), 0);
  MakeAllCopies();
  EXPECT_EQ(ViewNow().move_size(), 1);
}

TEST_F(CopiesTest, AShardThatIsLostOnItsWayBelongsToWhoHasACopy) {
  StartJob();
  AddServer(3);
  const int copy = Followers(1) == "0+" ? 0 : 2;
  Ask(Moving({1}, 3));
  const run::ServerStats stats = LostOnItsWay(1, 3);
  Tell(1, stats);
  EXPECT_EQ(Owners()[1], 1) << "server 3 is alive";
  Kill({3});
  // A new life of the same index has nothing of it.
  PeerId again = Server(3);
  again.instance = 999;
  ASSERT_EQ(Join(again).code(), wire::OK);
  const CoordinatorCore::Effects effects = Tell(1, stats);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(Owners()[1], copy);
  EXPECT_THAT(
      effects.warnings,
      Contains(HasSubstr(absl::StrCat("belongs now to server ", copy))));
  Check();
  Tell(1, stats);
  EXPECT_EQ(Owners()[1], copy) << "an old story";
}

// The copy's server has said before how far its other shards are.
TEST_F(CopiesTest, AChangeOfTheModeWaitsForWhoGetsAShardThatWasLostOnItsWay) {
  steps_total_ = 100;
  StartJob();
  AddServer(3);
  const int copy = Followers(1) == "0+" ? 0 : 2;
  Ask(Moving({1}, 3));
  run::ServerStats lost = LostOnItsWay(1, 3);
  Pass(options_.lease() + absl::Seconds(1), {Server(3), Worker(1)});
  Ask([](wire::Call& call) {
    *call.mutable_set_mode()->mutable_mode() = ModeOf("asp");
  });
  ASSERT_TRUE(ViewNow().has_change());
  Call(Worker(0), workers_[0], 60, [&](wire::Call& call) {
    call.mutable_step_limit()->set_change(ViewNow().change().id());
    call.mutable_step_limit()->set_clock(12);
  });
  const auto reached = [&](Clock clock) {
    run::ServerStats stats;
    stats.set_seen_view(ViewNow().number());
    stats.set_reached_clock(clock);
    return stats;
  };
  Tell(0, reached(12));
  Tell(2, reached(12));
  lost.MergeFrom(reached(12));
  Tell(1, lost);
  ASSERT_EQ(Owners()[1], copy);
  EXPECT_TRUE(ViewNow().has_change()) << "where shard 1 is nobody has said yet";
  for (const int server : {0, 1, 2}) Tell(server, reached(13));
  ASSERT_EQ(ViewNow().phase_size(), 2);
  EXPECT_EQ(ViewNow().phase(1).from(), 13);
}

TEST_F(CopiesTest, AShardThatIsLostOnItsWayNeedsACopyInSync) {
  StartJob();
  AddServer(3);
  const int shard = Followers(1) == "2+" ? 1 : 4;
  ASSERT_EQ(Followers(shard), "2+");
  Ask(Moving({shard}, 3));
  const run::ServerStats stats = LostOnItsWay(shard, 3);
  Kill({2});
  EXPECT_EQ(Followers(shard), "") << "it moves";
  Kill({2, 3});
  EXPECT_EQ(Followers(shard), "0");
  Tell(1, stats);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->view().end().cause(), wire::JobEnd::SHARD_LOST);
  EXPECT_THAT(core_->view().end().shard(), ElementsAre(shard));
}

TEST_F(CopiesTest, TheDeathOfASourceLeavesTheShardToTheTargetOfASwap) {
  options_.config.set_replicas(2);
  options_.servers = 4;
  Restart();
  StartJob();
  for (const int target : {0, 2, 3}) {
    Restart();
    servers_.clear();
    workers_.clear();
    StartJob();
    if (!absl::StrContains(Followers(1), absl::StrCat(target))) continue;
    Ask(Moving({1}, target));
    Kill({1});
    EXPECT_EQ(core_->state(), wire::RUNNING);
    EXPECT_EQ(Owners()[1], target);
    EXPECT_EQ(ViewNow().move_size(), 0);
    EXPECT_EQ(core_->Status(now_).plan().move_size(), 0);
  }
}

TEST_F(CopiesTest, TheDeathOfASourceCancelsItsMoves) {
  StartJob();
  AddServer(3);
  Ask(Moving({1, 4}, 3));
  ASSERT_EQ(ViewNow().move_size(), 2);
  const uint64_t move = ViewNow().move(0).id();
  Kill({1});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_EQ(ViewNow().move_size(), 0);
  EXPECT_THAT(Owners(), Each(::testing::AnyOf(0, 2)));
  // The target has it already, and nobody has heard of it.
  run::ServerStats stats;
  run::HandOverState& done = *stats.add_hand_over();
  done.set_shard(1);
  done.set_move(move);
  done.set_state(run::HandOverState::DONE);
  done.set_to_server(3);
  const std::vector<int32_t> owners = Owners();
  Tell(owners[1], stats);
  EXPECT_EQ(Owners(), owners);
}

// ---- Servers are drained ----------------------------------------------------

TEST_F(CopiesTest, ADrainedServersCopiesAreMadeElsewhereBeforeItLeaves) {
  StartJob();
  AddServer(3);
  for (int server = 0; server < 4; ++server) Load(server, 0.1);
  const wire::CallReply reply = ReplyIn(Ask(Draining(1)));
  ASSERT_EQ(reply.code(), wire::OK) << reply.error();
  const auto leave = [&](uint64_t id) {
    return Call(Server(1), servers_[1], id,
                [](wire::Call& call) { call.mutable_leave(); });
  };
  for (int i = 0; i < 20 && ViewNow().move_size() > 0; ++i) {
    const wire::View view = ViewNow();
    for (const wire::Move& move : view.move()) Done(move.shard());
  }
  EXPECT_THAT(Owners(), Each(Not(1)));
  ASSERT_GT(Copying(), 0);
  const CoordinatorCore::Effects early = leave(1);
  EXPECT_THAT(Answers(early), ElementsAre("server.1.201:1 REJECTED"));
  EXPECT_THAT(early.sends[0].message.header.call_reply().error(),
              HasSubstr("still has copies of shards"));
  // Nothing is dropped before there is another one.
  for (const std::string& followers : AllFollowers())
    EXPECT_THAT(followers, HasSubstr("+"));
  MakeAllCopies();
  for (const wire::Follower& follower : core_->view().follower())
    EXPECT_NE(follower.server(), 1);
  EXPECT_THAT(AllFollowers(), Each(::testing::SizeIs(2)));
  EXPECT_THAT(Answers(leave(2)), ElementsAre("server.1.201:2 OK"));
  EXPECT_THAT(core_->Summary().servers_lost(), IsEmpty());
  Check();
}

TEST_F(CopiesTest, WithNoServerLeftForThemADrainedServersCopiesGo) {
  options_.servers = 2;
  Restart();
  StartJob();
  Load(0, 0.1);
  Load(1, 0.1);
  const CoordinatorCore::Effects effects = Ask(Draining(1));
  ASSERT_EQ(ReplyIn(effects).code(), wire::OK);
  for (int i = 0; i < 20 && ViewNow().move_size() > 0; ++i)
    Done(ViewNow().move(0).shard());
  EXPECT_THAT(Owners(), Each(0));
  EXPECT_EQ(ViewNow().follower_size(), 0);
  const CoordinatorCore::Effects left =
      Call(Server(1), servers_[1], 1,
           [](wire::Call& call) { call.mutable_leave(); });
  EXPECT_THAT(Answers(left), ElementsAre("server.1.201:1 OK"));
  EXPECT_THAT(core_->Status(now_).copies(), HasSubstr("no server is left"));
}

// ---- Servers come back ------------------------------------------------------

TEST_F(CopiesTest, ARestartedServerJoinsUnderItsIndexAndGetsShards) {
  options_.config.mutable_rebalance()->set_mode(config::Rebalance::MANUAL);
  Restart();
  StartJob();
  Kill({1});
  PeerId again = Server(1);
  again.instance = 999;
  const wire::JoinReply reply = Join(again);
  ASSERT_EQ(reply.code(), wire::OK) << reply.error();
  servers_[1] = reply.incarnation();
  EXPECT_EQ(ViewNow().server_size(), 3);
  EXPECT_EQ(ViewNow().server(1).incarnation(), reply.incarnation());
  MakeAllCopies();
  Check();
  const auto tell = [&](int server, double busy) {
    run::ServerStats stats;
    run::ThreadLoad& load = *stats.add_thread();
    load.set_bytes_per_busy_second(1e9);
    const std::vector<int32_t> owners = Owners();
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] != server) continue;
      run::ShardLoad& shard = *load.add_shard();
      shard.set_shard(static_cast<int32_t>(i));
      shard.set_busy(static_cast<float>(busy));
      load.set_utilisation(load.utilisation() + busy);
    }
    Message message;
    message.header.mutable_heartbeat()->set_incarnation(servers_[server]);
    *message.header.mutable_heartbeat()->mutable_server() = stats;
    PeerId peer = server == 1 ? again : Server(server);
    return Send(peer, message);
  };
  const auto pass = [&](double busy) {
    for (int i = 0; i < 10 && ViewNow().move_size() == 0; ++i) {
      for (int server = 0; server < 3; ++server) tell(server, busy);
      for (int w = 0; w < 2; ++w) Heartbeat(Worker(w), workers_[w]);
      now_ += absl::Seconds(1);
      CoordinatorCore::Effects effects;
      core_->OnTick(now_, &effects);
    }
  };
  pass(0);
  EXPECT_EQ(ViewNow().move_size(), 0) << "nothing to act on";
  pass(0.001);
  ASSERT_GT(ViewNow().move_size(), 0)
      << "one round, though nobody asked and no thread is busy";
  EXPECT_EQ(ViewNow().move(0).server(), 1);
}

TEST_F(CopiesTest, AServerJoinsUnderAnIndexOnlyWhenItsLifeBeforeIsOver) {
  StartJob();
  PeerId again = Server(1);
  again.instance = 999;
  const wire::JoinReply reply = Join(again);
  EXPECT_EQ(reply.code(), wire::RETRY);
  EXPECT_THAT(reply.error(), HasSubstr("holds this place"));
  Kill({1});
  EXPECT_EQ(Join(again).code(), wire::OK);
}

// ---- Any order of events ----------------------------------------------------

class CopiesProperty : public CopiesTest,
                       public ::testing::WithParamInterface<int> {};

// Servers die, come and are drained, shards move and copies are made in any
// order. A job ends only by the death of a server with a shard of which no copy
// was in sync; and once nothing happens any more, every shard has its copies.
TEST_P(CopiesProperty, AJobEndsOnlyWithoutACopyAndAllAreMadeAnew) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  Rng rng(static_cast<uint64_t>(GetParam()));
  options_.servers = static_cast<int>(rng.Between(3, 6));
  options_.config.set_replicas(static_cast<int>(rng.Between(1, 2)));
  options_.config.mutable_rebalance()->set_concurrent_moves(
      static_cast<int>(rng.Between(1, 3)));
  options_.config.mutable_rebalance()->set_mode(config::Rebalance::MANUAL);
  options_.shard_elements = 1;
  Restart();
  StartJob();
  std::set<int> alive;
  for (int i = 0; i < options_.servers; ++i) alive.insert(i);
  std::set<int> draining;
  const auto any_alive = [&] {
    return *std::next(alive.begin(),
                      static_cast<std::ptrdiff_t>(rng.Below(alive.size())));
  };
  const auto finish = [&] {
    for (int i = 0; i < 200; ++i) {
      const wire::View view = ViewNow();
      if (view.move_size() == 0 && Copying() == 0) return;
      if (view.move_size() > 0) Done(view.move(0).shard());
      CopiesAreMade();
    }
    FAIL() << "it does not come to an end";
  };
  for (int event = 0; event < 40; ++event) {
    switch (rng.Between(0, 7)) {
      case 0: {
        const int dead = any_alive();
        if (dead == 0) break;
        // Who may own the shards after it.
        std::map<int32_t, std::set<int32_t>> heirs;
        const wire::View view = ViewNow();
        for (int32_t shard = 0; shard < view.owner_server_size(); ++shard) {
          if (view.owner_server(shard) == dead) heirs[shard] = {};
        }
        for (const wire::Follower& follower : view.follower()) {
          if (follower.in_sync() && heirs.count(follower.shard()) > 0)
            heirs[follower.shard()].insert(follower.server());
        }
        const bool replaceable = std::none_of(
            heirs.begin(), heirs.end(),
            [](const auto& entry) { return entry.second.empty(); });
        Call(Server(dead), servers_[dead], 1000 + event, [](wire::Call& call) {
          call.mutable_leave()->set_failure("dead");
        });
        if (!replaceable) {
          ASSERT_EQ(core_->state(), wire::FAILED);
          ASSERT_EQ(core_->view().end().cause(), wire::JobEnd::SERVER_LOST);
          return;
        }
        ASSERT_EQ(core_->state(), wire::RUNNING) << core_->reason();
        for (const auto& [shard, servers] : heirs)
          EXPECT_THAT(servers, Contains(Owners()[shard]));
        alive.erase(dead);
        draining.erase(dead);
        break;
      }
      case 1: {
        const int index = static_cast<int>(rng.Between(1, 8));
        if (alive.count(index) > 0 || alive.size() > 6) break;
        wire::JoinRequest join = JoinOf(Server(index));
        join.set_token(5000 + static_cast<uint64_t>(event));
        const wire::JoinReply reply = Join(Server(index), join);
        ASSERT_EQ(reply.code(), wire::OK) << reply.error();
        servers_.resize(std::max(servers_.size(), size_t(index) + 1));
        servers_[index] = reply.incarnation();
        alive.insert(index);
        break;
      }
      case 2: {
        const int index = any_alive();
        for (const int server : alive) Load(server, 0.01);
        if (ReplyIn(Ask(Draining(index))).code() == wire::OK)
          draining.insert(index);
        break;
      }
      case 3:
      case 4:
        Ask(Moving({static_cast<int32_t>(rng.Between(0, 9))}, any_alive()));
        break;
      case 5: {
        const wire::View view = ViewNow();
        if (view.move_size() > 0) Done(view.move(0).shard());
        break;
      }
      case 6:
        CopiesAreMade();
        break;
      default:
        finish();
    }
    ASSERT_EQ(core_->state(), wire::RUNNING) << core_->reason();
    ASSERT_NO_FATAL_FAILURE(Check());
  }
  ASSERT_NO_FATAL_FAILURE(finish());
  std::set<int> staying;
  std::set_difference(alive.begin(), alive.end(), draining.begin(),
                      draining.end(), std::inserter(staying, staying.end()));
  const wire::View view = ViewNow();
  for (int32_t shard = 0; shard < view.owner_server_size(); ++shard) {
    int copies = 0;
    for (const wire::Follower& follower : view.follower()) {
      if (follower.shard() != shard) continue;
      ++copies;
      EXPECT_EQ(draining.count(follower.server()), 0u);
    }
    const int others =
        static_cast<int>(staying.size()) -
        static_cast<int>(staying.count(view.owner_server(shard)));
    EXPECT_EQ(copies, std::min(options_.config.replicas(), others))
        << "shard " << shard;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CopiesProperty, ::testing::Range(1, 201));

}  // namespace slackline::coordinator_core_copies_test
