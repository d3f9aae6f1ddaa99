// Goal: a shard that moves is the one that it would have been, whatever comes
// on the way: pushes, pulls, workers, installations, losses.
// Method: two cores with a link by hand; SGD with learning rate 1 from zeros,
// so that values show what was applied, or Adam, whose bits depend on
// everything that ever was; random histories against a twin that never moves.
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/support/modes.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::shard_move_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Moves ------------------------------------------------------------------

TEST_F(ShardMoveTest, AMovedShardGoesOnWhereItWas) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  MoveNow(0, 1);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_TRUE(cores_[0]->Owns(ShardId{1})) << "the other one stays";
  Send(1, Worker(0), PushOf(1, 2, 2));
  Send(1, Worker(0), PullOf(2, 7));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 0 OK acked 2",
                                     "rank 0: pull 7 of 0 OK -7"));
  EXPECT_EQ(State(1, 0).shard().version(), 2u);
  EXPECT_EQ(cores_[0]->moves_count() + cores_[1]->moves_count(), 0u);
}

TEST_F(ShardMoveTest, TheTargetAppliesWhatTheRuleForStaleGradientsMade) {
  // The target could not compute it: it does not know what workers were told.
  for (const bool by_rate : {false, true}) {
    SCOPED_TRACE(by_rate ? "a rate" : "another gradient");
    stale_.Clear();
    if (by_rate) {
      stale_.add_stale()->mutable_staleness_aware_rate();
    } else {
      stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
    }
    view_ = wire::View();
    wire_.clear();
    Start("asp", 2);
    Send(0, Worker(0), PullOf(0));
    Send(0, Worker(1), PushOf(0, 1, 4));
    Move(0, 1);
    Show();
    Send(0, Worker(0), PushOf(0, 1, 2));
    const float served = Value(0);
    Deliver();
    Commit(0);
    Show();
    ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
    EXPECT_EQ(Value(1), served);
    EXPECT_EQ(served, by_rate ? -6 : -1);
  }
}

TEST_F(ShardMoveTest, ADroppedGradientIsDroppedAtTheTargetToo) {
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0);
  Start("asp", 2);
  Move(0, 1);
  Show();
  Send(0, Worker(1), PushOf(0, 1, 4));
  Send(0, Worker(0), PushOf(0, 1, 2));
  Deliver();
  Commit(0);
  Show();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -2);
  EXPECT_EQ(State(1, 0).participants().MinClock(), 1);
}

TEST_F(ShardMoveTest, TheSourceServesUntilTheTargetHasAll) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Clock clock = 0;
  while (cores_[0]->Owns(ShardId{0})) {
    if (clock < 3) {
      Send(0, Worker(0), PushOf(clock, clock + 1, 1));
      Send(0, Worker(0), PullOf(clock + 1, clock + 1));
      ++clock;
      EXPECT_THAT(Replies(),
                  ElementsAre(absl::StrCat("rank 0: push 0 OK acked ", clock),
                              absl::StrCat("rank 0: pull ", clock, " of 0 OK ",
                                           -clock)));
    }
    ASSERT_FALSE(wire_.empty());
    ASSERT_FALSE(cores_[1]->Owns(ShardId{0})) << "two owners";
    Deliver(1);
  }
  ASSERT_EQ(clock, 3);
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  Deliver();
  EXPECT_EQ(Value(1), -3);
}

TEST_F(ShardMoveTest, AfterTheGoTheSourceSaysWhereTheShardIs) {
  Start("asp", 1);
  Move(0, 1);
  Show();  // View 4.
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Message both = PullOf(0, 7);
  TheOnlyPull(both).add_shard(1);
  Send(0, Worker(0), both);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 1 OK 0"));
}

TEST_F(ShardMoveTest, BeforeTheFirstRecordTheTargetNamesTheSource) {
  Start("asp", 1);
  Move(0, 1);
  Show();  // View 4, which says nothing that view 3 did not.
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 0 as of 3"));
}

