// Goal: every element of every table is in exactly one shard, each shard has
// one owner, and a view that does not fit together is refused with the reason.
#include "common/view/shard_map.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::HasSubstr;

wire::Table TableOf(const std::string& name, std::vector<int64_t> shape,
                    int64_t shard_elements = 0) {
  wire::Table table;
  table.set_name(name);
  for (const int64_t extent : shape) table.add_shape(extent);
  table.set_shard_elements(shard_elements);
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

std::string ErrorOf(const wire::View& view) {
  return std::string(View::Create(view).status().message());
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
        EXPECT_EQ(range.begin, next_element);
        EXPECT_GT(range.elements(), 0);
        next_element = range.end;
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
    load[(*view)->OwnerOf(ShardId{s})] += (*view)->shard(ShardId{s}).elements();
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

}  // namespace
}  // namespace slackline
