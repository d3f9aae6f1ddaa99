// Goal: who holds others up for the whole stall timeout is named and removed,
// and nobody else, in every mode. Method: what a few workers say of themselves,
// played by hand on virtual time; each says it again every second.
#include "server/coordinator/stall_watch.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::stall_watch_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Progress = run::WorkerProgress;

class StallWatchTest : public ::testing::Test {
 protected:
  StallWatchTest()
      : watch_({.timeout = absl::Seconds(60),
                .finish_timeout = absl::Seconds(600),
                .lease = absl::Seconds(5)}) {
    view_.set_steps_total(100);
    view_.set_state(wire::RUNNING);
    *view_.add_phase()->mutable_mode() = ModeOf("bsp");
    for (int s = 0; s < 2; ++s) {
      wire::ServerMember& server = *view_.add_server();
      server.set_index(s);
      server.add_thread()->add_endpoint(absl::StrCat("tcp://somewhere:", s));
    }
    for (int w = 0; w < 4; ++w) AddWorker(w, 10 + w);
  }
  void AddWorker(int rank, Incarnation incarnation) {
    wire::WorkerMember& worker = *view_.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(incarnation);
    says_.resize(view_.worker_size());
  }
  void SetMode(absl::string_view mode) {
    *view_.mutable_phase(0)->mutable_mode() = ModeOf(mode);
  }
  void SetDone(int rank) { view_.mutable_worker(rank)->set_done(true); }

  // From now on, until it says something else; its time counts from now.
  void Says(int rank, Progress::Activity activity, Clock clock,
            int server = -1) {
    Progress& progress = says_[rank].progress;
    progress.Clear();
    progress.set_activity(activity);
    progress.set_clock(clock);
    if (server >= 0) progress.set_server(server);
    says_[rank].since = now_;
  }
  void Report(int rank) {
    Say& say = says_[rank];
    if (say.progress.activity() == Progress::ACTIVITY_UNSPECIFIED) return;
    say.progress.set_for_ms(absl::ToInt64Milliseconds(now_ - say.since));
    say.trained |= HasTrained(say.progress, view_);
    watch_.OnReport(view_.worker(rank).incarnation(), say.progress, say.trained,
                    now_);
  }
  // Passes time second by second, until somebody is to be removed, or it is
  // clear that the job cannot go on, or `time` is over. Returns the ranks.
  std::vector<int> Pass(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Seconds(1);
      watch_.OnTime(now_);
      for (int i = 0; i < view_.worker_size(); ++i) Report(i);
      findings_ = watch_.Look(view_, now_);
      for (const std::string& sentence : findings_.news)
        news_.push_back(sentence);
      if (findings_.end.has_value()) return {};
      std::vector<int> removed;
      for (const StallWatch::Culprit& culprit : findings_.remove)
        removed.push_back(culprit.rank);
      if (!removed.empty()) return removed;
    }
    return {};
  }
  void Remove(int rank) {
    for (int i = 0; i < view_.worker_size(); ++i) {
      if (view_.worker(i).rank() != rank) continue;
      watch_.OnGone(view_.worker(i).incarnation());
      view_.mutable_worker()->DeleteSubrange(i, 1);
      says_.erase(says_.begin() + i);
      return;
    }
  }

  struct Say {
    Progress progress;
    bool trained = false;
    absl::Time since;
  };
  StallWatch watch_;
  wire::View view_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Say> says_;  // By place in the view.
  StallWatch::Findings findings_;
  std::vector<std::string> news_;
};