TEST_F(ShardMoveTest, ARepeatedPushIsAcknowledgedByTheNextOwnerAndNotApplied) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(0), PushOf(1, 2, 1));
  MoveNow(0, 1);
  Replies();
  Send(1, Worker(0), PushOf(0, 1, 5));
  Send(1, Worker(0), PushOf(1, 2, 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2",
                                     "rank 0: push 0 OK acked 2"));
  EXPECT_EQ(Value(1), -6);
  EXPECT_EQ(cores_[1]->Stats().duplicates(), 2u);
  Send(1, Worker(0), PushOf(3, 4, 1));
  Send(1, Worker(0), PushOf(2, 3, 1));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: push 0 RETRY", "rank 0: push 0 OK acked 3"));
}

TEST_F(ShardMoveTest, APullParkedAtTheSourceIsSentToTheNextOwner) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Send(0, Worker(0), PullOf(1, 7));
  EXPECT_THAT(Replies(), SizeIs(1)) << "the pull is parked";
  Move(0, 1);
  Show();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED to 1 as of 4"));
  Send(1, Worker(0), PullOf(1, 8));
  Send(1, Worker(1), PushOf(0, 1, 2));
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 OK acked 1",
                                     "rank 0: pull 8 of 0 OK -3"));
}

TEST_F(ShardMoveTest, RequestsThatComeBeforeTheShardWaitAndAreAnsweredInOrder) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Move(0, 1);
  Show();
  Deliver(1);  // The first record is there.
  Replies();
  Send(1, Worker(0), PushOf(1, 2, 1));
  Send(1, Worker(0), PullOf(2, 7));
  Send(1, Worker(0), PullOf(0, 8, /*shard=*/2));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 8 of 2 OK 0"))
      << "its other shards do not wait";
  EXPECT_EQ(cores_[1]->waiting_count(), 2u);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2",
                                     "rank 0: pull 7 of 0 OK -6"));
  EXPECT_EQ(cores_[1]->waiting_count(), 0u);
}

TEST_F(ShardMoveTest, NoMoreThanTheBoundWait) {
  waiting_max_ = 2;
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(1);
  for (uint64_t id = 1; id <= 3; ++id) Send(1, Worker(0), PullOf(0, id));
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: pull 3 of 0 RETRY", "rank 0: push 0 RETRY"));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 1 of 0 OK 0",
                                     "rank 0: pull 2 of 0 OK 0"));
}

// What a message of one entry counts as while it waits.
size_t WaitingBytesOf(const Message& message) {
  size_t bytes = 0;
  for (const Payload& payload : message.payloads) bytes += payload.size();
  for (const wire::Push& push : message.header.push_request().push())
    bytes += push.ByteSizeLong();
  for (wire::Pull pull : message.header.pull_request().pull()) {
    pull.clear_shard();
    bytes += pull.ByteSizeLong();
  }
  return bytes;
}

TEST_F(ShardMoveTest, NoMoreBytesThanTheBoundOfAShardWait) {
  waiting_bytes_max_ =
      2 * WaitingBytesOf(PushOf(0, 1, 6)) + WaitingBytesOf(PullOf(0, 7));
  Start("asp", 3);
  Move(0, 1);
  Show();
  Deliver(1);
  for (const int rank : {0, 1, 2}) Send(1, Worker(rank), PushOf(0, 1, 6));
  EXPECT_THAT(Replies(), ElementsAre("rank 2: push 0 RETRY"));
  Send(1, Worker(2), PullOf(0, 7));
  EXPECT_THAT(Replies(), IsEmpty()) << "it has no payload";
  EXPECT_EQ(cores_[1]->waiting_bytes(), waiting_bytes_max_);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 1: push 0 OK acked 1",
                                     "rank 2: pull 7 of 0 OK -4"));
  EXPECT_EQ(cores_[1]->waiting_bytes(), 0u);
}

