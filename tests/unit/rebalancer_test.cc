// Goal: what the planner is told of a job and what becomes of its answer: which
// moves are wanted, ordered and done. Method: views and loads by hand.
#include "server/coordinator/rebalancer.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::rebalancer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kShardElements = 100;

// Shards of one table, 100 elements each.
class RebalancerTest : public ::testing::Test {
 protected:
  RebalancerTest() {
    options_.split_elements_min = kShardElements;  // Nothing is split.
    view_.set_number(4);
    view_.set_state(wire::RUNNING);
  }

  // Of these numbers of threads.
  void Servers(const std::vector<int>& threads) {
    stats_.resize(threads.size());
    for (size_t s = 0; s < threads.size(); ++s) {
      wire::ServerMember& server = *view_.add_server();
      server.set_index(static_cast<int32_t>(s));
      for (int t = 0; t < threads[s]; ++t) {
        server.add_thread();
        run::ThreadLoad& load = *stats_[s].add_thread();
        load.set_thread(t);
        load.set_bytes_per_busy_second(1e9);
      }
      servers_.push_back({.index = static_cast<int32_t>(s),
                          .threads = threads[s],
                          .draining = false,
                          .stats = nullptr});
    }
    for (size_t s = 0; s < threads.size(); ++s) servers_[s].stats = &stats_[s];
  }
  // The next shard, which takes so much of its owner's time.
  void Shard(Owner owner, double busy = 0) {
    if (view_.table_size() == 0) {
      wire::Table& table = *view_.add_table();
      table.set_name("weight");
      table.mutable_optimizer()->mutable_adam()->set_learning_rate(1);
      table.add_shape(0);
      table.set_shard_elements(kShardElements);
    }
    view_.mutable_table(0)->set_shape(0,
                                      view_.table(0).shape(0) + kShardElements);
    LoadOf(owner, view_.owner_server_size(), busy);
    view_.add_owner_server(owner.server);
    view_.add_owner_thread(owner.thread);
  }
  void LoadOf(Owner owner, int32_t shard, double busy) {
    run::ShardLoad& load =
        *stats_[owner.server].mutable_thread(owner.thread)->add_shard();
    load.set_shard(shard);
    load.set_busy(static_cast<float>(busy));
  }

  void Follow(int32_t shard, Owner thread, bool in_sync = true) {
    Edit([&](ViewEditor* editor) {
      editor->AddFollower(shard, thread);
      if (in_sync) editor->SetInSync(shard, thread.server);
    });
  }

  absl::StatusOr<run::Plan> Plan(
      Rebalancer::Aim aim = Rebalancer::Aim::kBalance) {
    return Get().Plan(**View::Create(view_), servers_, aim, now_);
  }
  absl::StatusOr<run::Plan> PlanMoves(const std::vector<int32_t>& shards,
                                      Owner to) {
    return Get().PlanMoves(**View::Create(view_), servers_, shards, to.server,
                           to.thread);
  }
  Rebalancer& Get() {
    if (!rebalancer_.has_value()) rebalancer_.emplace(options_);
    return *rebalancer_;
  }
  // As in one event of the coordinator. True if the view changed.
  bool Edit(const std::function<void(ViewEditor*)>& edit) {
    ViewEditor editor(view_);
    edit(&editor);
    const bool changed = editor.Commit() != ViewEditor::Committed::kNothing;
    view_ = editor.view();
    return changed;
  }
  bool Order() {
    return Edit([&](ViewEditor* editor) { Get().Order(editor); });
  }
  // Adopts a plan and orders what may be.
  void Adopt(const run::Plan& plan) {
    Edit([&](ViewEditor* editor) {
      Get().Adopt(plan, editor);
      Get().Order(editor);
    });
    ASSERT_TRUE(View::Create(view_).ok()) << View::Create(view_).status();
  }
  bool Done(int32_t shard, int64_t pause_micros = 100) {
    run::HandOverState state;
    for (const wire::Move& move : view_.move()) {
      if (move.shard() == shard) state.set_move(move.id());
    }
    state.set_shard(shard);
    state.set_bytes(1500);
    state.set_pause_micros(pause_micros);
    return Edit([&](ViewEditor* editor) {
      Get().Done(state, 7.5, now_, editor, &record_);
    });
  }