TEST_F(StallWatchTest, WhoStandsStillWhileAllWaitIsRemovedOnceItsTimeIsUp) {
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  Says(1, Progress::WAITING_FOR_WORKERS, 18);
  Says(3, Progress::WAITING_FOR_WORKERS, 18);
  Says(2, Progress::WORKING, 17);
  says_[2].progress.set_what("computing step 17");
  EXPECT_THAT(Pass(absl::Seconds(59)), IsEmpty());
  EXPECT_THAT(findings_.held_up,
              ElementsAre("worker 2 holds up workers 0, 1, 3: it is computing "
                          "step 17, at clock 17, without progress for 58 s; it "
                          "is removed after 60 s"));
  EXPECT_THAT(news_, ElementsAre(HasSubstr("for 5 s"))) << "said once";
  EXPECT_THAT(Pass(absl::Seconds(3)), ElementsAre(2));
  EXPECT_EQ(findings_.remove[0].incarnation, 12);
  EXPECT_EQ(findings_.remove[0].why_removed,
            "was removed, and may join again, because it held up workers 0, 1, "
            "3: without progress for 60 s, it is computing step 17");
}

TEST_F(StallWatchTest, SaysWhereTheProgramIsWhileItStandsThere) {
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  Says(1, Progress::WAITING_FOR_WORKERS, 18);
  Says(3, Progress::WAITING_FOR_WORKERS, 18);
  Says(2, Progress::WORKING, 17);
  // Of nobody who is said to hold others up.
  watch_.OnPlace(12, "early.py line 1, in f");
  Pass(absl::Seconds(6));
  EXPECT_THAT(news_, ElementsAre(Not(HasSubstr("line"))));
  watch_.OnPlace(12, "train.py line 41, in load");
  Pass(absl::Seconds(3));
  EXPECT_THAT(findings_.held_up,
              ElementsAre("worker 2 holds up workers 0, 1, 3: it is at its own "
                          "work, at clock 17, without progress for 8 s, in "
                          "train.py line 41, in load; it is removed after 60 "
                          "s"));
  ASSERT_EQ(news_.size(), 2u) << "once more, with the place";
  EXPECT_EQ(news_[1].substr(0, 30), news_[0].substr(0, 30));
  EXPECT_THAT(news_[1], HasSubstr(", in train.py line 41, in load"));
  // It has got on, and stands still elsewhere.
  Says(2, Progress::WORKING, 18);
  for (const int rank : {0, 1, 3})
    Says(rank, Progress::WAITING_FOR_WORKERS, 19);
  Pass(absl::Seconds(8));
  EXPECT_THAT(findings_.held_up, ElementsAre(Not(HasSubstr("line"))));
  watch_.OnPlace(12, std::string(10000, 'x'));
  Pass(absl::Seconds(2));
  EXPECT_LT(findings_.held_up.at(0).size(), 600u);
  watch_.OnPlace(12, "train.py line 7, in f");
  ASSERT_THAT(Pass(absl::Seconds(60)), ElementsAre(2));
  EXPECT_THAT(findings_.remove[0].why_removed,
              HasSubstr("it is at its own work, in train.py line 7, in f"));
}

TEST_F(StallWatchTest, WithGivenDelaysOneWhoIsBehindMayWaitForOneAhead) {
  view_.mutable_phase(0)->mutable_mode()->mutable_delays()->set_given(
      "uniform:3");
  Says(0, Progress::WAITING_FOR_WORKERS, 7);
  Says(2, Progress::WORKING, 9);
  EXPECT_THAT(Pass(absl::Seconds(62)), ElementsAre(2));
}

TEST_F(StallWatchTest, WhoGetsOnIsNotRemovedHoweverLongOthersWait) {
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  for (Clock clock = 10; clock < 17; ++clock) {
    Says(2, Progress::WORKING, clock);
    EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  }
}

TEST_F(StallWatchTest, WhoHasJustBegunToWaitRemovesNobody) {
  Says(2, Progress::WORKING, 17);  // A very long step.
  Pass(absl::Seconds(100));
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  EXPECT_THAT(Pass(absl::Seconds(55)), IsEmpty());
  EXPECT_THAT(Pass(absl::Seconds(10)), ElementsAre(2));
}

TEST_F(StallWatchTest, ForWhomNobodyWaitsIsLeftAlone) {
  SetMode("asp");
  Says(0, Progress::WORKING, 40);
  Says(1, Progress::WORKING, 90);
  EXPECT_THAT(Pass(absl::Seconds(1000)), IsEmpty());
  EXPECT_THAT(findings_.held_up, IsEmpty());
}