TEST_F(ShardMoveTest, NoMoreBytesThanTheBoundOfAThreadWait) {
  waiting_bytes_max_all_ = 2 * WaitingBytesOf(PushOf(0, 1, 2, /*shard=*/0)) +
                           WaitingBytesOf(PushOf(0, 1, 2, /*shard=*/1));
  Start("asp", 2);
  Move(0, 1);
  Move(1, 1);
  Show();
  Deliver(2);  // The first record of each.
  for (const int rank : {0, 1}) {
    for (const int32_t shard : {0, 1})
      Send(1, Worker(rank), PushOf(0, 1, 2, shard));
  }
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 1 RETRY"));
  EXPECT_EQ(cores_[1]->waiting_bytes(), waiting_bytes_max_all_);
  Deliver();
  EXPECT_EQ(cores_[1]->waiting_bytes(), 0u);
  EXPECT_EQ(Value(1, 0), -2);
  EXPECT_EQ(Value(1, 1), -1);
}

// An entry of many shards: each of those that wait keeps what it asks for.
TEST_F(ShardMoveTest, WhatAPullAsksForCountsForEachShardThatWaits) {
  const auto pull_of = [&](size_t extra) {
    Message message = PullOf(0, 7);
    wire::Pull& pull = TheOnlyPull(message);
    pull.add_shard(1);
    // Shards that are not there, whose numbers take a byte each.
    for (int32_t shard = 0; shard < 4000; ++shard)
      pull.add_shard(2 + shard % 100);
    pull.GetReflection()->MutableUnknownFields(&pull)->AddLengthDelimited(
        1000, std::string(extra, 'x'));
    return message;
  };
  const Message most = pull_of(4080);
  waiting_bytes_max_all_ = 2 * WaitingBytesOf(most);
  Start("asp", 2);
  Move(0, 1);
  Move(1, 1);
  Show();
  Deliver(2);  // The first record of each.
  Send(1, Worker(0), pull_of(4100));
  EXPECT_EQ(cores_[1]->Stats().malformed(), 1u);
  EXPECT_EQ(cores_[1]->waiting_count(), 0u);
  Replies();
  Send(1, Worker(0), most);
  EXPECT_EQ(cores_[1]->waiting_count(), 2u);
  EXPECT_EQ(cores_[1]->waiting_bytes(), waiting_bytes_max_all_);
  EXPECT_EQ(Replies().size(), 4000u) << "there are no such shards";
  Send(1, Worker(1), PullOf(0, 8));
  EXPECT_THAT(Replies(), ElementsAre("rank 1: pull 8 of 0 RETRY"));
  const uint64_t malformed = cores_[1]->Stats().malformed();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 OK 0",
                                     "rank 0: pull 7 of 1 OK 0"));
  EXPECT_EQ(cores_[1]->Stats().malformed(), malformed)
      << "what may wait is no fault when it has waited";
}

TEST_F(ShardMoveTest, AGradientThatIsNotFiniteIsOneForTheTargetToo) {
  Start("bsp", 3);
  Send(0, Worker(0), PushOf(0, 1, 2));
  Move(0, 1);
  Show();
  Deliver(1);
  Send(0, Worker(1), PushOf(0, 1, std::numeric_limits<float>::quiet_NaN()));
  Deliver();
  Send(1, Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Value(1), -3);
  EXPECT_EQ(State(1, 0).complete_clock(), 1);
  EXPECT_EQ(cores_[0]->Stats().nonfinite_size(), 1);
  EXPECT_EQ(cores_[1]->Stats().nonfinite_size(), 0);
}

TEST_F(ShardMoveTest, AMessageOfAnotherRunHandsNothingOver) {
  Start("asp", 1);
  view_.set_run(7);
  Move(0, 1);
  Show();
  ASSERT_FALSE(wire_.empty());
  EXPECT_EQ(wire_.front().message.header.run(), 7u);
  wire_.front().message.header.set_run(8);
  Deliver(1);
  EXPECT_EQ(cores_[1]->Stats().malformed(), 1u);
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
  EXPECT_THAT(wire_, IsEmpty()) << "it is not answered";
  Tick(absl::Seconds(1));
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "sent again, and its own";
}

TEST_F(ShardMoveTest, WhatWaitsKeepsItsRun) {
  Start("asp", 1);
  view_.set_run(7);
  Move(0, 1);
  Show();
  Deliver(1);
  Message push = PushOf(0, 1, 5);
  push.header.set_run(7);
  Send(1, Worker(0), push);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, WhoWaitsAndIsGoneMeanwhileIsFenced) {
  Start("asp", 2);
  Move(0, 1);
  Show();
  Deliver(1);
  Send(1, Worker(1), PushOf(0, 1, 5));
  RemoveWorker(1);
  Show();
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 FENCED"));
  EXPECT_EQ(Value(1), 0);
}

