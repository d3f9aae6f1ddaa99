// Goal: every element of every table is in exactly one shard, also after
// splits, each shard has one owner and its followers elsewhere, and a view that
// does not fit together is refused with the reason.
#include "common/view/shard_map.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::shard_map_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

wire::Table TableOf(const std::string& name, std::vector<int64_t> shape,
                    int64_t shard_elements = 0) {
  wire::Table table;
  table.set_name(name);
  for (const int64_t extent : shape) table.add_shape(extent);
  table.set_shard_elements(shard_elements);
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  return table;
}

// A running job on `servers` servers of two threads.
wire::View ViewOf(const std::vector<wire::Table>& tables, int servers,
                  int64_t shard_elements) {
  wire::View view;
  view.set_number(7);
  view.set_state(wire::RUNNING);
  std::vector<Owner> threads;
  for (int s = 0; s < servers; ++s) {
    wire::ServerMember& server = *view.add_server();
    server.set_index(s);
    for (int t = 0; t < 2; ++t) {
      server.add_thread();
      threads.push_back({s, t});
    }
  }
  PlaceTables(tables, threads, shard_elements, &view);
  return view;
}

// The new shard belongs to whom the whole one does.
void Split(int32_t shard, int64_t at, uint64_t since, wire::View* view) {
  wire::Split& split = *view->add_split();
  split.set_shard(shard);
  split.set_at(at);
  split.set_since(since);
  view->add_owner_server(view->owner_server(shard));
  view->add_owner_thread(view->owner_thread(shard));
}

wire::Move& Move(int32_t shard, Owner to, wire::View* view) {
  wire::Move& move = *view->add_move();
  move.set_shard(shard);
  move.set_server(to.server);
  move.set_thread(to.thread);
  move.set_id(6);
  return move;
}

wire::Follower& Follow(int32_t shard, Owner thread, wire::View* view) {
  wire::Follower& follower = *view->add_follower();
  follower.set_shard(shard);
  follower.set_server(thread.server);
  follower.set_thread(thread.thread);
  follower.set_since(3);
  follower.set_in_sync(true);
  return follower;
}

std::string ErrorOf(const wire::View& view) {
  return std::string(View::Create(view).status().message());
}

TEST(ShardMapTest, EachTableNeedsAnOptimizerThatCanBeComputedWith) {
  wire::View view = ViewOf({TableOf("a", {10}), TableOf("b", {10})}, 1, 100);
  view.mutable_table(1)->mutable_optimizer()->mutable_adam()->set_learning_rate(
      0.5);
  const auto good = View::Create(view);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ((*good)->optimizer(TableId{0}).slot_count(), 0);
  EXPECT_EQ((*good)->optimizer(TableId{1}).slot_count(), 2);
  EXPECT_EQ((*good)->optimizer(TableId{1}).learning_rate(), 0.5);
  view.mutable_table(1)->mutable_optimizer()->mutable_adam()->set_beta2(2);
  EXPECT_THAT(ErrorOf(view),
              HasSubstr("view 7: table b: optimizer.adam.beta2: value is 2"));
  view.mutable_table(1)->clear_optimizer();
  EXPECT_THAT(ErrorOf(view), HasSubstr("table b: optimizer: is missing"));
}

TEST(ShardMapTest, ShardsCoverEachTableWithoutGaps) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    std::vector<wire::Table> tables;
    for (int64_t t = rng.Between(1, 5); t > 0; --t) {
      tables.push_back(TableOf(absl::StrCat("t", t),
                               {rng.Between(1, 20), rng.Between(1, 20)},
                               rng.Chance(0.5) ? 0 : rng.Between(1, 50)));
    }
    const auto view = View::Create(ViewOf(tables, 2, rng.Between(1, 100)));
    ASSERT_TRUE(view.ok()) << view.status();
    int32_t next_shard = 0;
    for (int t = 0; t < static_cast<int>(tables.size()); ++t) {
      int64_t next_element = 0;
      for (const ShardRange& range : (*view)->ShardsOf(TableId{t})) {
        EXPECT_EQ(range.shard, ShardId{next_shard++});
        EXPECT_EQ(range.table, TableId{t});
        EXPECT_EQ(range.region.begin(), next_element);
        EXPECT_GT(range.region.size(), 0);
        next_element = range.region.end();
      }
      EXPECT_EQ(next_element, TableElements(tables[t]));
    }
    EXPECT_EQ(next_shard, (*view)->shard_count());
    EXPECT_FALSE((*view)->HasShard(next_shard));
    EXPECT_FALSE((*view)->HasShard(-1));
  }
}