TEST_F(StallWatchTest, InSspWhoIsAheadOfTheWaitingIsLeftAlone) {
  SetMode("ssp:0");
  Says(0, Progress::WAITING_FOR_WORKERS, 10);
  Says(1, Progress::WAITING_FOR_WORKERS, 10);
  Says(2, Progress::WORKING, 7);
  Says(3, Progress::WORKING, 11);  // A long evaluation.
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(2));
}

TEST_F(StallWatchTest, OfSeveralThatStandStillTheSlowestGoFirst) {
  SetMode("ssp:0");
  Says(0, Progress::WAITING_FOR_WORKERS, 10);
  Says(1, Progress::WORKING, 8);
  Says(2, Progress::WORKING, 7);
  Says(3, Progress::WORKING, 7);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(2, 3));
  Remove(3);
  Remove(2);
  const absl::Time removed = now_;
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(1)) << "nobody got on";
  EXPECT_LE(now_ - removed, absl::Seconds(5)) << "not a whole timeout later";
  EXPECT_GE(now_ - removed, absl::Seconds(2)) << "but with time to go on";
}

TEST_F(StallWatchTest, AChainEndsAtWhoWaitsForNobody) {
  SetMode("ssp:0");
  Says(0, Progress::WAITING_FOR_WORKERS, 12);
  says_[0].progress.set_rank(1);
  Says(1, Progress::WAITING_FOR_WORKERS, 9);
  says_[1].progress.set_rank(2);
  Says(2, Progress::WORKING, 6);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(2));
}

TEST_F(StallWatchTest, InAllReduceAllGoWhoAreNotInTheOperation) {
  SetMode("allreduce");
  Says(0, Progress::WAITING_FOR_WORKERS, 17);
  Says(1, Progress::WORKING, 17);
  Says(2, Progress::WORKING, 18);  // It had the operation's result.
  Says(3, Progress::WAITING_FOR_WORKERS, 17);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(1, 2));
}

// It knows no clock before it is connected.
TEST_F(StallWatchTest, WhoJoinsAllReduceAfterAnotherPhaseIsHeldUpToo) {
  SetMode("bsp");
  wire::Phase* const phase = view_.add_phase();
  *phase->mutable_mode() = ModeOf("allreduce");
  phase->set_from(4);
  view_.set_entered(1);
  for (const int rank : {0, 2, 3}) Says(rank, Progress::WAITING_FOR_WORKERS, 0);
  Says(1, Progress::WORKING, 6);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(1));
}

TEST_F(StallWatchTest, InBackupItHoldsUpTheEnd) {
  SetMode("backup:1");
  Says(2, Progress::WORKING, 17);
  for (const int rank : {0, 1, 3}) Says(rank, Progress::WORKING, 80);
  EXPECT_THAT(Pass(absl::Seconds(200)), IsEmpty()) << "nobody waits for it";
  for (const int rank : {0, 1, 3}) SetDone(rank);
  EXPECT_THAT(Pass(absl::Seconds(59)), IsEmpty());
  EXPECT_THAT(Pass(absl::Seconds(5)), ElementsAre(2));
}

TEST_F(StallWatchTest, WhoCannotReachAServerThatAnswersOthersIsRemoved) {
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  Says(2, Progress::WAITING_FOR_SERVER, 17, /*server=*/1);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(2));
  EXPECT_THAT(findings_.remove[0].why_removed,
              HasSubstr("held up worker 0: without progress for 60 s, it is "
                        "waiting for server 1"));
}

