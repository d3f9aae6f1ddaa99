// Goal: in BACKUP a clock is the mean of its first gradients; in DSSP measured
// speeds carry a worker beyond the smallest bound and not beyond the largest.
// Method: one core of a small job; SGD with learning rate 1 from zeros, so that
// values show what was applied; time by hand.
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline::shard_modes_test {

using ::testing::IsEmpty;

class ShardBackupTest : public ShardPhasesTest {
 protected:
  void StartBackup(int workers, int backups) {
    Start(absl::StrCat("backup:", backups), workers);
    Publish();
  }
  std::optional<Clock> ShardClockIn(const ShardCore::Effects& effects) {
    for (const Outgoing& out : effects.sends) {
      const wire::PullReply& reply = out.message.header.pull_reply();
      if (reply.answer_size() == 1 && reply.answer(0).has_values())
        return reply.answer(0).values().shard_clock();
    }
    return std::nullopt;
  }
};

TEST_F(ShardBackupTest,
       AClockIsTheMeanOfTheFirstGradientsAndALateOneIsDropped) {
  StartBackup(3, 1);
  EXPECT_EQ(PushCode(Worker(2), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_THAT(Send(Worker(2), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(0), PushOf(0, 1, 6)), 7), -4) << "full rate";
  const wire::PushReply late = Push(Worker(1), PushOf(0, 1, 60));
  EXPECT_EQ(OutcomeOf(late.answer(0)), Outcome::kOk);
  EXPECT_EQ(late.answer(0).accepted_seq(), 1u);
  EXPECT_EQ(Now(), -4);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(core_->Stats().updates(), 1u);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 60)), Outcome::kOk)
      << "sent again";
  EXPECT_EQ(core_->Stats().dropped(), 1u);
}

TEST_F(ShardBackupTest, TheFirstGradientsAreSummedInRankOrder) {
  const float big = 1 << 24;
  for (const auto& order :
       std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}}) {
    view_ = wire::View();
    StartBackup(4, 1);
    const float gradients[] = {big, 1, -big};
    for (const int rank : order) {
      PushCode(Worker(rank), PushOf(0, 1, gradients[rank]));
    }
    EXPECT_EQ(Now(), 0);
  }
}

TEST_F(ShardBackupTest, AnAnswerSaysHowFarTheShardIs) {
  StartBackup(3, 1);
  for (Clock clock = 0; clock < 3; ++clock) {
    for (const int rank : {0, 1})
      PushCode(Worker(rank), PushOf(clock, clock + 1, 2));
  }
  PushCode(Worker(2), PushOf(0, 1, 9));
  EXPECT_EQ(ShardClockIn(Send(Worker(2), PullAt(1, 7))), 3);
  EXPECT_EQ(PushCode(Worker(2), AdvanceOf(3, 2)), Outcome::kOk);
  PushCode(Worker(2), PushOf(3, 3, 4));
  PushCode(Worker(0), PushOf(3, 4, 8));
  EXPECT_EQ(Now(), -6 - 6) << "who has caught up counts";
}

TEST_F(ShardBackupTest, WhoSkipsAClockIsWaitedForNoMore) {
  StartBackup(3, 1);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), AdvanceOf(1, 1));
  EXPECT_EQ(Now(), 0) << "rank 2 may still push";
  PushCode(Worker(2), AdvanceOf(1, 1));
  EXPECT_EQ(Now(), -2);
}

TEST_F(ShardBackupTest, OfTheLiveWorkersAllButTheBackupsAreNeeded) {
  StartBackup(4, 1);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), 0);
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(Now(), -3) << "2 of 3, and the dead worker's counts";
  for (const int rank : {2, 3}) {
    RemoveWorker(rank);
    Publish();
  }
  EXPECT_EQ(Now(), -3);
  PushCode(Worker(0), PushOf(1, 2, 5));
  EXPECT_EQ(Now(), -8) << "at least one";
}

TEST_F(ShardBackupTest, AJoinerStartsAtTheShardsClockNotAtTheSlowest) {
  StartBackup(3, 1);
  for (const int rank : {0, 1}) PushCode(Worker(rank), PushOf(0, 1, 2));
  AddWorker(3, 13, /*founder=*/false);
  Publish();
  EXPECT_EQ(ShardClockIn(Send(Worker(3), PullOf(0, 7, 0, /*join=*/true))), 1);
}

TEST_F(ShardBackupTest, TheModeAfterItBeginsWhenItsClocksAreComplete) {
  StartBackup(3, 1);
  AddPhase("asp", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(0, 1, 4)), 7), -3);
  PushCode(Worker(0), PushOf(1, 2, 30));
  EXPECT_EQ(Now(), -13) << "asynchronous, one of three";
  PushCode(Worker(2), PushOf(0, 1, 60));
  EXPECT_EQ(Now(), -13) << "late for the phase before";
}

TEST_F(ShardBackupTest, BspAfterItWaitsForAll) {
  StartBackup(3, 1);
  AddPhase("bsp", 1);
  Publish();
  for (const int rank : {0, 1}) PushCode(Worker(rank), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(2), PushOf(0, 1, 60)), 7), -2);
}

TEST_F(ShardBackupTest, ANonfiniteGradientIsNoneOfTheFirstOnes) {
  StartBackup(3, 1);
  PushCode(Worker(0), PushOf(0, 1, kNan));
  PushCode(Worker(1), PushOf(0, 1, 2));
  EXPECT_EQ(Now(), 0) << "one more is needed";
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(core_->Stats().dropped(), 0u);
}

class ShardDsspTest : public ShardPhasesTest {
 protected:
  // Bounds 1 to 4; the leader pushes every 10 ms, the other one at 0 and 35.
  ShardDsspTest() {
    Start("dssp:1:4", 2);
    for (Clock clock = 0; clock < 3; ++clock) PushAt(0, clock, 10 * clock);
    PushAt(1, 0, 0);
  }
  void PushAt(int rank, Clock clock, int at_ms) {
    ShardCore::Effects effects;
    core_->OnTick(absl::UnixEpoch() + absl::Milliseconds(at_ms), &effects);
    EXPECT_EQ(PushCode(Worker(rank), PushOf(clock, clock + 1, 2)),
              Outcome::kOk);
  }
  bool Answered(Clock clock) {
    return AnswerIn(Send(Worker(0), PullAt(clock, 50 + clock)), 50 + clock)
        .has_value();
  }
};

TEST_F(ShardDsspTest, WithoutMeasurementsTheSmallestBoundHolds) {
  EXPECT_FALSE(Answered(3));
}

TEST_F(ShardDsspTest, MeasuredSpeedsCarryTheLeaderBeyondTheSmallestBound) {
  PushAt(0, 3, 30);
  PushAt(1, 1, 35);
  PushAt(0, 4, 40);
  // The next push of the slow one is due at 70, after 3 more steps.
  for (Clock clock = 5; clock < 7; ++clock) {
    EXPECT_TRUE(Answered(clock)) << clock;
    PushAt(0, clock, 10 * static_cast<int>(clock));
  }
  EXPECT_FALSE(Answered(7)) << "granted, but beyond the largest bound";
  ShardCore::Effects effects;
  core_->OnTick(absl::UnixEpoch() + absl::Milliseconds(75), &effects);
  EXPECT_TRUE(AnswerIn(Send(Worker(1), PushOf(2, 3, 2)), 57).has_value());
  EXPECT_EQ(core_->Stats().lead().max(), 4);
}

TEST_F(ShardDsspTest, APullWithinTheSmallestBoundGoesAtOnce) {
  EXPECT_TRUE(Answered(2));
}

}  // namespace slackline::shard_modes_test