TEST_F(ShardMoveTest, ABspClockThatIsHalfPushedGoesAlong) {
  Start("bsp", 3);
  Send(0, Worker(2), PushOf(0, 1, 3));
  Move(0, 1);
  Show();
  Deliver(2);
  Send(0, Worker(0), PushOf(0, 1, 6));  // On the way.
  Deliver();
  EXPECT_THAT(State(1, 0).held(), SizeIs(2));
  EXPECT_EQ(Value(1), 0);
  Send(1, Worker(1), PushOf(0, 1, 9));
  EXPECT_EQ(Value(1), -6);
  Send(1, Worker(1), PushOf(1, 2, 1));
  EXPECT_THAT(Replies(), SizeIs(4));
}

TEST_F(ShardMoveTest, SlotsAndUpdateCountGoAlong) {
  Start("asp", 1, /*adam=*/true);
  MoveNow(1, 1);
  uint64_t seq = 0;
  const auto push = [&](int owner) {
    for (const int32_t shard : {0, 1}) {
      Message message = PushOf(static_cast<Clock>(seq), seq + 1,
                               0.5f + static_cast<float>(seq % 3), shard);
      Send(shard == 1 ? 1 : owner, Worker(0), message);
    }
    ++seq;
  };
  for (int i = 0; i < 4; ++i) push(0);
  MoveNow(0, 1);
  for (int i = 0; i < 4; ++i) push(1);
  MoveNow(0, 0);
  for (int i = 0; i < 4; ++i) push(0);
  std::vector<std::string> moved = Portrait(State(0, 0));
  std::vector<std::string> stayed = Portrait(State(1, 1));
  EXPECT_THAT(moved[0], HasSubstr("version 12"));
  moved[0] = stayed[0] = "";  // Other elements.
  EXPECT_EQ(moved, stayed);
}

TEST_F(ShardMoveTest, AWorkerThatJoinsOnTheWayTakesPartAtTheTarget) {
  Start("asp", 1);
  for (const Clock clock : {0, 1})
    Send(0, Worker(0), PushOf(clock, clock + 1, 1));
  Move(0, 1);
  Show();
  Deliver(2);
  AddWorker(1, 30);
  Show();
  Replies();
  Send(0, Worker(1, 30), JoinPullOf());
  EXPECT_THAT(Replies(), ElementsAre("rank 1: pull 1 of 0 OK -2"));
  Send(0, Worker(1, 30), PushOf(2, 1, 4));
  Deliver();
  EXPECT_EQ(Value(1), -4) << "the mean over two";
  Send(1, Worker(1, 30), PushOf(2, 1, 4));
  Send(1, Worker(1, 30), PushOf(3, 2, 4));
  Send(1, Worker(1, 30), JoinPullOf());
  EXPECT_THAT(
      Replies(),
      ElementsAre("rank 1: push 0 OK acked 1", "rank 1: push 0 OK acked 1",
                  "rank 1: push 0 OK acked 2", "rank 1: pull 1 of 0 OK -6"));
}

TEST_F(ShardMoveTest, AWorkerThatLeavesOnTheWayHoldsNobodyUpAtTheTarget) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Move(0, 1);
  Show();
  Deliver(2);
  RemoveWorker(1);
  Show();
  EXPECT_EQ(Value(0), -4) << "at the source its clock is complete";
  Deliver();
  EXPECT_EQ(Value(1), -4);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
  Send(1, Worker(0), PushOf(1, 2, 1));
  EXPECT_EQ(Value(1), -5);
}

TEST_F(ShardMoveTest, AWorkerOfWhoseLeavingOnlyTheTargetKnowsIsGoneThere) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Move(0, 1);
  Show();
  RemoveWorker(1);
  NextView();
  ShowTo(1);
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -4);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
  ShowTo(0);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
}