  // "2: 0.0 > 1.0".
  static std::vector<std::string> Moves(const run::Plan& plan) {
    std::vector<std::string> moves;
    for (const run::PlannedMove& move : plan.move()) {
      moves.push_back(absl::StrCat(move.shard(), ": ", move.from_server(), ".",
                                   move.from_thread(), " > ", move.to_server(),
                                   ".", move.to_thread()));
    }
    return moves;
  }

  Rebalancer::Options options_;
  wire::View view_;
  std::vector<run::ServerStats> stats_;
  std::vector<Rebalancer::Server> servers_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  run::MoveRecord record_;
  std::optional<Rebalancer> rebalancer_;
};

// ---- Plans ------------------------------------------------------------------

TEST_F(RebalancerTest, APlanSaysWhatGoesWhereAndWhy) {
  Servers({1, 1});
  for (int i = 0; i < 3; ++i) Shard({0, 0}, 0.25);
  Shard({1, 0}, 0.05);
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->move_size(), 1);
  const run::PlannedMove& move = plan->move(0);
  EXPECT_THAT(move.name(), HasSubstr("weight["));
  EXPECT_EQ(move.from_server(), 0);
  EXPECT_EQ(move.to_server(), 1);
  EXPECT_EQ(move.bytes(), kShardElements * 4 * 3) << "with two slots";
  EXPECT_NEAR(move.load(), 0.25, 1e-6);
  EXPECT_NEAR(plan->worst_before(), 0.75, 1e-6);
  EXPECT_NEAR(plan->mean(), 0.4, 1e-6);
  EXPECT_NEAR(plan->worst_after(), 0.5, 1e-6);
  EXPECT_EQ(plan->bytes(), move.bytes());
  EXPECT_TRUE(Get().idle()) << "planning changes nothing";
}

// Three threads with the same shards, of which the first is slow.
class SlowThread : public RebalancerTest {
 protected:
  void SetUp() override {
    Servers({1, 1, 1});
    for (int i = 0; i < 12; ++i) {
      Shard({0, 0}, 0.08);
      Shard({1, 0}, 0.02);
      Shard({2, 0}, 0.02);
    }
    SetLoads(0.96, 0.24);
    stats_[0].mutable_thread(0)->set_bytes_per_busy_second(2.5e8);
  }
  void SetLoads(double slow, double others) {
    for (int s = 0; s < 3; ++s) {
      stats_[s].mutable_thread(0)->set_utilisation(s == 0 ? slow : others);
    }
  }
  void ObserveFor(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end;
         now_ += absl::Milliseconds(500)) {
      Get().Observe(servers_, now_);
    }
  }
};

TEST_F(SlowThread, IsGivenLess) {
  ObserveFor(absl::Seconds(10));
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 36 shards for speeds of 1/4, 1 and 1: 4 stay.
  EXPECT_THAT(Moves(*plan), SizeIs(8));
}

TEST_F(SlowThread, IsNotGivenItBackAtOnceForHavingLittleToDo) {
  ObserveFor(absl::Seconds(10));
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  Adopt(*plan);
  for (const run::PlannedMove& move : plan->move()) {
    while (!Done(move.shard())) {
      ASSERT_TRUE(Order());
    }
  }
  // It is relieved, and looks like the others.
  for (run::ServerStats& stats : stats_) {
    stats.mutable_thread(0)->clear_shard();
    stats.mutable_thread(0)->set_bytes_per_busy_second(1e9);
  }
  for (int32_t id = 0; id < view_.owner_server_size(); ++id) {
    LoadOf({view_.owner_server(id), 0}, id, 0.02);
  }
  SetLoads(0.08, 0.32);
  now_ += absl::Milliseconds(options_.config.rest_ms());
  ObserveFor(absl::Seconds(5));
  const absl::StatusOr<run::Plan> next = Plan();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(Moves(*next), SizeIs(testing::Le(1)));
  // In the long run it is tried again.
  ObserveFor(absl::Minutes(30));
  const absl::StatusOr<run::Plan> later = Plan();
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_THAT(Moves(*later), SizeIs(testing::Ge(7)));
}

