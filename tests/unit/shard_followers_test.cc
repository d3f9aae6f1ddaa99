// Goal: nobody is told anything of a shard that its followers in sync do not
// have, so that one of them can take the owner's place at any moment and
// nothing that anybody was told is lost; a copy has the bits of the shard.
// Method: two cores with a link by hand. SGD with learning rate 1 from zeros,
// so that values show what was applied; random histories over a bad link, with
// an owner that is replaced at a random moment, against what workers were told.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::shard_followers_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class ShardFollowersTest : public ShardMoveTest {
 protected:
  ShardFollowersTest() {
    followed_ = true;
    feed_.part_bytes = feed_.window_bytes = 1 << 20;
  }
  // A server that is dead or cut off has counted what the other one counts
  // again.
  void TearDown() override {}

  // The follower of the shard has the bits of its owner.
  void ExpectEqualCopies(int32_t shard) {
    const ShardMachine* const copy =
        cores_[1 - view_.owner_server(shard)]->CopyOf(ShardId{shard});
    ASSERT_NE(copy, nullptr);
    const ShardMachine& own = State(view_.owner_server(shard), shard);
    EXPECT_EQ(Portrait(*copy), Portrait(own));
    EXPECT_EQ(copy->position(), own.position());
  }
  void LoseAll() { wire_.clear(); }
};

// ---- Answers wait
// -------------------------------------------------------------

TEST_F(ShardFollowersTest, APushIsAcknowledgedWhenTheFollowerHasIt) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_EQ(Value(0), -5);
  EXPECT_THAT(Replies(), IsEmpty());
  EXPECT_EQ(cores_[0]->Stats().answers_held(), 1);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_EQ(cores_[0]->answers_held(), 0u);
  ExpectEqualCopies(0);
}

TEST_F(ShardFollowersTest, APullIsAnsweredWhenTheFollowerHasWhatItSays) {
  Start("asp", 2);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(1), PullOf(0, 7));
  EXPECT_THAT(Replies(), IsEmpty());
  // The answer is what the shard was when it was made.
  Send(0, Worker(0), PushOf(1, 2, 3));
  Deliver();
  EXPECT_THAT(Replies(), UnorderedElementsAre("rank 0: push 0 OK acked 1",
                                              "rank 0: push 0 OK acked 2",
                                              "rank 1: pull 7 of 0 OK -2.5"));
}

TEST_F(ShardFollowersTest, WhatAProbeIsToldTheFollowerHas) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Message probe;
  probe.header.set_view_number(view_.number());
  probe.header.mutable_probe_request()->add_shard(0);
  Send(0, Worker(0), probe);
  EXPECT_THAT(replies_, IsEmpty());
  Deliver();
  ASSERT_THAT(replies_, SizeIs(2));
  EXPECT_EQ(replies_[1].message.header.probe_reply().answer(0).accepted_seq(),
            1u);
}

TEST_F(ShardFollowersTest, AnswersToAWorkerKeepTheirOrder) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5, 0));
  Send(0, Worker(0), PullOf(0, 7, 1));  // Nothing is new of shard 1.
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: pull 7 of 1 OK 0"));
}

TEST_F(ShardFollowersTest, WhatIsLostIsSentAgain) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  LoseAll();
  Tick(absl::Milliseconds(49));
  EXPECT_THAT(wire_, IsEmpty());
  Tick(absl::Milliseconds(1));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  Tick(absl::Seconds(10));
  EXPECT_THAT(wire_, IsEmpty()) << "all is confirmed";
}

TEST_F(ShardFollowersTest, WithoutFollowersNothingWaits) {
  followed_ = false;
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_THAT(wire_, IsEmpty());
}

TEST_F(ShardFollowersTest, AFollowerThatTheViewDropsIsWaitedForNoMore) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), IsEmpty());
  Unfollow(0);
  Show();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_FALSE(cores_[1]->Follows(ShardId{0}));
  EXPECT_TRUE(cores_[1]->Follows(ShardId{1}));
}

// ---- Sums
// ---------------------------------------------------------------------