TEST_F(ShardMoveTest, AJoinerOfWhomOnlyTheSourceKnowsIsNotThrownOut) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(2);
  AddWorker(1, 30);
  NextView();
  ShowTo(0);
  Send(0, Worker(1, 30), JoinPullOf());
  Send(0, Worker(1, 30), PushOf(0, 1, 4));
  Deliver();
  Tick(absl::Milliseconds(60));
  Deliver();
  ShowTo(1);
  for (int i = 0; i < 5; ++i) {
    Tick(absl::Seconds(1));
    Deliver();
  }
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -2);
  Replies();
  Send(1, Worker(1, 30), PushOf(0, 1, 4));
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, RecordsThatComeBeforeTheOrderWaitForIt) {
  Start("asp", 1);
  Move(0, 1);
  NextView();
  ShowTo(0);
  Deliver();
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
  ShowTo(1);
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "without a repetition";
}

TEST_F(ShardMoveTest, WhatIsLostIsSentAgain) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Move(0, 1);
  Show();
  Rng rng(1);
  int lost = 0;
  for (int i = 0; i < 200 && !reported_[0]; ++i) {
    if (wire_.empty()) {
      ASSERT_NE(cores_[0]->NextWakeup(), absl::InfiniteFuture());
      Tick(cores_[0]->NextWakeup() - now_);
    } else if (rng.Chance(0.5)) {
      wire_.pop_front();
      ++lost;
    } else {
      Deliver(1);
    }
  }
  EXPECT_GT(lost, 5);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
  EXPECT_EQ(Value(1), -5);
}

TEST_F(ShardMoveTest, ALostConfirmationIsGivenAgain) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  while (!cores_[1]->Owns(ShardId{0})) Deliver(1);
  ASSERT_THAT(wire_, SizeIs(1));
  wire_.clear();
  EXPECT_FALSE(reported_[0]);
  Send(1, Worker(0), PushOf(0, 1, 5));
  Tick(absl::Milliseconds(60));
  Deliver();
  EXPECT_TRUE(reported_[0]);
  EXPECT_EQ(Value(1), -5) << "the new owner goes on";
}

TEST_F(ShardMoveTest, TheSourceReportsHowFarItIs) {
  Start("asp", 1);
  Tick(absl::ZeroDuration());
  EXPECT_THAT(HandOverStates(0), IsEmpty());
  Move(0, 1);
  Show();
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::COPYING));
  EXPECT_FALSE(reported_[0]);
  Tick(absl::Milliseconds(3));
  Deliver();
  EXPECT_TRUE(reported_[0]);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
  const run::ServerStats stats = cores_[0]->Stats();
  EXPECT_EQ(stats.hand_over(0).shard(), 0);
  EXPECT_EQ(stats.hand_over(0).move(), view_.number());
  EXPECT_EQ(stats.hand_over(0).bytes(), kElements * 4);
  EXPECT_EQ(stats.hand_over(0).copy_micros(), 3000);
  EXPECT_EQ(stats.shards(), 1);
  EXPECT_EQ(cores_[1]->Stats().shards(), 2);
  Commit(0);
  Show();
  EXPECT_THAT(HandOverStates(0), IsEmpty()) << "the view knows";
}

TEST_F(ShardMoveTest, AMoveThatIsGivenUpLeavesTheShardWhereItIs) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(2);
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_EQ(cores_[1]->waiting_count(), 1u);
  view_.clear_move();
  Show();  // View 5.
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 0 as of 5"));
  EXPECT_EQ(cores_[0]->moves_count() + cores_[1]->moves_count(), 0u);
  EXPECT_FALSE(reported_[0]);
  Deliver();  // Late records and confirmations.
  EXPECT_EQ(cores_[0]->NextWakeup(), absl::InfiniteFuture());
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  MoveNow(0, 1);
  EXPECT_EQ(Value(1), -5) << "another time";
}

TEST_F(ShardMoveTest, AShardThatWentToADeadServerIsReportedLost) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  while (cores_[0]->Owns(ShardId{0})) Deliver(1);
  view_.clear_move();
  view_.set_owner_server(2, 0);
  view_.mutable_server()->RemoveLast();
  NextView();
  ShowTo(0);
  EXPECT_TRUE(reported_[0]);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::LOST));
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED"));
  // The coordinator has not heard of it yet, and splits the shard.
  Split(0, 1);
  NextView();
  ShowTo(0);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::LOST));
}