TEST_F(StallWatchTest, AServerThatAnswersNobodyEndsTheJob) {
  for (const int rank : {0, 1, 2}) {
    Says(rank, Progress::WAITING_FOR_SERVER, 17, /*server=*/1);
  }
  Says(3, Progress::WORKING, 17);
  Pass(absl::Seconds(30));
  EXPECT_THAT(findings_.held_up[0],
              "worker 0 is waiting for server 1, at clock 17, without progress "
              "for 29 s");
  Says(3, Progress::WAITING_FOR_SERVER, 17, /*server=*/1);
  EXPECT_THAT(Pass(absl::Seconds(59)), IsEmpty());
  EXPECT_FALSE(findings_.end.has_value());
  EXPECT_THAT(Pass(absl::Seconds(70)), IsEmpty());
  ASSERT_TRUE(findings_.end.has_value());
  EXPECT_EQ(findings_.end->cause(), wire::JobEnd::SERVERS_SILENT);
  EXPECT_THAT(findings_.end->server(), ElementsAre(1));
  EXPECT_EQ(findings_.end->reason(),
            "server 1 (shard threads at tcp://somewhere:1) has not answered "
            "workers 0, 1, 2, 3 for 89 s, and no other worker is left that "
            "goes on; look at the logs of these servers and at the network "
            "between");
}

TEST_F(StallWatchTest, SeveralServersThatAnswerNobodyEndTheJobToo) {
  for (const int rank : {0, 1, 2, 3}) {
    Says(rank, Progress::WAITING_FOR_SERVER, 17, /*server=*/rank % 2);
  }
  Pass(absl::Seconds(70));
  ASSERT_TRUE(findings_.end.has_value());
  EXPECT_THAT(findings_.end->server(), ElementsAre(0, 1));
  EXPECT_THAT(findings_.end->reason(),
              AllOf(HasSubstr("answered workers 0, 2 for"),
                    HasSubstr("answered workers 1, 3 for")));
}

TEST_F(StallWatchTest, TheTargetOfAShardIsNamedWithItsSource) {
  view_.add_owner_server(0);
  wire::Move& move = *view_.add_move();
  move.set_server(1);
  move.set_id(7);
  for (const int rank : {0, 1, 2, 3})
    Says(rank, Progress::WAITING_FOR_SERVER, 17, /*server=*/0);
  Pass(absl::Seconds(70));
  ASSERT_TRUE(findings_.end.has_value());
  EXPECT_THAT(findings_.end->server(), ElementsAre(0, 1));
  EXPECT_THAT(findings_.end->reason(),
              HasSubstr("has not answered workers 0, 1, 2, 3 for 60 s, and "
                        "hands shard 0 over to server 1, and no other worker"));
}

// Its copy may be what stands still.
TEST_F(StallWatchTest, TheServersWithCopiesAreNamedWithTheOwner) {
  view_.add_owner_server(0);
  wire::Follower& follower = *view_.add_follower();
  follower.set_server(1);
  follower.set_in_sync(true);
  for (const int rank : {0, 1, 2, 3})
    Says(rank, Progress::WAITING_FOR_SERVER, 17, /*server=*/0);
  Pass(absl::Seconds(70));
  ASSERT_TRUE(findings_.end.has_value());
  EXPECT_THAT(findings_.end->reason(),
              HasSubstr("has not answered workers 0, 1, 2, 3 for 60 s, and "
                        "answers when the copies of its shards have it, on "
                        "server 1, and no other worker"));
}

TEST_F(StallWatchTest, WhoWaitedForAShardThatHasArrivedHasAMoment) {
  view_.add_owner_server(0);
  wire::Move& move = *view_.add_move();
  move.set_server(1);
  move.set_id(7);
  for (const int rank : {0, 1, 2, 3})
    Says(rank, Progress::WAITING_FOR_SERVER, 17, /*server=*/0);
  Pass(absl::Seconds(59));
  view_.clear_move();
  view_.set_owner_server(0, 1);
  Pass(absl::Seconds(2));  // It says the same, as it did not know yet.
  EXPECT_FALSE(findings_.end.has_value());
  Pass(absl::Seconds(2));
  EXPECT_TRUE(findings_.end.has_value()) << "it does not go on";
}