TEST_F(ShardFollowersTest, OfAClockTheFollowerIsSentTheSum) {
  Start("bsp", 3, /*adam=*/true);
  Deliver();
  for (const int rank : {2, 0}) {
    Send(0, Worker(rank), PushOf(0, 1, static_cast<float>(rank) + 0.1f));
    EXPECT_THAT(wire_, IsEmpty());
  }
  Send(0, Worker(1), PushOf(0, 1, 0.7f));
  ASSERT_THAT(wire_, SizeIs(1));
  const Message& sent = wire_.front().message;
  EXPECT_THAT(sent.payloads, SizeIs(1));
  ASSERT_EQ(sent.header.hand_over().record_size(), 1);
  EXPECT_EQ(sent.header.hand_over().record(0).record().sum().who_size(), 3);
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), UnorderedElementsAre("rank 0: push 0 OK acked 1",
                                              "rank 1: push 0 OK acked 1",
                                              "rank 2: push 0 OK acked 1"));
  ExpectEqualCopies(0);
  EXPECT_EQ(cores_[1]->CopyOf(ShardId{0})->position().index, 3u)
      << "as many records as gradients";
}

TEST_F(ShardFollowersTest, IfTheRestOfAClockDoesNotComeEachGradientIsSent) {
  Start("bsp", 3);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 1));
  Tick(absl::Milliseconds(15));
  Send(0, Worker(1), PushOf(0, 1, 2));
  Tick(absl::Milliseconds(19));
  EXPECT_THAT(wire_, IsEmpty()) << "one came less than 20 ms ago";
  Tick(absl::Milliseconds(1));
  EXPECT_THAT(wire_, SizeIs(1));
  Deliver();
  EXPECT_THAT(Replies(), UnorderedElementsAre("rank 0: push 0 OK acked 1",
                                              "rank 1: push 0 OK acked 1"));
  ExpectEqualCopies(0);
  // The rest is not worth waiting for.
  Send(0, Worker(2), PushOf(0, 1, 3));
  EXPECT_THAT(wire_, SizeIs(1));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 2: push 0 OK acked 1"));
  ExpectEqualCopies(0);
  EXPECT_EQ(Value(0), -2);
}

TEST_F(ShardFollowersTest, WhatWasGatheredDiesWithItsOwnerAndComesAgain) {
  Start("bsp", 2);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Promote(0);
  NextView();
  ShowTo(1);
  EXPECT_THAT(Replies(), IsEmpty());
  EXPECT_THAT(State(1, 0).held(), IsEmpty());
  Send(1, Worker(0), PushOf(0, 1, 5));
  Send(1, Worker(1), PushOf(0, 1, 3));
  EXPECT_EQ(Value(1), -4);
  EXPECT_THAT(Replies(), UnorderedElementsAre("rank 0: push 0 OK acked 1",
                                              "rank 1: push 0 OK acked 1"));
}

TEST_F(ShardFollowersTest, WithOneWorkerThereIsNothingToSum) {
  Start("bsp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 1));
  ASSERT_THAT(wire_, SizeIs(1));
  EXPECT_TRUE(wire_.front()
                  .message.header.hand_over()
                  .record(0)
                  .record()
                  .has_gradient());
}

TEST_F(ShardFollowersTest, ACopyThatBeginsWithinAClockGetsTheRestOfIt) {
  followed_ = false;
  Start("bsp", 3);
  Send(0, Worker(0), PushOf(0, 1, 1));
  Follow(0);
  Show();
  Send(0, Worker(1), PushOf(0, 1, 2));
  Deliver();
  ExpectEqualCopies(0);
  Send(0, Worker(2), PushOf(0, 1, 6));
  Deliver();
  ExpectEqualCopies(0);
  EXPECT_EQ(Value(0), -3);
}

TEST_F(ShardFollowersTest, AShardGoesWithWhatWasGathered) {
  Start("bsp", 2);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 4));
  Move(0, 1);
  Show();
  Tick(absl::Milliseconds(20));
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  Commit(0);
  Show();
  Deliver();
  Send(1, Worker(1), PushOf(0, 1, 2));
  Deliver();
  EXPECT_EQ(Value(1), -3);
}

// ---- Copies
// -------------------------------------------------------------------

TEST_F(ShardFollowersTest, CopiesBeginWithoutASnapshot) {
  Start("bsp", 2);
  for (const OnTheWire& sent : wire_) {
    EXPECT_THAT(sent.message.payloads, IsEmpty());
    EXPECT_TRUE(sent.message.header.hand_over().record(0).has_resume());
  }
  Deliver();
  for (int32_t shard = 0; shard < 3; ++shard) ExpectEqualCopies(shard);
  EXPECT_EQ(cores_[0]->Stats().copies(), 1);
  EXPECT_EQ(cores_[1]->Stats().copies(), 2);
  EXPECT_EQ(cores_[0]->Stats().follower_size(), 0) << "the view knows";
}