TEST(ShardMapTest, ThreadsDifferByAtMostOneShardInLoad) {
  const auto view = View::Create(
      ViewOf({TableOf("a", {1000}), TableOf("b", {37, 11})}, 3, 64));
  ASSERT_TRUE(view.ok());
  std::map<Owner, int64_t> load;
  for (int s = 0; s < (*view)->shard_count(); ++s) {
    load[(*view)->OwnerOf(ShardId{s})] +=
        (*view)->shard(ShardId{s}).region.size();
  }
  ASSERT_EQ(load.size(), 6u);
  int64_t least = 1 << 30, most = 0;
  for (const auto& [owner, elements] : load) {
    least = std::min(least, elements);
    most = std::max(most, elements);
  }
  EXPECT_LE(most - least, 64);
}

TEST(ShardMapTest, ATableMayHaveItsOwnShardSize) {
  const auto view =
      View::Create(ViewOf({TableOf("a", {10}), TableOf("b", {10}, 4)}, 1, 100));
  ASSERT_TRUE(view.ok());
  EXPECT_EQ((*view)->ShardsOf(TableId{0}).size(), 1u);
  EXPECT_EQ((*view)->ShardsOf(TableId{1}).size(), 3u);
  EXPECT_EQ((*view)->ShardName(ShardId{3}), "b[8, 10)");
}

TEST(ShardMapTest, RefusesAViewThatDoesNotFitAndSaysWhere) {
  const wire::View good = ViewOf({TableOf("weight", {4, 5})}, 1, 8);
  ASSERT_TRUE(View::Create(good).ok());

  wire::View view = good;
  view.mutable_table(0)->set_shape(1, 0);
  EXPECT_THAT(ErrorOf(view), HasSubstr("table weight has an extent of 0"));

  view = good;
  view.mutable_table(0)->set_shard_elements(0);
  EXPECT_THAT(ErrorOf(view), HasSubstr("weight has shards of 0 elements"));

  view = good;
  view.mutable_table(0)->set_first_shard(1);
  EXPECT_THAT(ErrorOf(view), HasSubstr("from shard 1, expected"));

  view = good;
  view.mutable_owner_server()->RemoveLast();
  EXPECT_THAT(ErrorOf(view), HasSubstr("2 owners for 3 shards"));

  view = good;
  view.set_owner_thread(1, 2);
  EXPECT_THAT(ErrorOf(view),
              HasSubstr("view 7: shard 1 belongs to thread 2 of server 0"));
}

TEST(ShardMapTest, RefusesWhatCannotBeBeforeItMakesAnythingOfIt) {
  const wire::View good = ViewOf({TableOf("weight", {64})}, 2, 8);
  ASSERT_TRUE(View::Create(good).ok());
  using Spoil = std::function<void(wire::View&)>;
  const std::vector<Spoil> cases = {
      [](auto& view) {  // As many elements as wrap around to few.
        for (int i = 0; i < 8; ++i) view.mutable_table(0)->add_shape(1 << 30);
      },
      [](auto& view) {  // 2^40 shards.
        view.mutable_table(0)->set_shape(0, int64_t{1} << 40);
        view.mutable_table(0)->set_shard_elements(1);
      },
      [](auto& view) { view.mutable_server()->SwapElements(0, 1); },
      [](auto& view) { *view.add_server() = view.server(1); },
      [](auto& view) {
        view.add_worker()->set_rank(1);
        view.add_worker()->set_rank(1);
      },
      [](auto& view) {
        view.add_worker()->set_rank(1);
        view.add_worker()->set_rank(0);
      },
      [](auto& view) { view.add_phase()->set_from(1); },
      [](auto& view) { view.add_phase()->set_from(-1); },
      [](auto& view) {
        view.add_phase();
        view.add_phase();
      },
      [](auto& view) { view.set_entered(1); },
      [](auto& view) { view.set_entered(-1); },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    wire::View view = good;
    cases[i](view);
    EXPECT_EQ(View::Create(view).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "case " << i;
  }
}

// A server's death ends the job with a view that still names what it owned.
TEST(ShardMapTest, AViewThatEndsTheJobMayLackAnOwner) {
  wire::View view = ViewOf({TableOf("weight", {64})}, 2, 8);
  view.mutable_server()->RemoveLast();
  EXPECT_FALSE(View::Create(view).ok());
  view.set_state(wire::FAILED);
  EXPECT_TRUE(View::Create(view).ok());
}

TEST(ShardMapTest, FindsAWorkerByRankAndIncarnation) {
  wire::View proto = ViewOf({TableOf("weight", {8})}, 1, 8);
  wire::WorkerMember& worker = *proto.add_worker();
  worker.set_rank(3);
  worker.set_incarnation(12);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok());
  EXPECT_NE((*view)->FindWorker(Rank{3}), nullptr);
  EXPECT_NE((*view)->FindWorker(Rank{3}, 12), nullptr);
  EXPECT_EQ((*view)->FindWorker(Rank{3}, 11), nullptr);
  EXPECT_EQ((*view)->FindWorker(Rank{2}), nullptr);
}

