// Routes: whose word counts about where a shard is, and what a newer view
// changes.
#include "worker/client/routes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client_core_fixture.h"

namespace slackline::routes_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RoutesTest : public ::testing::Test {
 protected:
  RoutesTest() : view_(TestView()), routes_(*View::Create(view_)) {}

  bool Relocate(int32_t shard, Owner to, uint64_t as_of) {
    wire::Relocation relocation;
    relocation.set_server(to.server);
    relocation.set_thread(to.thread);
    relocation.set_as_of(as_of);
    return routes_.Relocate(shard, relocation);
  }
  // Under the next number.
  Routes::Change Take() {
    view_.set_number(view_.number() + 1);
    return routes_.Adopt(*View::Create(view_));
  }
  void Split(int32_t shard, int64_t at) {
    wire::Split& split = *view_.add_split();
    split.set_shard(shard);
    split.set_at(at);
    split.set_since(view_.number() + 1);
    view_.add_owner_server(view_.owner_server(shard));
    view_.add_owner_thread(view_.owner_thread(shard));
  }

  wire::View view_;  // Number 2; even shards are on thread 0.
  Routes routes_;
};

TEST_F(RoutesTest, TheNewestWordAboutAShardCounts) {
  EXPECT_EQ(routes_.OwnerOf(0), kThread0);
  EXPECT_FALSE(Relocate(0, kThread1, 2)) << "as old as the view";
  EXPECT_TRUE(Relocate(0, kThread1, 5));
  EXPECT_EQ(routes_.OwnerOf(0), kThread1);
  EXPECT_FALSE(Relocate(0, kThread0, 5));
  EXPECT_EQ(routes_.OwnerOf(0), kThread1);
  EXPECT_FALSE(Relocate(0, kThread1, 6)) << "newer, and the same place";
  EXPECT_FALSE(Relocate(0, kThread0, 6)) << "no newer than that";
  EXPECT_TRUE(Relocate(0, kThread0, 7));
}

TEST_F(RoutesTest, AViewThatIsAsNewAsAServersWordEndsIt) {
  Relocate(0, kThread1, 4);
  EXPECT_FALSE(Take().moved) << "view 3 is older";
  EXPECT_EQ(routes_.OwnerOf(0), kThread1);
  EXPECT_TRUE(Take().moved);
  EXPECT_EQ(routes_.OwnerOf(0), kThread0);
  EXPECT_FALSE(Take().moved);
}

TEST_F(RoutesTest, AnotherOwnerInTheViewIsAMoveUnlessItWasKnown) {
  view_.set_owner_thread(0, 1);
  EXPECT_TRUE(Take().moved);
  Relocate(2, kThread1, 4);
  view_.set_owner_thread(2, 1);
  view_.set_number(3);
  EXPECT_FALSE(Take().moved) << "view 4 says what the server has said";
  EXPECT_EQ(routes_.OwnerOf(2), kThread1);
}

TEST_F(RoutesTest, WhatTheViewDoesNotHaveIsNotLearned) {
  EXPECT_FALSE(Relocate(kShards, kThread1, 9));
  EXPECT_FALSE(Relocate(-1, kThread1, 9));
  for (const Owner nobody : {Owner{7, 0}, Owner{0, 2}, Owner{0, -1}}) {
    EXPECT_FALSE(routes_.Has(nobody));
    EXPECT_FALSE(Relocate(0, nobody, 9));
  }
  EXPECT_EQ(routes_.OwnerOf(0), kThread0);
}

TEST_F(RoutesTest, ThePartsOfAShardAreWhereTheWholeWas) {
  Relocate(0, kThread1, 9);
  Split(0, 1);
  Split(2, 10);
  Split(8, 3);  // A part of a part.
  const Routes::Change change = Take();
  ASSERT_THAT(change.splits, SizeIs(3));
  EXPECT_FALSE(change.moved);
  EXPECT_EQ(change.splits[0].kept, 0);
  EXPECT_EQ(change.splits[0].split_off, 8);
  EXPECT_EQ(change.splits[0].of_kept, Region(0, 1));
  EXPECT_EQ(change.splits[0].of_split_off, Region(1, 4));
  EXPECT_EQ(change.splits[1].split_off, 9);
  EXPECT_EQ(change.splits[1].of_kept, Region(8, 10));
  EXPECT_EQ(change.splits[1].of_split_off, Region(10, 12));
  EXPECT_EQ(change.splits[2].kept, 8);
  EXPECT_EQ(change.splits[2].split_off, 10);
  EXPECT_EQ(change.splits[2].of_kept, Region(1, 3));
  EXPECT_EQ(change.splits[2].of_split_off, Region(3, 4));
  for (const int32_t shard : {0, 8, 10})
    EXPECT_EQ(routes_.OwnerOf(shard), kThread1) << shard;
  EXPECT_EQ(routes_.OwnerOf(9), kThread0);
  EXPECT_THAT(Take().splits, IsEmpty()) << "each once";
}

TEST_F(RoutesTest, AnOwnerIsNamedWithItsEndpointIfTheViewHasIt) {
  EXPECT_EQ(routes_.NameOf(kThread1), "server 0 thread 1 (tcp://here:2)");
  EXPECT_EQ(routes_.NameOf({3, 1}), "server 3 thread 1");
}

}  // namespace slackline::routes_test