TEST_F(ShardFollowersTest, ACopyThatComesLaterIsInSyncWhenItHasTheShard) {
  followed_ = false;
  feed_.part_bytes = feed_.window_bytes = 8;  // Half a tensor.
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Follow(0);
  Show();
  EXPECT_EQ(cores_[0]->Stats().follower_size(), 1);
  EXPECT_FALSE(cores_[0]->Stats().follower(0).in_sync());
  // Nobody waits for a copy that is not there yet.
  Send(0, Worker(0), PushOf(1, 2, 3));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 0 OK acked 2"));
  reported_[0] = false;
  Deliver();
  ExpectEqualCopies(0);
  EXPECT_TRUE(reported_[0]) << "the coordinator waits for it";
  ASSERT_EQ(cores_[0]->Stats().follower_size(), 1);
  EXPECT_TRUE(cores_[0]->Stats().follower(0).in_sync());
  EXPECT_EQ(cores_[0]->Stats().follower(0).since(), view_.number());
  // From before that is said.
  Send(0, Worker(0), PushOf(2, 3, 1));
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 3"));
  SetInSync(0);
  Show();
  EXPECT_EQ(cores_[0]->Stats().follower_size(), 0);
}

// The owner begins to wait for a copy that does not catch up while it sends the
// first of several gradients that it had gathered; workers know of all of them.
TEST_F(ShardFollowersTest, ACopyInSyncHasWhatWasGatheredWhenItWasFarBehind) {
  followed_ = false;
  feed_.part_bytes = feed_.window_bytes = 8;
  feed_.backlog_bytes_max = 1;
  Start("bsp", 3);
  for (const int rank : {0, 1, 2}) Send(0, Worker(rank), PushOf(0, 1, 1));
  Follow(0);
  Show();
  Replies();
  for (const int rank : {0, 1}) Send(0, Worker(rank), PushOf(1, 2, 1));
  EXPECT_THAT(Replies(), UnorderedElementsAre("rank 0: push 0 OK acked 2",
                                              "rank 1: push 0 OK acked 2"));
  Tick(absl::Milliseconds(20));
  const auto is_in_sync = [&] {
    return cores_[0]->Stats().follower(0).in_sync();
  };
  for (int i = 0; i < 100 && !is_in_sync(); ++i) Deliver(1);
  ASSERT_TRUE(is_in_sync());
  EXPECT_EQ(cores_[1]->CopyOf(ShardId{0})->position().index, 5u);
}

TEST_F(ShardFollowersTest, ThePartOfACopyThatOthersFollowIsNotKept) {
  Start("asp", 1);
  Deliver();
  Split(0, 2);
  const int32_t part = view_.owner_server_size() - 1;
  NextView();
  ShowTo(0);
  Unfollow(part);
  NextView();
  ShowTo(1);
  Deliver();
  EXPECT_TRUE(cores_[1]->Follows(ShardId{0}));
  EXPECT_EQ(cores_[1]->CopyOf(ShardId{part}), nullptr);
}

TEST_F(ShardFollowersTest, HeldGradientsJoinsAndLeavesAreInTheCopy) {
  Start("bsp", 2);
  Deliver();
  Send(0, Worker(1), PushOf(0, 1, 4));
  AddWorker(2, 12);
  Show();
  Send(0, Worker(2), JoinPullOf());
  Deliver();
  ExpectEqualCopies(0);
  RemoveWorker(2);
  Show();
  Deliver();
  ExpectEqualCopies(0);
  ASSERT_THAT(cores_[1]->CopyOf(ShardId{0})->held(), SizeIs(1));
}

TEST_F(ShardFollowersTest, ASplitIsInTheLog) {
  Start("asp", 1, /*adam=*/true);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Show();
  Deliver();
  ExpectEqualCopies(0);
  ExpectEqualCopies(3);
  Send(0, Worker(0), PushOf(1, 2, 5, 3, kElements - 1));
  Replies();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 3 OK acked 2"));
  ExpectEqualCopies(3);
}