// ---- Splits -----------------------------------------------------------------

TEST(ShardMapTest, ASplitShardKeepsItsBeginningAndTheNewOneGetsTheRest) {
  wire::View proto = ViewOf({TableOf("a", {10}), TableOf("b", {10})}, 1, 8);
  Split(2, 3, 7, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_EQ((*view)->shard_count(), 5);
  EXPECT_EQ((*view)->ShardName(ShardId{2}), "b[0, 3)");
  EXPECT_EQ((*view)->ShardName(ShardId{4}), "b[3, 8)");
  EXPECT_EQ((*view)->ShardName(ShardId{3}), "b[8, 10)") << "the others stay";
  EXPECT_EQ((*view)->shard(ShardId{4}).shard, ShardId{4});
  EXPECT_EQ((*view)->shard(ShardId{4}).table, TableId{1});
}

TEST(ShardMapTest, EitherPartOfASplitMayBeSplitAgain) {
  wire::View proto = ViewOf({TableOf("a", {16})}, 1, 16);
  Split(0, 8, 5, &proto);
  Split(1, 12, 6, &proto);
  Split(0, 2, 7, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back((*view)->ShardName(ShardId{i}));
  EXPECT_THAT(names,
              ElementsAre("a[0, 2)", "a[8, 12)", "a[12, 16)", "a[2, 8)"));
}

TEST(ShardMapTest, ATablesShardsAreInElementOrderHoweverItWasSplit) {
  wire::View proto = ViewOf({TableOf("a", {16}), TableOf("b", {4})}, 1, 8);
  Split(1, 12, 6, &proto);
  Split(0, 2, 7, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<int> shards;
  for (const ShardRange& range : (*view)->ShardsOf(TableId{0}))
    shards.push_back(static_cast<int>(range.shard));
  EXPECT_THAT(shards, ElementsAre(0, 4, 1, 3));
  EXPECT_EQ((*view)->ShardsOf(TableId{1}).size(), 1u);
}

TEST(ShardMapTest, AShardsRangeIsAsOldAsItsLastSplit) {
  wire::View proto = ViewOf({TableOf("a", {16}), TableOf("b", {4})}, 1, 16);
  Split(0, 8, 5, &proto);
  Split(2, 12, 7, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ((*view)->RangeSince(ShardId{0}), 5u);
  EXPECT_EQ((*view)->RangeSince(ShardId{1}), 0u) << "as from the start";
  EXPECT_EQ((*view)->RangeSince(ShardId{2}), 7u);
  EXPECT_EQ((*view)->RangeSince(ShardId{3}), 7u);
}

TEST(ShardMapTest, ANewShardNamesTheOneThatItWasCutOffFrom) {
  wire::View proto = ViewOf({TableOf("a", {16}), TableOf("b", {4})}, 1, 16);
  Split(0, 8, 5, &proto);
  Split(2, 12, 7, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ((*view)->OriginOf(ShardId{0}), ShardId{0});
  EXPECT_EQ((*view)->OriginOf(ShardId{1}), ShardId{1});
  EXPECT_EQ((*view)->OriginOf(ShardId{2}), ShardId{0});
  EXPECT_EQ((*view)->OriginOf(ShardId{3}), ShardId{2});
}

TEST(ShardMapTest, SplitShardsCoverEachTableWithoutGaps) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    std::vector<wire::Table> tables;
    for (int64_t t = rng.Between(1, 3); t > 0; --t)
      tables.push_back(TableOf(absl::StrCat("t", t), {rng.Between(1, 60)}));
    wire::View proto = ViewOf(tables, 2, rng.Between(1, 30));
    for (int i = 0; i < 20; ++i) {
      const auto view = View::Create(proto);
      ASSERT_TRUE(view.ok()) << view.status();
      const ShardRange range = (*view)->shard(
          ShardId{static_cast<int32_t>(rng.Below((*view)->shard_count()))});
      if (range.region.size() < 2) continue;
      Split(static_cast<int32_t>(range.shard),
            rng.Between(range.region.begin() + 1, range.region.end() - 1), 7,
            &proto);
    }
    const auto view = View::Create(proto);
    ASSERT_TRUE(view.ok()) << view.status();
    size_t shards = 0;
    for (int t = 0; t < static_cast<int>(tables.size()); ++t) {
      int64_t next_element = 0;
      for (const ShardRange& range : (*view)->ShardsOf(TableId{t})) {
        EXPECT_EQ(range.region.begin(), next_element);
        EXPECT_GT(range.region.size(), 0);
        EXPECT_EQ((*view)->shard(range.shard).region, range.region);
        next_element = range.region.end();
        ++shards;
      }
      EXPECT_EQ(next_element, TableElements(tables[t]));
    }
    EXPECT_EQ(shards, static_cast<size_t>((*view)->shard_count()));
  }
}

TEST(ShardMapTest, RefusesASplitThatIsNotInsideItsShard) {
  const wire::View good = ViewOf({TableOf("a", {16})}, 1, 8);
  for (const int64_t at : {7, 8, 16, 17, -1}) {
    wire::View view = good;
    Split(1, at, 7, &view);
    EXPECT_THAT(ErrorOf(view),
                HasSubstr(absl::StrCat("view 7: shard 1 is to be split at "
                                       "element ",
                                       at, ", which is not inside it")));
  }
  wire::View view = good;
  Split(0, 4, 7, &view);
  view.mutable_split(0)->set_shard(2);  // What it makes itself.
  EXPECT_THAT(ErrorOf(view), HasSubstr("shard 2 is to be split"));
  view.mutable_split(0)->set_shard(-1);
  EXPECT_THAT(ErrorOf(view), HasSubstr("shard -1 is to be split"));
}

TEST(ShardMapTest, ASplitShardNeedsAnOwnerToo) {
  wire::View view = ViewOf({TableOf("a", {16})}, 1, 8);
  Split(0, 4, 7, &view);
  view.mutable_owner_server()->RemoveLast();
  EXPECT_THAT(ErrorOf(view), HasSubstr("2 owners for 3 shards"));
}

// ---- Moves ------------------------------------------------------------------

TEST(ShardMapTest, FindsTheMoveOfAShardWhichStaysUnderItsSource) {
  wire::View proto = ViewOf({TableOf("a", {16})}, 2, 8);
  Move(1, {1, 1}, &proto);
  const Owner before{proto.owner_server(1), proto.owner_thread(1)};
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ((*view)->FindMove(ShardId{0}), nullptr);
  const wire::Move* const move = (*view)->FindMove(ShardId{1});
  ASSERT_NE(move, nullptr);
  EXPECT_EQ(move->server(), 1);
  EXPECT_EQ(move->thread(), 1);
  EXPECT_EQ(move->id(), 6u);
  EXPECT_EQ((*view)->OwnerOf(ShardId{1}), before);
}

TEST(ShardMapTest, AShardThatWasJustCutOffMayMove) {
  wire::View proto = ViewOf({TableOf("a", {16})}, 2, 8);
  Split(0, 4, 7, &proto);
  Move(2, {1, 0}, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_NE((*view)->FindMove(ShardId{2}), nullptr);
}

TEST(ShardMapTest, RefusesAMoveOfNoShardOrToNoThread) {
  const wire::View good = ViewOf({TableOf("a", {16})}, 2, 8);
  const struct {
    int32_t shard;
    Owner to;
  } cases[] = {
      {2, {1, 0}}, {-1, {1, 0}}, {0, {1, 2}}, {0, {2, 0}}, {0, {1, -1}}};
  for (const auto& c : cases) {
    wire::View view = good;
    Move(c.shard, c.to, &view);
    EXPECT_THAT(ErrorOf(view),
                HasSubstr(absl::StrCat(
                    "view 7: shard ", c.shard, " is to move to thread ",
                    c.to.thread, " of server ", c.to.server,
                    "; the view has no such shard or thread")));
  }
}

TEST(ShardMapTest, RefusesTwoMovesOfOneShard) {
  wire::View view = ViewOf({TableOf("a", {16})}, 2, 8);
  Move(0, {1, 0}, &view);
  Move(0, {1, 1}, &view);
  EXPECT_THAT(ErrorOf(view), HasSubstr("shard 0 moves twice"));
}

TEST(ShardMapTest, AViewThatEndsTheJobMayMoveAShardToADeadServer) {
  wire::View view = ViewOf({TableOf("a", {16})}, 2, 8);
  Move(0, {2, 0}, &view);
  EXPECT_FALSE(View::Create(view).ok());
  view.set_state(wire::FAILED);
  EXPECT_TRUE(View::Create(view).ok());
}

// ---- Followers --------------------------------------------------------------

// Two shards: shard 0 is server 0's, shard 1 is server 2's.
wire::View WithoutFollowers() {
  wire::View view = ViewOf({TableOf("a", {16})}, 4, 8);
  view.set_owner_server(0, 0);
  view.set_owner_server(1, 2);
  return view;
}

// "1.0 3.1": the followers of the shard are thread 0 of server 1, and so on.
std::vector<std::string> FollowersOf(const View& view, int32_t shard) {
  std::vector<std::string> texts;
  for (const wire::Follower& follower : view.FollowersOf(ShardId{shard})) {
    EXPECT_EQ(follower.shard(), shard);
    texts.push_back(absl::StrCat(follower.server(), ".", follower.thread()));
  }
  return texts;
}

TEST(ShardMapTest, FindsTheFollowersOfAShardByServer) {
  wire::View proto = WithoutFollowers();
  Follow(1, {0, 0}, &proto);
  Follow(1, {3, 1}, &proto).set_in_sync(false);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_THAT(FollowersOf(**view, 0), ElementsAre());
  EXPECT_THAT(FollowersOf(**view, 1), ElementsAre("0.0", "3.1"));
  const wire::Follower& second = (*view)->FollowersOf(ShardId{1})[1];
  EXPECT_EQ(second.since(), 3u);
  EXPECT_FALSE(second.in_sync());
  EXPECT_EQ((*view)->ToProto().SerializeAsString(), proto.SerializeAsString());
  EXPECT_EQ((*view)->proto().follower_size(), 0);
}

TEST(ShardMapTest, ANewShardIsFollowedAsTheOneThatItWasCutOffFrom) {
  wire::View proto = WithoutFollowers();
  Follow(1, {0, 0}, &proto);
  Follow(1, {3, 1}, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  wire::ViewChange change;
  change.set_base(proto.number());
  change.set_number(proto.number() + 1);
  change.set_state(wire::RUNNING);
  wire::Split& split = *change.add_split();
  split.set_shard(1);
  split.set_at(12);
  const auto next = (*view)->With(change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(FollowersOf(**next, 2), ElementsAre("0.0", "3.1"));
  EXPECT_THAT((*next)->FollowersThatDiffer(**view), ElementsAre())
      << "of the shards that both have";
}

TEST(ShardMapTest, SaysWhichShardsHaveOtherFollowersThanBefore) {
  wire::View proto = ViewOf({TableOf("a", {3000})}, 3, 1);
  for (int32_t shard = 0; shard < 3000; shard += 3)
    Follow(shard, {(proto.owner_server(shard) + 1) % 3, 0}, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  wire::ViewChange change;
  change.set_base(proto.number());
  change.set_number(proto.number() + 1);
  change.set_state(wire::RUNNING);
  const auto same = (*view)->With(change);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT((*same)->FollowersThatDiffer(**view), ElementsAre());
  *change.add_follower() = proto.follower(4);  // As it is.
  wire::Follower& fell_behind = *change.add_follower();
  fell_behind = proto.follower(10);
  fell_behind.set_in_sync(false);
  wire::FollowerGone& gone = *change.add_follower_gone();
  gone.set_shard(2997);
  gone.set_server(proto.follower(999).server());
  wire::Follower& added = *change.add_follower();
  added = proto.follower(0);
  added.set_shard(2000);
  added.set_server((proto.owner_server(2000) + 2) % 3);
  const auto next = (*view)->With(change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT((*next)->FollowersThatDiffer(**view),
              ElementsAre(30, 2000, 2997));
  EXPECT_THAT((*view)->FollowersThatDiffer(**next),
              ElementsAre(30, 2000, 2997));
  EXPECT_EQ((*view)->FollowersOf(ShardId{2000}).size(), 0u)
      << "it is immutable";
}

TEST(ShardMapTest, RefusesFollowersThatDoNotFitAndSaysWhich) {
  wire::View view = WithoutFollowers();
  Follow(2, {1, 0}, &view);
  EXPECT_THAT(ErrorOf(view), HasSubstr("view 7: there is no shard 2"));

  view = WithoutFollowers();
  Follow(-1, {1, 0}, &view);
  EXPECT_THAT(ErrorOf(view), HasSubstr("there is no shard -1"));

  view = WithoutFollowers();
  Follow(1, {1, 0}, &view);
  Follow(0, {1, 0}, &view);
  EXPECT_THAT(ErrorOf(view),
              HasSubstr("the follower of shard 0 on server 1 comes after that "
                        "of shard 1 on server 1"));

  view = WithoutFollowers();
  Follow(0, {1, 0}, &view);
  Follow(0, {1, 1}, &view);
  EXPECT_THAT(ErrorOf(view), HasSubstr("followers must be sorted"));

  view = WithoutFollowers();
  Follow(1, {2, 1}, &view);
  EXPECT_THAT(
      ErrorOf(view),
      HasSubstr("shard 1 belongs to server 2 and is followed there, too"));

  for (const Owner thread : {Owner{4, 0}, Owner{1, 2}, Owner{1, -1}}) {
    view = WithoutFollowers();
    Follow(0, thread, &view);
    EXPECT_THAT(
        ErrorOf(view),
        HasSubstr(absl::StrCat("shard 0 is followed by thread ", thread.thread,
                               " of server ", thread.server)));
    view.set_state(wire::FAILED);
    EXPECT_TRUE(View::Create(view).ok()) << "that is over";
  }
}

TEST(ShardMapTest, AChangeThatLeavesAFollowerWhereItCannotBeIsRefused) {
  wire::View proto = WithoutFollowers();
  Follow(0, {3, 0}, &proto);
  const auto view = View::Create(proto);
  ASSERT_TRUE(view.ok()) << view.status();
  wire::ViewChange good;
  good.set_base(proto.number());
  good.set_number(proto.number() + 1);
  good.set_state(wire::RUNNING);
  using Spoil = std::function<void(wire::ViewChange&)>;
  const std::vector<Spoil> cases = {
      [](auto& change) { change.add_server_gone(3); },
      [](auto& change) { change.add_owner()->set_server(3); },
      [](auto& change) { change.add_follower(); },  // With its owner.
      [](auto& change) { change.add_follower()->set_shard(2); },
      [](auto& change) { change.add_follower_gone()->set_shard(-1); },
      [](auto& change) {
        change.add_follower()->set_server(3);
        change.mutable_follower(0)->set_thread(2);
      },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    wire::ViewChange change = good;
    cases[i](change);
    EXPECT_EQ((*view)->With(change).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "case " << i;
  }
  // The follower becomes the owner, whose server goes.
  proto.set_owner_server(1, 1);
  const auto fewer = View::Create(proto);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  good.add_server_gone(0);
  good.add_follower_gone()->set_server(3);
  good.add_owner()->set_server(3);
  const auto next = (*fewer)->With(good);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->OwnerOf(ShardId{0}), (Owner{3, 0}));
  EXPECT_THAT(FollowersOf(**next, 0), ElementsAre());
}

}  // namespace slackline::shard_map_test