TEST_F(StallWatchTest, WhoSaysNothingNeitherWaitsNorHoldsUp) {
  Says(0, Progress::WAITING_FOR_WORKERS, 0);
  EXPECT_THAT(Pass(absl::Seconds(1000)), IsEmpty());
  EXPECT_THAT(findings_.held_up, IsEmpty());
}

TEST_F(StallWatchTest, WhatWasSaidBeforeTheCoordinatorStoodStillDoesNotCount) {
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  Says(2, Progress::WORKING, 17);
  EXPECT_THAT(Pass(absl::Seconds(50)), IsEmpty());
  now_ += absl::Seconds(100);  // Nobody calls the watch.
  EXPECT_THAT(Pass(absl::Seconds(60)), IsEmpty());
  EXPECT_THAT(Pass(absl::Seconds(5)), ElementsAre(2));
}

TEST_F(StallWatchTest, WhoHasNotBeenHeardOfLatelyIsTheLeasesBusiness) {
  Says(2, Progress::WORKING, 17);
  Pass(absl::Seconds(30));
  Says(0, Progress::WAITING_FOR_WORKERS, 18);
  Pass(absl::Seconds(57));
  says_[2].progress.Clear();
  EXPECT_THAT(Pass(absl::Seconds(20)), IsEmpty());
}

TEST_F(StallWatchTest, TheChiefHasTheTimeThatItTakesToSaveTheModel) {
  for (int rank = 0; rank < 4; ++rank) {
    SetDone(rank);
    Says(rank, Progress::WAITING_FOR_WORKERS, 100);
  }
  Says(0, Progress::WORKING, 100);
  EXPECT_THAT(Pass(absl::Seconds(599)), IsEmpty());
  EXPECT_THAT(Pass(absl::Seconds(5)), ElementsAre(0));
  Remove(0);
  Says(0, Progress::WORKING, 100);  // Now worker 1.
  EXPECT_THAT(Pass(absl::Seconds(599)), IsEmpty());
}

// Whoever is left is the chief, and nobody but the user waits for it.
TEST_F(StallWatchTest, AChiefThatIsAloneHasThatTimeToo) {
  view_.mutable_worker()->DeleteSubrange(1, 3);
  says_.resize(1);
  SetDone(0);
  Says(0, Progress::WORKING, 100);
  EXPECT_THAT(Pass(absl::Seconds(599)), IsEmpty());
  EXPECT_THAT(findings_.held_up,
              ElementsAre("worker 0 is at its own work, at clock 100, without "
                          "progress for 598 s; it is removed after 600 s"));
  EXPECT_THAT(Pass(absl::Seconds(5)), ElementsAre(0));
  EXPECT_THAT(findings_.remove[0].why_removed,
              HasSubstr("because it held up the end of the job: without"));
}

TEST_F(StallWatchTest, AProgramAfterItsLastStepHasAsLongAsTheChief) {
  for (const char* const mode : {"asp", "allreduce"}) {
    SetMode(mode);
    SetDone(0);
    SetDone(1);
    Says(0, Progress::WAITING_FOR_WORKERS, 100);
    Says(2, Progress::WORKING, 100);
    Says(3, Progress::WORKING, 99);
    const absl::Time begin = now_;
    while (now_ < begin + absl::Seconds(599)) {
      Says(3, Progress::WORKING, 99);  // Gets on.
      ASSERT_THAT(Pass(absl::Seconds(1)), IsEmpty()) << mode;
    }
    EXPECT_THAT(Pass(absl::Seconds(5)), ElementsAre(2)) << mode;
  }
}

// Their programs may wait for each other, where the job cannot see it.
TEST_F(StallWatchTest, ProgramsThatNeverComeToTheirEndAreRemovedAfterThatTime) {
  for (int rank = 0; rank < 4; ++rank) Says(rank, Progress::WORKING, 100);
  Pass(absl::Seconds(30));
  EXPECT_THAT(findings_.held_up, IsEmpty());
  Says(1, Progress::WORKING, 100);  // Gets on.
  EXPECT_THAT(Pass(absl::Seconds(569)), IsEmpty());
  EXPECT_THAT(findings_.held_up,
              Contains("worker 0 is at its own work, at clock 100, without "
                       "progress for 598 s; it is removed after 600 s"));
  EXPECT_THAT(Pass(absl::Seconds(3)), ElementsAre(0, 2, 3));
  EXPECT_THAT(findings_.remove[0].why_removed,
              HasSubstr("because it held up the end of the job: without"));
}