TEST_F(ShardFollowersTest, APartWhoseSplitIsLateGetsASnapshot) {
  Start("asp", 1);
  Deliver();
  Split(0, 1);
  Show();
  // The part's feed comes first.
  std::stable_partition(wire_.begin(), wire_.end(), [](const OnTheWire& sent) {
    return sent.message.header.hand_over().shard() == 3;
  });
  Deliver();
  ExpectEqualCopies(0);
  ExpectEqualCopies(3);
}

// ---- Another owner
// --------------------------------------------------------------

TEST_F(ShardFollowersTest, AFollowerTakesOverWithWhatEverybodyWasTold) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Deliver();
  Send(0, Worker(0), PushOf(1, 2, 7));
  LoseAll();  // The owner dies with this one.
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  Promote(0);
  NextView();
  ShowTo(1);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -5);
  // Nobody follows it: nobody is waited for.
  Send(1, Worker(0), PushOf(0, 1, 5));
  Send(1, Worker(0), PushOf(1, 2, 7));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 0 OK acked 2"));
  EXPECT_EQ(Value(1), -12);
  EXPECT_EQ(cores_[1]->Stats().duplicates(), 1u);
}

TEST_F(ShardFollowersTest, AnOwnerThatWasReplacedTellsNobodyAnythingNew) {
  Start("asp", 1);
  Deliver();
  Promote(0);
  NextView();
  ShowTo(1);
  // The owner has not heard of it.
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(0), PullOf(0, 7));
  Deliver();
  Tick(absl::Seconds(1));
  Deliver();
  EXPECT_THAT(Replies(), IsEmpty());
  EXPECT_EQ(Value(1), 0);
  ShowTo(0);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_EQ(cores_[0]->answers_held(), 0u);
  EXPECT_THAT(Replies(), IsEmpty());
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(),
              ElementsAre(absl::StrCat("rank 0: push 0 MOVED to 1 as of ",
                                       view_.number())));
}

TEST_F(ShardFollowersTest, ParkedPullsOfAReplacedOwnerAreToldWhereTheShardIs) {
  Start("bsp", 2);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Tick(absl::Milliseconds(20));
  Deliver();
  Send(0, Worker(0), PullOf(1, 7));
  Replies();
  Promote(0);
  Show();
  EXPECT_THAT(Replies(),
              ElementsAre(absl::StrCat("rank 0: pull 7 of 0 MOVED to 1 as of ",
                                       view_.number())));
  Send(1, Worker(1), PushOf(0, 1, 3));
  EXPECT_EQ(Value(1), -4) << "the mean, with what was held";
}

TEST_F(ShardFollowersTest, WhoHasLeftIsNoParticipantOfTheNewOwner) {
  Start("bsp", 2);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Tick(absl::Milliseconds(20));
  Deliver();
  RemoveWorker(1);
  Promote(0);
  NextView();
  ShowTo(1);
  EXPECT_EQ(Value(1), -5) << "the clock is complete without rank 1";
}

TEST_F(ShardFollowersTest, TheNewOwnerDoesTheSplitsOfTheView) {
  Start("asp", 1, /*adam=*/true);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Deliver();
  Split(0, 2);
  NextView();
  ShowTo(0);
  LoseAll();  // The owner dies with the record of it.
  Split(0, 1);
  for (const int32_t shard : {0, 3, 4}) Promote(shard);
  NextView();
  ShowTo(1);
  for (const int32_t shard : {0, 3, 4})
    ASSERT_TRUE(cores_[1]->Owns(ShardId{shard})) << shard;
  EXPECT_EQ(State(1, 0).shard().range().region.end(), 1);
  EXPECT_EQ(State(1, 4).shard().range().region.begin(), 1);
  EXPECT_EQ(State(1, 4).shard().range().region.end(), 2);
  EXPECT_EQ(State(1, 3).shard().range().region.end(), kElements);
}

// It used to abort the process.
TEST_F(ShardFollowersTest, APartOfThatShardMayJustLeaveTheNewOwner) {
  Start("asp", 1);
  Deliver();
  Split(0, 2);
  Show();
  Deliver();
  MoveNow(3, 1);
  Split(3, 3);
  Show();
  Deliver();
  // It does not go before its follower has this.
  Send(1, Worker(0), PushOf(0, 1, 5, /*shard=*/3, /*elements=*/1));
  Move(3, 0);
  NextView();
  ShowTo(1);
  Promote(0);
  NextView();
  ShowTo(1);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  ASSERT_TRUE(cores_[1]->Owns(ShardId{3}));
  EXPECT_EQ(State(1, 0).shard().range().region.end(), 2);
  EXPECT_EQ(State(1, 3).shard().range().region.end(), 3);
}

