#include "tools/cli/job/move_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackline::move_watch_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void AddMove(int shard, bool ordered, run::Plan* plan) {
  run::PlannedMove& move = *plan->add_move();
  move.set_shard(shard);
  move.set_name("w");
  move.set_to_server(1);
  move.set_ordered(ordered);
}

// Of shards 2 and 4 to server 1.
run::Plan MakePlan() {
  run::Plan plan;
  AddMove(2, true, &plan);
  AddMove(4, false, &plan);
  return plan;
}

// Five shards, all on server 0; `pending` as in the plan.
wire::StatusReply MakeStatus(const run::Plan& pending) {
  wire::StatusReply status;
  *status.mutable_plan() = pending;
  for (int shard = 0; shard < 5; ++shard) {
    status.mutable_view()->add_owner_server(0);
    status.mutable_view()->add_owner_thread(0);
  }
  return status;
}

void AddRecord(int shard, double seconds, wire::StatusReply* status) {
  run::MoveRecord& record = *status->add_moved();
  record.set_shard(shard);
  record.set_seconds(seconds);
  record.set_to_server(1);
}

TEST(MoveWatchTest, FollowsThePlanToItsEnd) {
  MoveWatch watch(MakePlan(), wire::StatusReply());
  EXPECT_FALSE(watch.Done()) << "nothing is known yet";
  wire::StatusReply status = MakeStatus(MakePlan());
  watch.Update(status);
  EXPECT_FALSE(watch.Done());
  EXPECT_EQ(watch.Line(), "0 of 2 moves done, 1 under way");
  status.mutable_plan()->mutable_move()->DeleteSubrange(0, 1);
  AddRecord(2, 7, &status);
  watch.Update(status);
  watch.Update(status);
  EXPECT_FALSE(watch.Done());
  EXPECT_EQ(watch.Line(), "1 of 2 moves done, 0 under way");
  EXPECT_THAT(watch.moved(), SizeIs(1)) << "a record counts once";
  status.clear_plan();
  AddRecord(4, 8, &status);
  watch.Update(status);
  EXPECT_TRUE(watch.Done());
  ASSERT_THAT(watch.moved(), SizeIs(2));
  EXPECT_EQ(watch.moved()[1].shard(), 4);
  EXPECT_THAT(watch.Abandoned(), IsEmpty());
  EXPECT_EQ(watch.Unrecorded(), 0);
}

TEST(MoveWatchTest, MovesFromBeforeAndOfOtherShardsAreNotThePlans) {
  wire::StatusReply before;
  AddRecord(2, 3, &before);
  MoveWatch watch(MakePlan(), before);
  wire::StatusReply status = MakeStatus(run::Plan());
  AddMove(1, true, status.mutable_plan());
  AddRecord(2, 3, &status);
  AddRecord(3, 4, &status);
  watch.Update(status);
  EXPECT_THAT(watch.moved(), IsEmpty());
  EXPECT_TRUE(watch.Done()) << "the move of shard 1 is somebody else's";
}

TEST(MoveWatchTest, AMoveWhoseRecordWasForgottenCountsByTheView) {
  MoveWatch watch(MakePlan(), wire::StatusReply());
  wire::StatusReply status = MakeStatus(run::Plan());
  AddRecord(2, 7, &status);
  status.mutable_view()->set_owner_server(4, 1);
  watch.Update(status);
  EXPECT_TRUE(watch.Done());
  EXPECT_THAT(watch.Abandoned(), IsEmpty());
  EXPECT_EQ(watch.Unrecorded(), 1);
}

TEST(MoveWatchTest, AMoveThatIsGoneWithoutEffectWasGivenUp) {
  MoveWatch watch(MakePlan(), wire::StatusReply());
  wire::StatusReply status = MakeStatus(run::Plan());
  AddRecord(2, 7, &status);
  watch.Update(status);
  EXPECT_TRUE(watch.Done());
  EXPECT_THAT(watch.Abandoned(),
              ElementsAre("shard 4 (w) was not moved to 1.0; the coordinator "
                          "has given that move up, its log says why"));
  EXPECT_EQ(watch.Unrecorded(), 0);
}

}  // namespace slackline::move_watch_test