TEST_F(RebalancerTest, MoreWorkPerMessageIsNotSpeed) {
  Servers({1, 1});
  for (int i = 0; i < 20; ++i) Shard({0, 0}, 0.04);
  Shard({1, 0}, 0.2);  // Alone in its messages.
  stats_[0].mutable_thread(0)->set_utilisation(0.8);
  stats_[1].mutable_thread(0)->set_utilisation(0.2);
  stats_[1].mutable_thread(0)->set_bytes_per_busy_second(2e8);
  for (int i = 0; i < 20; ++i) {
    now_ += absl::Seconds(1);
    Get().Observe(servers_, now_);
  }
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The shards are all alike, so 21 of them are halved.
  EXPECT_THAT(Moves(*plan),
              SizeIs(testing::AllOf(testing::Ge(9), testing::Le(10))));
}

TEST_F(RebalancerTest, AServerIsAsBusyAsTheThreadThatMovesItsBytes) {
  Servers({1, 1});
  for (int i = 0; i < 4; ++i) Shard({0, 0}, 0.02);
  for (int i = 0; i < 4; ++i) Shard({1, 0}, 0.02);
  for (run::ServerStats& stats : stats_) {
    stats.mutable_thread(0)->set_utilisation(0.08);
  }
  stats_[0].set_io_utilisation(0.8);
  stats_[1].set_io_utilisation(0.08);
  // The same work takes server 0 ten times as long.
  for (int i = 0; i < 20; ++i) {
    now_ += absl::Seconds(1);
    Get().Observe(servers_, now_);
  }
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Moves(*plan), SizeIs(testing::Ge(3)));
  for (const run::PlannedMove& move : plan->move()) {
    EXPECT_EQ(move.from_server(), 0);
  }
}

TEST_F(RebalancerTest, AThreadWhoseSpeedIsNotKnownCountsAsTheMean) {
  Servers({1, 1});
  for (int i = 0; i < 8; ++i) Shard({0, 0}, 0.1);
  stats_[1].mutable_thread(0)->set_bytes_per_busy_second(0);
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Moves(*plan), SizeIs(4));
}

TEST_F(RebalancerTest, OnlyTheOwnerTellsTheLoadOfAShard) {
  Servers({1, 1});
  Shard({0, 0}, 0.2);
  Shard({1, 0}, 0.2);
  LoadOf({1, 0}, 0, 0.7);  // It has gone from there.
  LoadOf({1, 0}, 99, 0.7);
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NEAR(plan->worst_before(), 0.2, 1e-6);
}

TEST_F(RebalancerTest, AShardThatIsTooHotIsPlannedInParts) {
  options_.split_elements_min = 10;
  Servers({1, 1});
  Shard({0, 0}, 0.8);
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GE(plan->split_size(), 1) << plan->summary();
  EXPECT_EQ(plan->split(0).shard(), 0);
  EXPECT_EQ(plan->split(0).new_shard(), 1);
  ASSERT_GE(plan->move_size(), 1);
  const int64_t at = plan->split(0).at();
  if (plan->split_size() == 1) {
    const run::PlannedMove& move = plan->move(0);
    const bool rest = move.shard() == 1;
    EXPECT_EQ(move.name(), rest ? absl::StrCat("weight[", at, ", 100)")
                                : absl::StrCat("weight[0, ", at, ")"));
    EXPECT_EQ(move.bytes(), (rest ? 100 - at : at) * 4 * 3);
    EXPECT_NEAR(move.load(),
                0.8 * static_cast<double>(rest ? 100 - at : at) / 100, 1e-6);
  }
  Adopt(*plan);
  ASSERT_EQ(view_.split_size(), plan->split_size());
  EXPECT_EQ(view_.split(0).at(), at);
  EXPECT_EQ(view_.split(0).since(), view_.number());
  EXPECT_EQ(view_.owner_server_size(), 1 + plan->split_size());
  EXPECT_EQ(view_.move_size(), plan->move_size());
}

TEST_F(RebalancerTest, APlanNeedsToKnowHowLoadedEveryThreadIs) {
  Servers({1, 2});
  Shard({0, 0}, 0.8);
  stats_[1].mutable_thread()->RemoveLast();
  const absl::StatusOr<run::Plan> plan = Plan();
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("server 1 has not said yet how loaded it is"));
}