TEST_F(StallWatchTest, AProgramAfterItsLastStepIsFreeWhileOthersHaveSteps) {
  SetMode("asp");
  for (int rank = 0; rank < 3; ++rank) Says(rank, Progress::WORKING, 100);
  Says(3, Progress::WORKING, 99);
  EXPECT_THAT(Pass(absl::Seconds(1000)), IsEmpty());
}

TEST_F(StallWatchTest, AProgramAfterItsLastStepIsNotInTheWayOfAStep) {
  view_.mutable_phase(0)->mutable_mode()->mutable_delays()->set_given(
      "uniform:3");
  Says(0, Progress::WAITING_FOR_WORKERS, 98);
  Says(2, Progress::WORKING, 100);
  EXPECT_THAT(Pass(absl::Seconds(700)), IsEmpty());
}

TEST_F(StallWatchTest, AWorkerWhoseLastGradientsAreOnTheirWayIsInTheWay) {
  view_.mutable_phase(0)->mutable_mode()->mutable_delays()->set_given(
      "uniform:3");
  Says(0, Progress::WAITING_FOR_WORKERS, 98);
  Says(2, Progress::WAITING_FOR_SERVER, 100, /*server=*/0);
  EXPECT_THAT(Pass(absl::Seconds(62)), ElementsAre(2));
  Says(2, Progress::WORKING, 100);
  Pass(absl::Seconds(1));
  // Its program asks for the state of the optimizer.
  Says(2, Progress::WAITING_FOR_SERVER, 100, /*server=*/0);
  EXPECT_THAT(Pass(absl::Seconds(700)), IsEmpty());
}

TEST_F(StallWatchTest, AChiefThatGetsNoAnswerFromAServerIsNoException) {
  for (int rank = 0; rank < 4; ++rank) SetDone(rank);
  Says(0, Progress::WAITING_FOR_SERVER, 100, /*server=*/1);
  EXPECT_THAT(Pass(absl::Seconds(70)), ElementsAre(0));
  while (view_.worker_size() > 1) Remove(view_.worker(0).rank());
  Says(0, Progress::WAITING_FOR_SERVER, 100, /*server=*/1);
  Pass(absl::Seconds(70));
  ASSERT_TRUE(findings_.end.has_value());
  EXPECT_THAT(findings_.end->server(), ElementsAre(1));
}

TEST_F(StallWatchTest, NumbersOutOfRangeAreNoHarm) {
  Says(0, Progress::WAITING_FOR_WORKERS, 1000);
  Says(2, Progress::WORKING, -5);
  says_[2].progress.set_what(std::string(1 << 20, 'x'));
  for (int i = 0; i < 70; ++i) {
    now_ += absl::Seconds(1);
    watch_.OnTime(now_);
    Report(0);
    says_[2].progress.set_for_ms(std::numeric_limits<int64_t>::max());
    watch_.OnReport(12, says_[2].progress, /*trained=*/false, now_);
    says_[1].progress.set_activity(Progress::WORKING);
    says_[1].progress.set_for_ms(std::numeric_limits<int64_t>::min());
    watch_.OnReport(11, says_[1].progress, /*trained=*/false, now_);
    findings_ = watch_.Look(view_, now_);
    if (!findings_.remove.empty()) break;
  }
  ASSERT_EQ(findings_.remove.size(), 1);
  EXPECT_EQ(findings_.remove[0].rank, 2);
  EXPECT_LE(findings_.remove[0].why_removed.size(), 400);
}

}  // namespace slackline::stall_watch_test