TEST_F(ShardFollowersTest, OneThatFollowsAgainGetsASnapshotOnlyIfItHasToo) {
  Start("asp", 1);
  Deliver();
  Promote(0);
  Show();
  Follow(0);  // The old owner, which has dropped it.
  Show();
  Deliver();
  ExpectEqualCopies(0);
  EXPECT_TRUE(cores_[1]->Stats().follower(0).in_sync());
}

// ---- Moves
// ----------------------------------------------------------------------

TEST_F(ShardFollowersTest, AMoveToAFollowerCopiesNothing) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Deliver();
  Move(0, 1);
  Show();
  size_t bytes = 0;
  for (const OnTheWire& sent : wire_) {
    for (const Payload& payload : sent.message.payloads)
      bytes += payload.size();
  }
  Deliver();
  EXPECT_EQ(bytes, 0u);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
  EXPECT_EQ(cores_[0]->Stats().hand_over(0).move(), view_.number());
  // The source follows, and is waited for from the first answer on.
  Replies();
  Send(1, Worker(0), PushOf(1, 2, 7));
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
  Commit(0);
  Show();
  Deliver();
  ExpectEqualCopies(0);
  Send(1, Worker(0), PushOf(2, 3, 1));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 3"));
  ExpectEqualCopies(0);
}

TEST_F(ShardFollowersTest, TheSourceTakesTheShardBackIfTheTargetDies) {
  Start("asp", 1);
  Deliver();
  Move(0, 1);
  Show();
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  Send(1, Worker(0), PushOf(0, 1, 7));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  view_.clear_move();
  Unfollow(0);
  NextView();
  ShowTo(0);
  ASSERT_TRUE(cores_[0]->Owns(ShardId{0}));
  EXPECT_EQ(Value(0), -7);
  EXPECT_THAT(HandOverStates(0), IsEmpty());
}

TEST_F(ShardFollowersTest, AGoThatIsLostIsSentAgain) {
  Start("asp", 1);
  Deliver();
  Move(0, 1);
  Show();
  LoseAll();
  Tick(absl::Milliseconds(60));
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  // So is its confirmation.
  LoseAll();
  Tick(absl::Milliseconds(60));
  Deliver();
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
}

TEST_F(ShardFollowersTest, AShardGoesOnlyWhenItsFollowerHasAll) {
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  LoseAll();
  Move(0, 1);
  Show();
  Deliver();
  EXPECT_TRUE(cores_[0]->Owns(ShardId{0}));
  Tick(absl::Milliseconds(60));
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -5);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

// ---- Messages that make no sense
// --------------------------------------------------

TEST_F(ShardFollowersTest, AFeedThatNobodyOrderedIsIgnored) {
  followed_ = false;
  Start("asp", 1);
  Message message;
  message.header.set_view_number(view_.number());
  wire::HandOver& feed = *message.header.mutable_hand_over();
  feed.mutable_feed()->set_follower(99);
  feed.set_position(1);
  feed.add_record()->mutable_resume();
  for (const int32_t shard : {0, 2, -1, 77}) {
    feed.set_shard(shard);
    Send(0, Thread(1), message);
    ASSERT_FALSE(wire_.empty());
    EXPECT_TRUE(wire_.back().message.header.hand_over_reply().declined());
    wire_.pop_back();
  }
  EXPECT_THAT(wire_, IsEmpty());
  EXPECT_EQ(cores_[0]->copies_count(), 0u);
}

TEST_F(ShardFollowersTest, ASnapshotOfMoreThanTheTableIsRefused) {
  followed_ = false;
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Follow(0);
  Show();
  ASSERT_THAT(wire_, testing::Not(IsEmpty()));
  wire_.front()
      .message.header.mutable_hand_over()
      ->mutable_record(0)
      ->mutable_snapshot()
      ->set_end(int64_t{1} << 40);
  Deliver();
  EXPECT_EQ(cores_[1]->Stats().malformed(), 1u);
  EXPECT_EQ(cores_[1]->CopyOf(ShardId{0}), nullptr);
  Tick(absl::Milliseconds(60));
  Deliver();
  ExpectEqualCopies(0);
}