TEST_F(RebalancerTest, DrainingOnlyLeavesTheRestAsItIs) {
  Servers({1, 1, 1});
  for (int i = 0; i < 4; ++i) Shard({0, 0}, 0.2);
  Shard({1, 0}, 0.01);
  Shard({2, 0}, 0.01);
  servers_[2].draining = true;
  const absl::StatusOr<run::Plan> plan = Plan(Rebalancer::Aim::kDrainOnly);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Moves(*plan), ElementsAre("5: 2.0 > 1.0"));
  EXPECT_EQ(plan->move(0).reason(), "server 2 is drained");
}

TEST_F(RebalancerTest, AShardThatHasMovedStaysForItsRest) {
  options_.config.set_rest_ms(5000);
  Servers({1, 1});
  Shard({0, 0}, 0.4);
  Shard({0, 0}, 0.4);
  Adopt(*PlanMoves({0, 1}, {1, 0}));
  ASSERT_TRUE(Done(0));
  ASSERT_TRUE(Done(1));
  for (const int32_t shard : {0, 1}) LoadOf({1, 0}, shard, 0.4);
  now_ += absl::Milliseconds(4999);
  EXPECT_THAT(Moves(*Plan()), IsEmpty());
  now_ += absl::Milliseconds(1);
  EXPECT_THAT(Moves(*Plan()), SizeIs(1));
}

TEST_F(RebalancerTest, AShardRestsOnNoServerThatIsDrained) {
  Servers({1, 1});
  Shard({0, 0}, 0.1);
  Adopt(*PlanMoves({0}, {1, 0}));
  ASSERT_TRUE(Done(0));
  servers_[1].draining = true;
  EXPECT_THAT(Moves(*Plan(Rebalancer::Aim::kDrainOnly)),
              ElementsAre("0: 1.0 > 0.0"));
}

TEST_F(RebalancerTest, WhatIsOnItsWayOrWaitsIsNotPlannedAgain) {
  options_.config.set_concurrent_moves(1);
  Servers({1, 1, 1});
  Shard({0, 0}, 0.3);
  Shard({0, 0}, 0.3);
  Shard({0, 0}, 0.3);
  Adopt(*PlanMoves({0, 1}, {1, 0}));
  ASSERT_EQ(view_.move_size(), 1);
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Moves(*plan), ElementsAre(testing::StartsWith("2: ")));
}

// ---- Moves that a user wants ------------------------------------------------

TEST_F(RebalancerTest, AUsersMovesGoToTheThreadWithTheFewestBytes) {
  Servers({1, 2});
  for (int i = 0; i < 4; ++i) Shard({0, 0});
  Shard({1, 0});
  EXPECT_THAT(Moves(*PlanMoves({0, 1, 2}, {1, -1})),
              ElementsAre("0: 0.0 > 1.1", "1: 0.0 > 1.0", "2: 0.0 > 1.1"));
}

TEST_F(RebalancerTest, AUserMayNameTheThreadAlsoOfTheSameServer) {
  Servers({2, 1});
  Shard({0, 0});
  Shard({0, 1});
  EXPECT_THAT(Moves(*PlanMoves({0, 1}, {0, 1})), ElementsAre("0: 0.0 > 0.1"));
  EXPECT_THAT(Moves(*PlanMoves({0, 1}, {0, -1})), IsEmpty())
      << "on that server they are";
}

TEST_F(RebalancerTest, AShardNamedTwiceMovesOnce) {
  Servers({1, 1});
  Shard({0, 0});
  const absl::StatusOr<run::Plan> plan = PlanMoves({0, 0}, {1, 0});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Moves(*plan), SizeIs(1));
  EXPECT_EQ(plan->bytes(), kShardElements * 4 * 3);
}

TEST_F(RebalancerTest, AShardThatWaitsForItsTurnIsOnItsWay) {
  options_.config.set_concurrent_moves(1);
  Servers({1, 1});
  Shard({0, 0});
  Shard({0, 0});
  Adopt(*PlanMoves({0, 1}, {1, 0}));
  for (const int32_t shard : {0, 1}) {
    EXPECT_THAT(std::string(PlanMoves({shard}, {1, 0}).status().message()),
                HasSubstr(absl::StrCat("shard ", shard, " (weight[")));
  }
}