// The source may miss the views between two moves.
TEST_F(ShardMoveTest, AShardThatHasMovedOnIsNotLost) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver();
  wire::ServerMember& server = *view_.add_server();
  server.set_index(2);
  server.add_thread();
  view_.clear_move();
  view_.set_owner_server(0, 2);
  Show();
  EXPECT_THAT(HandOverStates(0), IsEmpty());
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 2 as of 5"));
}

TEST_F(ShardMoveTest, RequestsWaitAtTheSourceWhileTheTargetIsFarBehind) {
  feed_.backlog_bytes_max = 2 * kElements * sizeof(float);
  Start("asp", 1);
  Move(0, 1);
  Show();
  for (Clock clock = 0; clock < 5; ++clock)
    Send(0, Worker(0), PushOf(clock, clock + 1, 1));
  Send(0, Worker(0), PullOf(5, 7));
  EXPECT_THAT(Replies(), SizeIs(3)) << "more than two are too many";
  EXPECT_EQ(cores_[0]->waiting_count(), 3u);
  Send(0, Worker(0), PushOf(0, 1, 1, /*shard=*/1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 1 OK acked 1"))
      << "other shards do not wait";
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 0 MOVED to 1 as of 4"));
  EXPECT_EQ(Value(1), -3);
}

TEST_F(ShardMoveTest, WhoWaitsAtTheSourceIsServedThereIfTheMoveIsGivenUp) {
  feed_.backlog_bytes_max = 1;
  Start("asp", 1);
  Move(0, 1);
  Show();
  Send(0, Worker(0), PushOf(0, 1, 1));
  Send(0, Worker(0), PushOf(1, 2, 1));
  Replies();
  view_.clear_move();
  Show();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
}

TEST_F(ShardMoveTest, AHandOverThatMakesNoSenseChangesNothing) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  ASSERT_FALSE(wire_.empty());
  const Message good = wire_.front().message;
  const struct {
    const char* what;
    std::function<void(Message&)> spoil;
    uint64_t malformed;
  } cases[] = {
      {"no such shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(3); }, 0},
      {"a negative shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(-1); }, 0},
      {"its own shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(2); }, 0},
      {"another move",
       [](Message& m) {
         m.header.mutable_hand_over()->mutable_feed()->set_move(99);
       },
       0},
      {"a go at once",
       [](Message& m) {
         m.header.mutable_hand_over()->mutable_record(0)->mutable_go();
       },
       1},
      {"a snapshot of a negative clock",
       [](Message& m) {
         m.header.mutable_hand_over()
             ->mutable_record(0)
             ->mutable_snapshot()
             ->set_complete_clock(-1);
       },
       1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const uint64_t malformed = cores_[1]->Stats().malformed();
    const size_t on_the_wire = wire_.size();
    Message broken = good;
    c.spoil(broken);
    Send(1, Thread(0), broken);
    ASSERT_THAT(wire_, SizeIs(on_the_wire + 1));
    EXPECT_TRUE(wire_.back().message.header.hand_over_reply().declined());
    wire_.pop_back();
    EXPECT_EQ(cores_[1]->Stats().malformed(), malformed + c.malformed);
  }
  Message reply;
  reply.header.mutable_hand_over_reply()->set_shard(1);
  reply.header.mutable_hand_over_reply()->set_owned(true);
  Send(0, Thread(1), reply);
  EXPECT_TRUE(cores_[0]->Owns(ShardId{1}));
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "as if nothing had been";
}

TEST_F(ShardMoveTest, AWorkerHandsNothingOver) {
  Start("asp", 1);
  Message message;
  message.header.mutable_hand_over();
  Send(0, Worker(0), message);
  message.header.mutable_hand_over_reply();
  Send(0, Worker(0), message);
  EXPECT_THAT(Replies(),
              ElementsAre(HasSubstr("takes pushes and pulls, not body"),
                          HasSubstr("takes pushes and pulls, not body")));
}

TEST_F(ShardMoveTest, NoShardArrivesOnceTheJobHasEnded) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Send(0, Worker(0), PushOf(0, 1, 5));
  // All that server 1 ever saw of the job is its end.
  cores_[1].emplace(ShardCore::Options{.self = {1, 0}},
                    config::LearningRateSchedule());
  view_.set_state(wire::FAILED);
  NextView();
  ShowTo(1);
  Deliver();
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
}

// ---- Installations ----------------------------------------------------------

// BSP, by all-reduce from 1 on and from 3 on asynchronous; one worker, which
// has done clock 0.
class ShardInstallMoveTest : public ShardMoveTest {
 protected:
  void StartAllReduce(bool adam = false) {
    Start("bsp", 1, adam);
    for (const auto& [mode, from] : {std::pair("allreduce", 1), {"asp", 3}}) {
      wire::Phase& phase = *view_.add_phase();
      *phase.mutable_mode() = ModeOf(mode);
      phase.set_from(from);
    }
    Show();
    Send(0, Worker(0), PushOf(0, 1, 5));
    Send(1, Worker(0), PushOf(0, 1, 5, 2));
    Replies();
  }
  Message Install(float value, int32_t shard = 0) {
    return InstallOf(view_.number(), 3, 2, 9, Floats(value, kElements), {},
                     shard);
  }
};

TEST_F(ShardInstallMoveTest, AnInstallationOnTheWayGoesAlong) {
  StartAllReduce();
  AddWorker(1, 21);  // Takes part from the installation on.
  Show();
  Move(0, 1);
  Show();
  Send(0, Worker(0), Install(42));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
  const std::vector<std::string> before = Portrait(State(0, 0));
  Deliver();
  EXPECT_EQ(Portrait(State(1, 0)), before);
  EXPECT_EQ(Value(1), 42);
  Send(1, Worker(0), Install(42));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2")) << "again";
}

TEST_F(ShardInstallMoveTest, AnInstallationWaitsForAShardThatArrives) {
  StartAllReduce(/*adam=*/true);
  Move(0, 1);
  Show();
  Deliver(1);
  // Of a shard that is here, and of the one that comes.
  Message both = InstallOf(view_.number(), 3, 2, 9, Floats(1, kElements),
                           {Floats(2, kElements), Floats(3, kElements)}, 2);
  const Message second =
      InstallOf(view_.number(), 3, 2, 9, Floats(4, kElements),
                {Floats(5, kElements), Floats(6, kElements)}, 0);
  both.header.mutable_push_request()->MergeFrom(second.header.push_request());
  both.payloads.insert(both.payloads.end(), second.payloads.begin(),
                       second.payloads.end());
  Send(1, Worker(0), both);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 2 OK acked 2"));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
  EXPECT_EQ(Value(1, 2), 1);
  EXPECT_EQ(Value(1, 0), 4);
  EXPECT_EQ(First(State(1, 0).shard().slots().at(1)), 6);
}

TEST_F(ShardInstallMoveTest, AnInstalledShardMovesAsItIs) {
  StartAllReduce();
  AddWorker(1, 21);  // Takes part from the installation on.
  Show();
  Send(0, Worker(0), Install(42));
  const std::vector<std::string> before = Portrait(State(0, 0));
  MoveNow(0, 1);
  EXPECT_EQ(Portrait(State(1, 0)), before);
  Send(1, Worker(1, 21),
       InstallOf(view_.number(), 3, 1, 9, Floats(42, kElements)));
  Send(1, Worker(1, 21), PushOf(3, 2, 4));
  EXPECT_EQ(Value(1), 40);
}

TEST_F(ShardInstallMoveTest, AStatePullFollowsAShardThatMoves) {
  StartAllReduce(/*adam=*/true);
  AddWorker(1, 21);
  Show();
  Send(0, Worker(1, 21), JoinPullOf(3));  // At clock 1.
  Replies();
  Message pull = PullOf(2, 7);  // Which rank 1 keeps waiting.
  TheOnlyPull(pull).mutable_state()->set_clock(2);
  Send(0, Worker(0), pull);
  Move(0, 1);
  Show();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED to 1 as of 6"));
}

// ---- Random histories -------------------------------------------------------

// Two workers push, and push again until they are answered, while shard 0 goes
// back and forth over a link that loses and delays. A twin that never moves
// gets the same pushes in the order in which they were accepted.
TEST_F(ShardMoveTest, AShardThatMovesAllTheTimeHasTheBitsOfOneThatStays) {
  int moves = 0;
  int followed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const bool bsp = rng.Chance(0.5);
    feed_.part_bytes = static_cast<size_t>(rng.Between(4, 32));
    feed_.window_bytes = static_cast<size_t>(rng.Between(4, 64));
    view_ = wire::View();
    wire_.clear();
    Start(bsp ? "bsp" : "asp", 2, /*adam=*/true);
    Tick(absl::ZeroDuration());
    int known_owner[2] = {0, 0};  // By worker.
    uint64_t next_seq[2] = {1, 1};
    Message unanswered[2];
    // In the order in which the shard took the pushes over.
    const auto read_replies = [&] {
      for (const Outgoing& out : std::exchange(replies_, {})) {
        const wire::PushReply& reply = out.message.header.push_reply();
        const int rank = out.to.index;
        ASSERT_EQ(reply.answer_size(), 1);
        const wire::Refusal& refusal = reply.answer(0).refusal();
        ASSERT_FALSE(refusal.has_rejected()) << refusal.rejected();
        if (refusal.moved().has_to()) {
          followed += known_owner[rank] != refusal.moved().to().server();
          known_owner[rank] = refusal.moved().to().server();
        }
        if (OutcomeOf(reply.answer(0)) != Outcome::kOk ||
            reply.answer(0).accepted_seq() != next_seq[rank])
          continue;
        Message twin = std::exchange(unanswered[rank], Message());
        TheOnly(twin).set_shard(1);
        Send(0, Worker(rank), twin);
        ASSERT_THAT(Replies(), ElementsAre(HasSubstr("push 1 OK")));
        ++next_seq[rank];
      }
    };
    const auto commit_if_done = [&] {
      const auto states = HandOverStates(view_.owner_server(0));
      if (states.empty() || states[0] != run::HandOverState::DONE) return;
      Commit(0);
      Show();
    };
    const double loss = 0.3 * rng.Uniform();
    for (int step = 0; step < 400; ++step) {
      // The shard.
      if (view_.move_size() == 0 && rng.Chance(0.2)) {
        Move(0, 1 - view_.owner_server(0));
        Show();
        ++moves;
      } else if (view_.move_size() == 1) {
        commit_if_done();
      }
      if (!wire_.empty() && rng.Chance(loss)) wire_.pop_front();
      Deliver(static_cast<int>(rng.Below(3)));
      if (rng.Chance(0.3)) Tick(absl::Milliseconds(30));
      ASSERT_FALSE(cores_[0]->Owns(ShardId{0}) && cores_[1]->Owns(ShardId{0}))
          << "two owners";
      // A worker.
      const int rank = static_cast<int>(rng.Below(2));
      if (unanswered[rank].payloads.empty()) {
        const Clock clock = static_cast<Clock>(next_seq[rank]) - 1;
        unanswered[rank] =
            PushOf(clock, next_seq[rank], static_cast<float>(rng.Normal()));
      }
      read_replies();
      if (unanswered[rank].payloads.empty()) continue;
      Send(known_owner[rank], Worker(rank), unanswered[rank]);
      read_replies();
    }
    for (int i = 0; i < 200 && view_.move_size() > 0; ++i) {
      Tick(absl::Milliseconds(500));
      Deliver();
      commit_if_done();
    }
    ASSERT_EQ(view_.move_size(), 0);
    read_replies();
    std::vector<std::string> moved = Portrait(State(view_.owner_server(0), 0));
    std::vector<std::string> stayed = Portrait(State(0, 1));
    for (std::string* const line : {&moved[0], &stayed[0]})
      *line = line->substr(line->find(" version"));
    ASSERT_EQ(moved, stayed);
  }
  EXPECT_GT(moves, 300);
  EXPECT_GT(followed, 200);
}

}  // namespace slackline::shard_move_test