// ---- Random histories
// ---------------------------------------------------------------

// A worker's pushes over a link that loses, repeats and reorders what threads
// tell each other, and an owner that is replaced again and again, sometimes
// long before it hears of it, or moves: what was acknowledged is in the shard.
TEST_F(ShardFollowersTest, NothingThatWasToldIsLost) {
  int64_t replaced = 0;
  int64_t repeated = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    view_ = {};
    wire_.clear();
    replies_.clear();
    followed_ = true;
    feed_.part_bytes = static_cast<size_t>(rng.Between(4, 32));
    feed_.window_bytes = static_cast<size_t>(rng.Between(4, 64));
    now_ = absl::UnixEpoch();
    Start("asp", 1);
    uint64_t acked = 0;
    uint64_t next = 1;
    float largest = 0;  // That the worker was ever answered.
    const auto listen = [&] {
      for (const Outgoing& out : replies_) {
        for (const wire::PushAnswer& answer :
             out.message.header.push_reply().answer()) {
          if (answer.shard() == 0)
            acked = std::max(acked, answer.accepted_seq());
        }
        if (out.message.header.pull_reply().answer_size() == 1 &&
            out.message.header.pull_reply().answer(0).has_values()) {
          largest = std::max(largest, -First(out.message.payloads[0]));
        }
      }
      replies_.clear();
    };
    const auto push = [&](uint64_t seq, int server) {
      Send(server, Worker(0), PushOf(static_cast<Clock>(seq) - 1, seq, 1));
    };
    for (int step = 0; step < 200; ++step) {
      const int owner = view_.owner_server(0);
      const uint64_t what = rng.Below(10);
      if (what < 3) {
        push(next, owner);
        next += cores_[owner]->Owns(ShardId{0}) &&
                State(owner, 0).participants().begin()->next_seq > next;
      } else if (what == 3) {
        Send(owner, Worker(0), PullOf(0, 1000 + step));
      } else if (what < 8 && !wire_.empty()) {
        const size_t at = rng.Chance(0.2) ? rng.Below(wire_.size()) : 0;
        const OnTheWire message = wire_[at];
        if (!rng.Chance(0.1))
          wire_.erase(wire_.begin() + static_cast<std::ptrdiff_t>(at));
        if (!rng.Chance(0.1))
          Send(message.to, Thread(message.from), message.message);
      } else if (what == 8) {
        Tick(absl::Milliseconds(rng.Between(1, 60)));
      } else if (rng.Chance(0.2)) {
        const auto follower = view_.follower().begin();
        const bool follows =
            follower != view_.follower().end() && follower->shard() == 0;
        const run::ServerStats stats = cores_[owner]->Stats();
        if (!follows) {
          Follow(0);
          Show();
        } else if (!follower->in_sync()) {
          if (stats.follower_size() == 0 || !stats.follower(0).in_sync())
            continue;
          SetInSync(0);
          Show();
        } else {
          Promote(0);
          NextView();
          ShowTo(1 - owner);
          ++replaced;
          if (rng.Chance(0.5)) {  // Who was replaced goes on for a while.
            push(next, owner);
            Tick(absl::Milliseconds(rng.Between(1, 60)));
            Deliver(static_cast<int>(rng.Below(5)));
          }
          ShowTo(owner);
          // The worker sends again what was not acknowledged.
          listen();
          repeated += next - 1 > acked;
          next = acked + 1;
        }
      }
      listen();
    }
    ASSERT_TRUE(cores_[view_.owner_server(0)]->Owns(ShardId{0}));
    const int owner = view_.owner_server(0);
    for (; next <= 250; ++next) push(next, owner);
    for (int i = 0; i < 100; ++i) {
      Tick(absl::Milliseconds(100));
      Deliver();
    }
    listen();
    ASSERT_EQ(acked, 250u);
    ASSERT_EQ(Value(owner), -250) << "each once";
    ASSERT_GE(-Value(owner), largest);
    if (cores_[1 - owner]->CopyOf(ShardId{0}) != nullptr) ExpectEqualCopies(0);
    ASSERT_EQ(cores_[owner]->answers_held(), 0u);
  }
  EXPECT_GT(replaced, 300);
  EXPECT_GT(repeated, 50);
}

}  // namespace slackline::shard_followers_test