// ---- What becomes of them ---------------------------------------------------

TEST_F(RebalancerTest, MovesInAndOutShareAServersBound) {
  options_.config.set_concurrent_moves(2);
  Servers({1, 1, 1});
  for (int i = 0; i < 3; ++i) Shard({0, 0});
  Shard({2, 0});
  Adopt(*PlanMoves({0}, {1, 0}));
  Adopt(*PlanMoves({3}, {1, 0}));
  Adopt(*PlanMoves({1}, {1, 0}));  // Server 1 has two already.
  Adopt(*PlanMoves({2}, {2, 0}));  // Does not wait for the one before.
  std::vector<int32_t> ordered;
  for (const wire::Move& move : view_.move()) ordered.push_back(move.shard());
  EXPECT_THAT(ordered, ElementsAre(0, 3, 2));
  EXPECT_FALSE(Order());
  ASSERT_TRUE(Done(3));
  EXPECT_FALSE(Order()) << "server 0 has two of its own";
  ASSERT_TRUE(Done(0));
  EXPECT_TRUE(Order());
}

TEST_F(RebalancerTest, AMoveWithinAServerCountsOnce) {
  options_.config.set_concurrent_moves(2);
  Servers({2});
  Shard({0, 0});
  Shard({0, 0});
  Adopt(*PlanMoves({0, 1}, {0, 1}));
  EXPECT_EQ(view_.move_size(), 2);
}

TEST_F(RebalancerTest, ADoneMoveIsRecorded) {
  Servers({1, 2});
  Shard({0, 0});
  Adopt(*PlanMoves({0}, {1, 1}));
  EXPECT_FALSE(Get().idle());
  ASSERT_TRUE(Done(0, 250));
  EXPECT_TRUE(Get().idle());
  EXPECT_EQ(view_.owner_server(0), 1);
  EXPECT_EQ(view_.owner_thread(0), 1);
  EXPECT_EQ(view_.move_size(), 0);
  EXPECT_EQ(record_.seconds(), 7.5);
  EXPECT_EQ(record_.name(), "weight[0, 100)");
  EXPECT_EQ(record_.from_server(), 0);
  EXPECT_EQ(record_.to_server(), 1);
  EXPECT_EQ(record_.to_thread(), 1);
  EXPECT_EQ(record_.shard_bytes(), kShardElements * 4 * 3);
  EXPECT_EQ(record_.bytes(), 1500);
  EXPECT_EQ(record_.pause_micros(), 250);
  EXPECT_EQ(Get().last_moves().size(), 1u);
  EXPECT_EQ(Get().shards_moved(), 1);
  EXPECT_EQ(Get().bytes_moved(), 1500u);
  EXPECT_FALSE(Done(0)) << "it is no longer ordered";
  EXPECT_EQ(Get().shards_moved(), 1);
}

TEST_F(RebalancerTest, PausesArePercentilesOverAllMoves) {
  Servers({1, 1});
  Shard({0, 0});
  EXPECT_EQ(Get().PauseMicros().max(), 0);
  for (int i = 1; i <= 101; ++i) {
    Adopt(*PlanMoves({0}, {i % 2, 0}));
    ASSERT_TRUE(Done(0, 10 * i));
  }
  EXPECT_EQ(Get().PauseMicros().p50(), 510);
  EXPECT_EQ(Get().PauseMicros().p99(), 1000);
  EXPECT_EQ(Get().PauseMicros().max(), 1010);
}

// ---- Followers --------------------------------------------------------------

TEST_F(RebalancerTest, AMoveToAServerWithACopyGoesToTheThreadThatHasIt) {
  Servers({1, 2, 2});
  Shard({0, 0});
  Shard({0, 0});
  Follow(0, {1, 1});
  Adopt(*PlanMoves({0, 1}, {1, -1}));
  EXPECT_THAT(Moves(Get().Present()),
              ElementsAre("0: 0.0 > 1.1", "1: 0.0 > 1.0"));
  ASSERT_TRUE(Done(0));
  ASSERT_EQ(view_.follower_size(), 1);
  EXPECT_EQ(view_.follower(0).server(), 0);
}

TEST_F(RebalancerTest, ANamedThreadBesideTheOneWithTheCopyIsRefused) {
  Servers({1, 2});
  Shard({0, 0});
  Follow(0, {1, 1});
  EXPECT_THAT(std::string(PlanMoves({0}, {1, 0}).status().message()),
              HasSubstr("thread 1 of server 1 has a copy of shard 0"));
  EXPECT_TRUE(PlanMoves({0}, {1, 1}).ok());
}

TEST_F(RebalancerTest, ACopyThatComesMeanwhileChangesTheThread) {
  Servers({1, 2});
  Shard({0, 0});
  const absl::StatusOr<run::Plan> plan = PlanMoves({0}, {1, 0});
  Follow(0, {1, 1});
  Adopt(*plan);
  ASSERT_EQ(view_.move_size(), 1);
  EXPECT_EQ(view_.move(0).thread(), 1);
}

TEST_F(RebalancerTest, AShardWaitsForACopyThatIsNotInSync) {
  Servers({1, 1, 1});
  Shard({0, 0});
  Follow(0, {1, 0}, /*in_sync=*/false);
  Adopt(*PlanMoves({0}, {2, 0}));
  EXPECT_EQ(view_.move_size(), 0);
  Edit([](ViewEditor* editor) { editor->SetInSync(0, 1); });
  EXPECT_TRUE(Order());
  EXPECT_EQ(view_.move_size(), 1);
}

TEST_F(RebalancerTest, WhatAThreadDoesForCopiesIsItsLoadButStays) {
  Servers({1, 1});
  for (int i = 0; i < 2; ++i) Shard({0, 0}, 0.2);
  for (int i = 0; i < 2; ++i) Shard({1, 0}, 0.2);
  EXPECT_EQ(Plan()->move_size(), 0) << "balanced";
  for (int shard = 2; shard < 4; ++shard) {
    Follow(shard, {0, 0});
    LoadOf({0, 0}, shard, 0.1);
  }
  LoadOf({1, 0}, 0, 0.7);  // A shard that has left it: no load of its own.
  const absl::StatusOr<run::Plan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NEAR(plan->worst_before(), 0.6, 1e-6);
  EXPECT_NEAR(plan->mean(), 0.5, 1e-6);
}

TEST_F(RebalancerTest, KnowsWhichMoveWasCutShort) {
  Servers({1, 1});
  Shard({0, 0});
  Adopt(*PlanMoves({0}, {1, 0}));
  run::HandOverState state;
  state.set_shard(0);
  state.set_move(view_.move(0).id());
  EXPECT_FALSE(Get().WasCutShort(state)) << "it is under way";
  Edit([&](ViewEditor* editor) {
    editor->RemoveServer(1);
    Get().Forget(1);
  });
  EXPECT_TRUE(Get().WasCutShort(state));
  state.set_move(state.move() - 1);
  EXPECT_FALSE(Get().WasCutShort(state)) << "an earlier one";
  state.set_move(state.move() + 1);
  Get().ForgetShard(0);
  EXPECT_FALSE(Get().WasCutShort(state));
}

TEST_F(RebalancerTest, NothingMovesToAServerThatIsForgotten) {
  options_.config.set_concurrent_moves(1);
  Servers({1, 1, 1});
  for (int i = 0; i < 3; ++i) Shard({0, 0});
  Adopt(*PlanMoves({0, 1}, {1, 0}));
  Adopt(*PlanMoves({2}, {2, 0}));
  Edit([&](ViewEditor* editor) {
    editor->RemoveServer(1);
    Get().Forget(1);
  });
  EXPECT_EQ(view_.move_size(), 0);
  EXPECT_THAT(Moves(Get().Present()), ElementsAre("2: 0.0 > 2.0"));
  EXPECT_TRUE(Order());
  EXPECT_EQ(view_.move(0).shard(), 2);
  EXPECT_FALSE(Done(0)) << "a late word of a move that was given up";
  EXPECT_EQ(view_.owner_server(0), 0);
}

}  // namespace slackline::rebalancer_test
