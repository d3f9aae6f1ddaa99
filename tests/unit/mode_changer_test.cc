// Goal: a change of the mode begins at a clock that no worker has passed, is
// waited for by nobody who is gone, and is reported as it was. Method: the
// calls of a few workers, played by hand.
#include "server/coordinator/mode_changer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::mode_changer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ModeChangerTest : public ::testing::Test {
 protected:
  ModeChangerTest() {
    view_.set_steps_total(100);
    view_.set_steps_per_epoch(40);
    workers_ = {{.rank = 0, .incarnation = 10}, {.rank = 1, .incarnation = 11}};
  }

  std::vector<std::string> Start(const config::Sync& sync) {
    changer_.emplace(sync, &delays_.emplace(JobDelays::Options{
                               .source = source_, .workers = 2, .seed = 3}));
    ViewEditor editor(view_);
    std::vector<std::string> log = changer_->Start(&editor);
    view_ = editor.view();
    return log;
  }
  void StartBsp() { EXPECT_THAT(Start({}), IsEmpty()); }
  void StartAllReduce() {
    config::Sync sync;
    sync.mutable_allreduce();
    EXPECT_THAT(Start(sync), IsEmpty());
  }
  void StartDelays(const std::string& given) {
    source_ = std::make_shared<const DelaySource>(*DelaySource::Load(given));
    config::Sync sync;
    sync.mutable_delays()->set_given(given);
    view_.clear_phase();
    view_.clear_cut();
    EXPECT_THAT(Start(sync), IsEmpty());
  }
  static void AddPhase(config::Sync* sync, config::Phase phase, double until) {
    if (until > 0) phase.set_until_epoch(until);
    *sync->add_phase() = phase;
  }
  static config::Phase Bsp() {
    config::Phase phase;
    phase.mutable_bsp();
    return phase;
  }
  static config::Phase Ssp(int staleness) {
    config::Phase phase;
    phase.mutable_ssp()->set_staleness(staleness);
    return phase;
  }
  static config::Phase AllReduce() {
    config::Phase phase;
    phase.mutable_allreduce();
    return phase;
  }

  // As when the coordinator publishes what has changed.
  ModeChanger::News Advance() {
    view_.set_number(number_);
    ViewEditor editor(view_);
    ModeChanger::News news =
        changer_->Advance(workers_, /*seconds=*/2.5, &editor);
    if (editor.Commit() != ViewEditor::Committed::kNothing) ++number_;
    view_ = editor.view();
    return news;
  }
  ModeChanger::News Want(absl::string_view mode) {
    EXPECT_TRUE(changer_->MayChange(view_, workers_).ok());
    changer_->Want(ModeOf(mode), "because");
    return Advance();
  }
  ModeChanger::News Promise(int worker, Clock clock, uint64_t change = 0) {
    wire::StepLimit limit;
    limit.set_change(change == 0 ? view_.change().id() : change);
    limit.set_clock(clock);
    changer_->OnStepLimit(workers_.at(worker).incarnation, limit, view_);
    return Advance();
  }
  ModeChanger::News Arrive(int worker, Clock clock) {
    wire::Arrive arrive;
    arrive.set_clock(clock);
    changer_->OnArrive(workers_.at(worker).incarnation, arrive, view_);
    return Advance();
  }
  ModeChanger::News Enter(int worker, Clock from, uint64_t hash = 0,
                          int64_t micros = 0) {
    wire::Entered entered;
    entered.set_from(from);
    entered.set_pause_micros(3 * micros);
    entered.set_connect_micros(micros);
    entered.set_transfer_micros(2 * micros);
    entered.set_bytes(1000);
    entered.set_model_hash(hash);
    end_ = changer_->OnEntered(workers_.at(worker).rank,
                               workers_.at(worker).incarnation, entered, view_);
    return Advance();
  }
  // Worker `worker` is gone; another life of its rank may have come.
  ModeChanger::News Lose(int worker) {
    gone_in_ = number_ + 1;
    changer_->OnGone(workers_.at(worker), gone_in_);
    workers_.erase(workers_.begin() + worker);
    return Advance();
  }

  bool EndsSoon() const {
    return std::any_of(
        workers_.begin(), workers_.end(),
        [&](const auto& worker) { return IsAboutToEnd(worker, view_); });
  }
  // A user wants the job to end early.
  ModeChanger::News WantEnd() {
    EXPECT_FALSE(EndsSoon());
    changer_->end().Want("enough");
    return Advance();
  }

  // A checkpoint is wanted.
  ModeChanger::News WantCut() {
    EXPECT_TRUE(changer_->MayCut(view_, workers_).ok());
    changer_->cut().Want("for tests");
    return Advance();
  }
  // Of the last cut: "1@14", "2@14 by worker", "3@0:12 1:15", or "none".
  std::string Cut() const {
    const wire::Cut& cut = view_.cut();
    if (cut.number() == 0) return "none";
    std::string text = absl::StrCat(cut.number(), "@");
    if (cut.until_size() == 0) absl::StrAppend(&text, cut.clock());
    for (int i = 0; i < cut.until_size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : " ", cut.until(i).rank(), ":",
                      cut.until(i).clock());
    }
    return absl::StrCat(text, cut.by_worker() ? " by worker" : "");
  }

  // "bsp@0 ssp:3@12", "asp?" for a change without a clock, "end@14" or "end?"
  // for an early end, and "cut?" for a checkpoint.
  std::string Phases() const {
    std::string text;
    for (const wire::Phase& phase : view_.phase()) {
      absl::StrAppend(&text, text.empty() ? "" : " ", ModeText(phase.mode()),
                      "@", phase.from());
    }
    if (view_.change().has_ending()) {
      absl::StrAppend(&text, " end?");
    } else if (view_.change().has_cutting()) {
      absl::StrAppend(&text, " cut?");
    } else if (view_.has_change()) {
      absl::StrAppend(&text, " ", ModeText(view_.change().mode()), "?");
    }
    if (view_.end_clock() > 0)
      absl::StrAppend(&text, " end@", view_.end_clock());
    return text;
  }

  wire::View view_;
  uint64_t number_ = 20;
  std::vector<ModeChanger::Worker> workers_;
  std::shared_ptr<const DelaySource> source_;  // If delays are given.
  std::optional<JobDelays> delays_;
  std::optional<ModeChanger> changer_;
  std::optional<wire::JobEnd> end_;
  uint64_t gone_in_ = 5;
};

// ---- The schedule -----------------------------------------------------------

TEST_F(ModeChangerTest, OneModeIsOnePhase) {
  StartBsp();
  EXPECT_EQ(Phases(), "bsp@0");
  config::Sync sync;
  sync.mutable_ssp()->set_staleness(2);
  Start(sync);
  EXPECT_EQ(Phases(), "ssp:2@0");
  sync.mutable_asp();
  Start(sync);
  EXPECT_EQ(Phases(), "asp@0");
  sync.mutable_auto_();
  Start(sync);
  EXPECT_EQ(Phases(), "allreduce@0");
}

TEST_F(ModeChangerTest, AStepByAllReduceBringsTheValuesOfAWorkerToTheServers) {
  wire::Table& table = *view_.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.mutable_initializer()->set_kind(wire::Initializer::OF_WORKER);
  config::Sync sync;
  sync.mutable_ssp()->set_staleness(2);
  EXPECT_THAT(Start(sync), IsEmpty());
  EXPECT_EQ(Phases(), "allreduce@0 ssp:2@1");
  // It is a record, and nobody has asked for it.
  Enter(0, 1);
  EXPECT_THAT(Enter(1, 1).changes, SizeIs(1));
  EXPECT_EQ(changer_->changes(), 0);

  // As the first phase of several, too.
  config::Sync phases;
  AddPhase(&phases, Ssp(4), 0.5);
  AddPhase(&phases, AllReduce(), 0);
  EXPECT_THAT(Start(phases), IsEmpty());
  EXPECT_EQ(Phases(), "allreduce@0 ssp:4@1 allreduce@20");

  // Who steps by all-reduce anyhow needs no more.
  StartAllReduce();
  EXPECT_EQ(Phases(), "allreduce@0");
  config::Sync automatic;
  automatic.mutable_auto_();
  EXPECT_THAT(Start(automatic), IsEmpty());
  EXPECT_EQ(Phases(), "allreduce@0");
}

TEST_F(ModeChangerTest, PhasesBeginWhereTheOnesBeforeEnd) {
  config::Sync sync;
  AddPhase(&sync, AllReduce(), 0.51);
  AddPhase(&sync, Bsp(), 1);
  AddPhase(&sync, Ssp(3), 0);
  EXPECT_THAT(Start(sync), IsEmpty());
  EXPECT_EQ(Phases(), "allreduce@0 bsp@20 ssp:3@40");
}

TEST_F(ModeChangerTest, APhaseAtOrAfterTheEndOfTheJobIsLeftOut) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 2.5);
  AddPhase(&sync, Ssp(3), 1e300);
  AddPhase(&sync, AllReduce(), 0);
  EXPECT_THAT(
      Start(sync),
      ElementsAre("phase ssp:3 would begin at step 100; the job has "
                  "100 steps, so it is left out",
                  HasSubstr("phase allreduce would begin at step 100")));
  EXPECT_EQ(Phases(), "bsp@0");
}

TEST_F(ModeChangerTest, OfPhasesAtOneClockTheLaterOneHolds) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 0.01);
  AddPhase(&sync, Ssp(3), 1);
  AddPhase(&sync, AllReduce(), 1.001);
  AddPhase(&sync, Ssp(3), 0);
  EXPECT_THAT(Start(sync), SizeIs(2));
  EXPECT_EQ(Phases(), "ssp:3@0") << "and it goes on";
}

// ---- Finding the clock ------------------------------------------------------

TEST_F(ModeChangerTest, TheLargestLimitBecomesTheClock) {
  StartBsp();
  EXPECT_TRUE(Want("ssp:3").view_changed);
  EXPECT_EQ(Phases(), "bsp@0 ssp:3?");
  EXPECT_EQ(view_.change().id(), number_) << "of the first view with it";
  EXPECT_FALSE(Promise(0, 12).view_changed);
  const ModeChanger::News news = Promise(1, 9);
  EXPECT_TRUE(news.view_changed);
  EXPECT_EQ(Phases(), "bsp@0 ssp:3@12");
  EXPECT_THAT(
      news.log,
      ElementsAre("the mode changes from bsp to ssp:3 at step 12: because"));
}

TEST_F(ModeChangerTest, APhaseHasAtLeastOneStep) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 0.5);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  Enter(0, 20);
  Enter(1, 20);
  Want("asp");
  Promise(0, 7);  // Both wrong: they are past step 20.
  Promise(1, 8);
  EXPECT_EQ(Phases(), "bsp@0 ssp:3@20 asp@21");
}

TEST_F(ModeChangerTest, RepeatedAndLatePromisesChangeNothing) {
  StartBsp();
  Want("asp");
  const uint64_t first = view_.change().id();
  Promise(0, 12);
  EXPECT_FALSE(Promise(0, 12).view_changed);
  EXPECT_FALSE(Promise(0, 3).view_changed);
  EXPECT_FALSE(Promise(1, 50, first + 1).view_changed) << "of another change";
  Promise(1, 9);
  ASSERT_EQ(Phases(), "bsp@0 asp@12");
  EXPECT_FALSE(Promise(1, 90, first).view_changed);
  Enter(0, 12);
  Enter(1, 12);
  Want("ssp:1");
  EXPECT_FALSE(Promise(0, 77, first).view_changed);
  Promise(0, 30);
  Promise(1, 30);
  EXPECT_EQ(Phases(), "bsp@0 asp@12 ssp:1@30");
}

TEST_F(ModeChangerTest, WhoDiesBeforePromisingIsNotWaitedFor) {
  StartBsp();
  Want("asp");
  Promise(0, 12);
  EXPECT_TRUE(Lose(1).view_changed);
  EXPECT_EQ(Phases(), "bsp@0 asp@12");
}

TEST_F(ModeChangerTest, TheLimitOfTheDeadDoesNotCount) {
  StartBsp();
  Want("asp");
  Promise(1, 50);
  EXPECT_FALSE(Lose(1).view_changed);
  Promise(0, 12);
  EXPECT_EQ(Phases(), "bsp@0 asp@12");
}

// In BACKUP shards go with the fastest workers, and stay there when these die,
// with or without a promise, before the change was asked for or after.
TEST_F(ModeChangerTest, ABackupPhaseDoesNotEndBeforeClocksThatTheDeadReached) {
  for (const bool promised : {false, true}) {
    SCOPED_TRACE(promised);
    config::Sync sync;
    sync.mutable_backup();
    Start(sync);
    workers_.push_back({.rank = 2, .incarnation = 12});
    view_.add_server();
    view_.add_owner_server(0);
    if (promised) Want("bsp");
    if (promised) Promise(2, 50);
    Lose(2);
    if (!promised) Want("bsp");
    Promise(0, 12);
    EXPECT_FALSE(Promise(1, 14).view_changed) << "where the shards are is open";
    changer_->OnServer(0, gone_in_ - 1, 20);
    EXPECT_FALSE(Advance().view_changed) << "it may still hear of the dead";
    changer_->OnServer(0, gone_in_, 33);
    EXPECT_TRUE(Advance().view_changed);
    EXPECT_EQ(Phases(), "backup:1@0 bsp@33");
  }
}

// In BSP one that has not seen the change can be a step further than all
// others, and its gradient waits for theirs.
TEST_F(ModeChangerTest, ABspPhaseDoesNotEndBeforeGradientsOfTheDead) {
  for (const char* const mode : {"allreduce", "asp"}) {
    SCOPED_TRACE(mode);
    StartBsp();
    workers_.push_back({.rank = 2, .incarnation = 12});
    view_.clear_owner_server();
    view_.add_owner_server(view_.server_size());
    view_.add_server()->set_index(view_.owner_server(0));
    const int32_t server = view_.owner_server(0);
    Want(mode);
    Promise(0, 12);
    Promise(1, 12);
    EXPECT_FALSE(Lose(2).view_changed) << "its gradient of step 12 may be held";
    changer_->OnServer(server, gone_in_ - 1, 12);
    EXPECT_FALSE(Advance().view_changed) << "one may still come";
    changer_->OnServer(server, gone_in_, 13);
    EXPECT_TRUE(Advance().view_changed);
    EXPECT_EQ(Phases(), absl::StrCat("bsp@0 ", mode, "@13"));
  }
}

TEST_F(ModeChangerTest, WhoJoinsWhileAChangeIsOpenHasToPromise) {
  StartBsp();
  Want("asp");
  Promise(0, 12);
  workers_.push_back({.rank = 2, .incarnation = 12});
  EXPECT_FALSE(Promise(1, 9).view_changed);
  workers_[1] = {.rank = 1, .incarnation = 13};  // Another life of its rank.
  EXPECT_FALSE(Promise(2, 15).view_changed);
  EXPECT_TRUE(Promise(1, 9).view_changed);
  EXPECT_EQ(Phases(), "bsp@0 asp@15");
}

TEST_F(ModeChangerTest, AChangeForWhichNoStepIsLeftIsDropped) {
  StartBsp();
  Want("asp");
  Promise(0, 96);
  const ModeChanger::News news = Promise(1, 100);
  EXPECT_TRUE(news.view_changed);
  EXPECT_EQ(Phases(), "bsp@0");
  EXPECT_THAT(news.log,
              ElementsAre("the mode does not change from bsp to asp: the job "
                          "ends at step 100, before all workers could"));
  EXPECT_EQ(changer_->changes(), 0);
  EXPECT_TRUE(changer_->MayChange(view_, workers_).ok())
      << "nothing is left of it";
}

TEST_F(ModeChangerTest, AChangeIsDroppedOnceSomebodyIsDone) {
  StartBsp();
  Want("asp");
  workers_[1].done = true;
  EXPECT_TRUE(Advance().view_changed);
  EXPECT_EQ(Phases(), "bsp@0");
}

TEST_F(ModeChangerTest, AChangeWaitsUntilNoShardMoves) {
  StartBsp();
  view_.add_move()->set_shard(1);
  EXPECT_FALSE(Want("allreduce").view_changed);
  EXPECT_EQ(Phases(), "bsp@0");
  EXPECT_TRUE(absl::IsUnavailable(changer_->MayMove(view_, workers_)));
  EXPECT_TRUE(absl::IsUnavailable(changer_->MayChange(view_, workers_)));
  view_.clear_move();
  EXPECT_TRUE(Advance().view_changed);
  EXPECT_EQ(Phases(), "bsp@0 allreduce?");
}

// ---- An early end -----------------------------------------------------------

TEST_F(ModeChangerTest, AJobEndsEarlyAtTheLargestLimit) {
  StartBsp();
  EXPECT_TRUE(WantEnd().view_changed);
  EXPECT_EQ(Phases(), "bsp@0 end?");
  EXPECT_FALSE(Promise(0, 12).view_changed);
  EXPECT_EQ(changer_->end().ended_early(), "") << "it may still end by itself";
  const ModeChanger::News news = Promise(1, 14);
  EXPECT_EQ(Phases(), "bsp@0 end@14");
  EXPECT_EQ(EndOf(view_), 14);
  EXPECT_EQ(changer_->end().ended_early(), "enough");
  EXPECT_THAT(news.log,
              ElementsAre("the job ends early, at step 14 of 100: enough"));
  EXPECT_EQ(changer_->changes(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(changer_->MayChange(view_, workers_)));
  // Asked for once more, it stays what it is.
  changer_->end().Want("more than enough");
  EXPECT_FALSE(Advance().view_changed);
  EXPECT_EQ(changer_->end().ended_early(), "enough");
}

TEST_F(ModeChangerTest, AnEarlyEndIsNotWherePhasesBegin) {
  config::Sync sync;
  AddPhase(&sync, AllReduce(), 0.35);
  AddPhase(&sync, Ssp(2), 0.375);
  AddPhase(&sync, Bsp(), 0);
  Start(sync);
  ASSERT_EQ(Phases(), "allreduce@0 ssp:2@14 bsp@15");
  WantEnd();
  Promise(0, 14);
  Promise(1, 12);
  // At 14 some would have given their share of the model to the servers, and
  // others would have ended with theirs.
  EXPECT_EQ(EndOf(view_), 16);
}

TEST_F(ModeChangerTest, AnEarlyEndWaitsForTheChangeBeforeIt) {
  StartBsp();
  Want("asp");
  WantEnd();
  EXPECT_EQ(Phases(), "bsp@0 asp?");
  Promise(0, 12);
  Promise(1, 14);
  EXPECT_EQ(Phases(), "bsp@0 asp@14 end?");
  Promise(0, 15);
  Promise(1, 18);
  EXPECT_EQ(Phases(), "bsp@0 asp@14 end@18");
}

TEST_F(ModeChangerTest, AnEarlyEndForWhichNoStepIsLeftIsDropped) {
  StartBsp();
  WantEnd();
  Promise(0, 96);
  EXPECT_THAT(Promise(1, 100).log,
              ElementsAre("the job does not end early: the job ends at step "
                          "100, before all workers could"));
  EXPECT_EQ(Phases(), "bsp@0");
  EXPECT_EQ(changer_->end().ended_early(), "");
  EXPECT_FALSE(changer_->end().IsUnderWay());
  workers_[0].clock = 97;
  EXPECT_TRUE(EndsSoon());
}

TEST_F(ModeChangerTest, AnEarlyEndIsBeyondClocksThatTheDeadReachedInBackup) {
  config::Sync sync;
  sync.mutable_backup()->set_workers(1);
  Start(sync);
  view_.add_server()->set_index(0);
  view_.add_owner_server(0);
  workers_.push_back({.rank = 2, .incarnation = 12});
  WantEnd();
  Promise(0, 12);
  Promise(1, 9);
  Lose(2);
  EXPECT_EQ(EndOf(view_), 100) << "the shard may be further";
  changer_->OnServer(0, gone_in_, 20);
  Advance();
  EXPECT_EQ(EndOf(view_), 20);
}

TEST_F(ModeChangerTest, AJobHasNoMorePhasesThanAViewLists) {
  view_.set_steps_total(100000);
  StartBsp();
  Clock clock = 0;
  while (view_.phase_size() < kPhasesMax) {
    clock += 10;
    Want(view_.phase_size() % 2 == 0 ? "bsp" : "asp");
    for (const int worker : {0, 1}) Promise(worker, clock);
    for (const int worker : {0, 1}) Enter(worker, clock);
  }
  EXPECT_EQ(changer_->MayChange(view_, workers_).message(),
            "the job has had 1000 phases, and a view lists no more; its mode "
            "stays asp");
}

// ---- One at a time ----------------------------------------------------------

TEST_F(ModeChangerTest, TheNextChangeWaitsUntilAllHaveEntered) {
  StartBsp();
  EXPECT_TRUE(changer_->MayMove(view_, workers_).ok());
  Want("ssp:3");
  const auto why = [&] {
    EXPECT_TRUE(absl::IsUnavailable(changer_->MayMove(view_, workers_)));
    const absl::Status status = changer_->MayChange(view_, workers_);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(why(),
            "the mode is just changing from bsp to ssp:3; try again when it "
            "has");
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_EQ(why(),
            "the mode changes to ssp:3 at step 12 (because); try again when it "
            "has");
  Enter(0, 12);
  EXPECT_NE(why(), "");
  Enter(1, 12);
  EXPECT_TRUE(changer_->MayChange(view_, workers_).ok());
  EXPECT_TRUE(changer_->MayMove(view_, workers_).ok());
}

TEST_F(ModeChangerTest, PhasesAheadForbidOtherChangesButNotMoves) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 1);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  EXPECT_TRUE(absl::IsUnavailable(changer_->MayChange(view_, workers_)));
  EXPECT_TRUE(changer_->MayMove(view_, workers_).ok());
  workers_[1].clock = 36;
  EXPECT_FALSE(changer_->MayMove(view_, workers_).ok()) << "it is near";
}

TEST_F(ModeChangerTest, NoShardMovesWhileTheWorkersHaveTheModel) {
  StartAllReduce();
  EXPECT_TRUE(absl::IsFailedPrecondition(changer_->MayMove(view_, workers_)));
  Want("bsp");
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_FALSE(changer_->MayMove(view_, workers_).ok());
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_TRUE(changer_->MayMove(view_, workers_).ok());
}

TEST_F(ModeChangerTest, NoChangeBeginsWhenTheJobIsAboutToEnd) {
  StartBsp();
  workers_[1].clock = 95;
  EXPECT_TRUE(changer_->MayChange(view_, workers_).ok());
  workers_[1].clock = 96;
  EXPECT_EQ(changer_->MayChange(view_, workers_).message(),
            "the job is about to end: worker 1 has completed 96 of 100 steps");
  workers_[1].clock = 0;
  workers_[0].done = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(changer_->MayChange(view_, workers_)));
}

// ---- The end of all-reduce --------------------------------------------------

TEST_F(ModeChangerTest, AllHaveArrivedWhenTheLastHas) {
  StartAllReduce();
  Want("bsp");
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_FALSE(Arrive(0, 12).view_changed);
  EXPECT_FALSE(Arrive(0, 12).view_changed);
  EXPECT_TRUE(Arrive(1, 12).view_changed);
  EXPECT_EQ(view_.arrived(), 12);
  EXPECT_FALSE(Arrive(1, 12).view_changed) << "repeated";
}

TEST_F(ModeChangerTest, WhoDiesBetweenTheFenceAndItsArrivalIsNotWaitedFor) {
  StartAllReduce();
  Want("bsp");
  Promise(0, 12);
  Promise(1, 12);
  Arrive(0, 12);
  EXPECT_TRUE(Lose(1).view_changed);
  EXPECT_EQ(view_.arrived(), 12);
}

TEST_F(ModeChangerTest, WhoJoinsBeforeAllHaveArrivedHasToArrive) {
  StartAllReduce();
  Want("bsp");
  Promise(0, 12);
  Promise(1, 12);
  Arrive(0, 12);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_), "");
  workers_.push_back({.rank = 2, .incarnation = 12});
  EXPECT_FALSE(Arrive(1, 12).view_changed);
  EXPECT_TRUE(Arrive(2, 12).view_changed);
  EXPECT_EQ(view_.arrived(), 12);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_),
            "the mode is just changing from allreduce to bsp");
  for (const int worker : {0, 1, 2}) Enter(worker, 12);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_), "");
}

TEST_F(ModeChangerTest, AShortPhaseByAllReduceIsNotJoinedAfterItsEnd) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 0.5);
  AddPhase(&sync, AllReduce(), 0.6);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  ASSERT_EQ(Phases(), "bsp@0 allreduce@20 ssp:3@24");
  Enter(0, 20);
  Arrive(0, 24);
  Arrive(1, 24);  // Its Entered is still on the way.
  EXPECT_EQ(view_.entered(), 0);
  EXPECT_NE(ModeChanger::WhyNoneJoins(view_), "");
  Enter(1, 24);
  EXPECT_EQ(view_.entered(), 1);
  EXPECT_NE(ModeChanger::WhyNoneJoins(view_), "");
  Enter(0, 24);
  EXPECT_EQ(view_.entered(), 2);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_), "");
}

TEST_F(ModeChangerTest, TheEndOfTheJobIsArrivedAt) {
  StartAllReduce();
  Arrive(0, 100);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_), "");
  Arrive(1, 100);
  EXPECT_EQ(view_.arrived(), 100);
  EXPECT_EQ(ModeChanger::WhyNoneJoins(view_), "the job is about to end");
}

TEST_F(ModeChangerTest, WhoIsDoneHasArrived) {
  StartAllReduce();
  Arrive(0, 100);
  workers_[1].done = true;
  EXPECT_TRUE(Advance().view_changed);
  EXPECT_EQ(view_.arrived(), 100);
}

TEST_F(ModeChangerTest, OnlyTheEndOfAPhaseByAllReduceIsArrivedAt) {
  config::Sync sync;
  AddPhase(&sync, AllReduce(), 0.5);
  AddPhase(&sync, Bsp(), 1);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  for (const Clock clock : {-1, 0, 19, 40, 100}) {
    for (const int worker : {0, 1}) {
      EXPECT_FALSE(Arrive(worker, clock).view_changed) << clock;
    }
  }
  Arrive(0, 20);
  EXPECT_TRUE(Arrive(1, 20).view_changed);
}

// ---- Entering ---------------------------------------------------------------

TEST_F(ModeChangerTest, AChangeIsReportedOnceAllHaveEntered) {
  StartBsp();
  Want("allreduce");
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_FALSE(Enter(0, 12, 0xabc, 3000).view_changed);
  EXPECT_FALSE(Enter(0, 12, 0xabc, 9000).view_changed) << "repeated";
  const ModeChanger::News news = Enter(1, 12, 0xabc, 2000);
  EXPECT_FALSE(end_.has_value());
  EXPECT_TRUE(news.view_changed);
  EXPECT_EQ(view_.entered(), 1);
  EXPECT_THAT(
      news.log,
      ElementsAre("the mode has changed from bsp to allreduce at step 12: the "
                  "workers stood still for at most 9.0 ms, connecting 3.0 ms "
                  "and moving 2000 bytes 6.0 ms of it"));
  ASSERT_EQ(news.changes.size(), 1u);
  const run::ModeRecord& record = news.changes[0];
  EXPECT_EQ(record.seconds(), 2.5);
  EXPECT_EQ(record.from_clock(), 12);
  EXPECT_EQ(ModeText(record.from()), "bsp");
  EXPECT_EQ(ModeText(record.to()), "allreduce");
  EXPECT_EQ(record.reason(), "because");
  EXPECT_EQ(record.pause_micros(), 9000);
  EXPECT_EQ(record.connect_micros(), 3000);
  EXPECT_EQ(record.transfer_micros(), 6000);
  EXPECT_EQ(record.bytes(), 2000);
  EXPECT_EQ(record.workers(), 2);
  EXPECT_EQ(record.model_hash(), 0xabcu);
  EXPECT_EQ(changer_->changes(), 1);
  EXPECT_EQ(changer_->last_changes().size(), 1u);
  EXPECT_EQ(Enter(1, 12, 0xdef).changes.size(), 0u);
  EXPECT_FALSE(end_.has_value()) << "late: of a worker that has joined since";
}

TEST_F(ModeChangerTest, ScheduledPhasesSayWhyTheyAre) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 1);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  Enter(0, 40);
  const ModeChanger::News news = Enter(1, 40);
  ASSERT_EQ(news.changes.size(), 1u);
  EXPECT_EQ(news.changes[0].reason(), "schedule");
}

TEST_F(ModeChangerTest, NeitherTheDeadNorTheDoneNeedToEnter) {
  StartBsp();
  Want("asp");
  workers_.push_back({.rank = 2, .incarnation = 12});
  for (const int worker : {0, 1, 2}) Promise(worker, 12);
  Enter(0, 12);
  EXPECT_FALSE(Lose(1).view_changed);
  workers_[1].done = true;
  const ModeChanger::News news = Advance();
  ASSERT_EQ(news.changes.size(), 1u);
  EXPECT_EQ(news.changes[0].workers(), 1);
}

TEST_F(ModeChangerTest, AFastWorkerMayBePhasesAhead) {
  config::Sync sync;
  AddPhase(&sync, Bsp(), 0.5);
  AddPhase(&sync, Ssp(9), 0.6);
  AddPhase(&sync, Ssp(3), 0);
  Start(sync);
  ASSERT_EQ(Phases(), "bsp@0 ssp:9@20 ssp:3@24");
  Enter(0, 20);
  EXPECT_FALSE(Enter(0, 24).view_changed);
  EXPECT_EQ(view_.entered(), 0);
  // Joined behind the first change.
  workers_[1] = {.rank = 1, .incarnation = 13};
  const ModeChanger::News news = Enter(1, 24);
  EXPECT_EQ(view_.entered(), 2);
  ASSERT_EQ(news.changes.size(), 2u);
  EXPECT_EQ(ModeText(news.changes[0].to()), "ssp:9");
  EXPECT_EQ(news.changes[0].workers(), 1);
  EXPECT_EQ(ModeText(news.changes[1].to()), "ssp:3");
  EXPECT_EQ(news.changes[1].workers(), 2);
}

TEST_F(ModeChangerTest, AnUnknownPhaseIsNotEntered) {
  StartBsp();
  Want("asp");
  Promise(0, 12);
  Promise(1, 12);
  for (const Clock from : {-1, 0, 11, 13}) {
    for (const int worker : {0, 1}) {
      EXPECT_FALSE(Enter(worker, from).view_changed) << from;
    }
  }
}

TEST_F(ModeChangerTest, DifferentModelsEndTheJob) {
  StartBsp();
  workers_.push_back({.rank = 2, .incarnation = 12});
  Want("allreduce");
  for (const int worker : {0, 1, 2}) Promise(worker, 12);
  Enter(0, 12);  // Reports no hash.
  EXPECT_FALSE(end_.has_value());
  Enter(1, 12, 0xab);
  EXPECT_FALSE(end_.has_value());
  Enter(2, 12, 0xcd);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->cause(), wire::JobEnd::MODELS_DIFFER);
  EXPECT_THAT(end_->worker(), ElementsAre(1, 2));
  EXPECT_EQ(end_->reason(),
            "the workers' models differ where the mode changes from bsp to "
            "allreduce, at step 12: worker 1 has hash 00000000000000ab, worker "
            "2 has 00000000000000cd");
}

TEST_F(ModeChangerTest, TheLastSixteenChangesAreKept) {
  config::Sync sync;
  sync.mutable_asp();
  Start(sync);
  for (int i = 1; i <= 18; ++i) {
    Want(absl::StrCat("ssp:", i));
    for (const int worker : {0, 1}) Promise(worker, 4 * i);
    for (const int worker : {0, 1}) Enter(worker, 4 * i);
  }
  EXPECT_EQ(changer_->changes(), 18);
  ASSERT_EQ(changer_->last_changes().size(), 16u);
  EXPECT_EQ(ModeText(changer_->last_changes().front().to()), "ssp:3");
  EXPECT_EQ(ModeText(changer_->last_changes().back().to()), "ssp:18");
}

// ---- Cuts -------------------------------------------------------------------

TEST_F(ModeChangerTest, ACutIsAtTheLargestLimitWhereWorkersShareClocks) {
  StartBsp();
  EXPECT_TRUE(WantCut().view_changed);
  EXPECT_EQ(Phases(), "bsp@0 cut?");
  Promise(0, 12);
  const ModeChanger::News news = Promise(1, 9);
  EXPECT_EQ(Phases(), "bsp@0");
  EXPECT_EQ(Cut(), "1@12");
  EXPECT_THAT(news.log,
              ElementsAre("a checkpoint is taken at step 12: for tests"));
  EXPECT_THAT(news.changes, IsEmpty()) << "the mode is as it was";
}

TEST_F(ModeChangerTest, EachWorkerHasItsOwnWhereTheyShareNone) {
  for (const absl::string_view mode : {"ssp:3", "asp"}) {
    config::Sync sync;
    if (mode == "asp") {
      sync.mutable_asp();
    } else {
      sync.mutable_ssp()->set_staleness(3);
    }
    view_.clear_cut();
    Start(sync);
    WantCut();
    Promise(0, 12);
    const ModeChanger::News news = Promise(1, 9);
    EXPECT_EQ(Cut(), "1@0:12 1:9");
    EXPECT_THAT(news.log,
                ElementsAre("a checkpoint is taken at the workers' own steps, "
                            "9 to 12: for tests"));
  }
}

TEST_F(ModeChangerTest, OfAWorkerThatIsDoneACutHasAllSteps) {
  config::Sync sync;
  sync.mutable_asp();
  Start(sync);
  workers_[1].done = true;
  WantCut();
  Promise(0, 12);
  EXPECT_EQ(Cut(), "1@0:12 1:100");
}

TEST_F(ModeChangerTest, WhereDelaysAreGivenACutHasWhatItsGradientsComeFrom) {
  StartDelays("constant:0");
  WantCut();
  Promise(0, 12);
  const ModeChanger::News news = Promise(1, 9);
  EXPECT_EQ(Cut(), "1@0:12 1:11") << "the step of clock 11 is from all before";
  EXPECT_EQ(view_.cut().until(1).incarnation(), 11u);
  EXPECT_THAT(news.log,
              ElementsAre("a checkpoint is taken at the workers' own steps, "
                          "11 to 12: for tests"));
  StartDelays("constant:5");
  WantCut();
  Promise(0, 12);
  Promise(1, 9);
  EXPECT_EQ(Cut(), "1@0:12 1:9") << "it is from those before clock 6";
}

TEST_F(ModeChangerTest, WhereDelaysAreGivenACutHasAllStepsOfWhoIsDone) {
  StartDelays("constant:5");
  workers_[1].done = true;
  WantCut();
  Promise(0, 12);
  EXPECT_EQ(Cut(), "1@0:94 1:100")
      << "whose last step is from that of clock 93";
  // And of who is gone.
  StartDelays("constant:5");
  workers_.pop_back();
  WantCut();
  Promise(0, 12);
  EXPECT_EQ(Cut(), "1@0:94 1:100");
  EXPECT_EQ(view_.cut().until(1).incarnation(), 0u);
}

TEST_F(ModeChangerTest, WhereDelaysAreGivenNoCutIsAtTheEnd) {
  StartDelays("constant:0");
  WantCut();
  Promise(0, 100);
  const ModeChanger::News news = Promise(1, 100);
  EXPECT_EQ(Cut(), "none");
  EXPECT_THAT(news.cut_dropped, HasSubstr("the job ends by itself"));
}

TEST_F(ModeChangerTest, ACutIsTheChiefsWhereWorkersAllReduce) {
  StartAllReduce();
  WantCut();
  Promise(0, 12);
  Promise(1, 13);
  EXPECT_EQ(Cut(), "1@13 by worker");
}

TEST_F(ModeChangerTest, ACutIsNeverWhereAPhaseBegins) {
  config::Sync sync;
  AddPhase(&sync, AllReduce(), 0.5);
  AddPhase(&sync, Bsp(), 0);
  Start(sync);
  WantCut();
  Promise(0, 20);
  Promise(1, 19);
  EXPECT_EQ(Cut(), "1@21") << "where the servers have it";
  changer_->cut().Done();
  config::Sync other;
  AddPhase(&other, Ssp(3), 0.5);
  AddPhase(&other, AllReduce(), 0);
  Start(other);
  WantCut();
  Promise(0, 20);
  Promise(1, 17);
  EXPECT_EQ(Cut(), "2@21 by worker");
}

TEST_F(ModeChangerTest, ACutInTwoPhasesHasOneClock) {
  config::Sync sync;
  AddPhase(&sync, Ssp(3), 0.5);
  AddPhase(&sync, Ssp(5), 0);
  for (const Clock limit : {20, 22}) {
    view_.clear_cut();
    Start(sync);
    WantCut();
    Promise(0, limit);
    Promise(1, 17);
    EXPECT_EQ(Cut(), limit == 20 ? "1@21" : "1@22");
  }
  view_.clear_cut();
  Start(sync);
  WantCut();
  Promise(0, 19);
  Promise(1, 17);
  EXPECT_EQ(Cut(), "1@0:19 1:17") << "all are before it";
}

TEST_F(ModeChangerTest, ACutWaitsForTheChangeBeforeItAndTheEndForTheCut) {
  config::Sync sync;
  sync.mutable_asp();
  Start(sync);
  Want("ssp:3");
  WantCut();
  changer_->end().Want("enough");
  EXPECT_EQ(Phases(), "asp@0 ssp:3?");
  Promise(0, 12);
  EXPECT_TRUE(Promise(1, 9).view_changed);
  EXPECT_EQ(Phases(), "asp@0 ssp:3@12 cut?") << "at once";
  // Not all have entered the phase.
  Promise(0, 16);
  Promise(1, 15);
  EXPECT_EQ(Cut(), "1@16");
  EXPECT_EQ(Phases(), "asp@0 ssp:3@12") << "until shards have made it";
  EXPECT_FALSE(Advance().view_changed);
  changer_->cut().Done();
  EXPECT_TRUE(Advance().view_changed);
  EXPECT_EQ(Phases(), "asp@0 ssp:3@12 end?");
}

TEST_F(ModeChangerTest, NothingElseChangesUntilACutIsDone) {
  StartBsp();
  const auto expect_busy = [&](bool busy) {
    for (const absl::Status& may : {changer_->MayChange(view_, workers_),
                                    changer_->MayMove(view_, workers_)}) {
      EXPECT_EQ(absl::IsUnavailable(may), busy) << may;
    }
    EXPECT_EQ(changer_->cut().IsUnderWay(), busy);
  };
  expect_busy(false);
  wire::Move& move = *view_.add_move();
  move.set_shard(0);
  EXPECT_FALSE(WantCut().view_changed) << "a shard moves";
  expect_busy(true);
  view_.clear_move();
  EXPECT_TRUE(Advance().view_changed);
  expect_busy(true);
  Promise(0, 12);
  Promise(1, 9);
  expect_busy(true);
  changer_->cut().Done();
  expect_busy(false);
  WantCut();
  Promise(0, 22);
  Promise(1, 19);
  EXPECT_EQ(Cut(), "2@22");
}

TEST_F(ModeChangerTest, ACutForWhichNoStepIsLeftIsDropped) {
  StartBsp();
  WantCut();
  Promise(0, 60);
  const ModeChanger::News news = Promise(1, 100);
  EXPECT_TRUE(news.view_changed);
  EXPECT_EQ(news.cut_dropped, "the job ends by itself, at step 100, before it");
  EXPECT_EQ(Cut(), "none");
  EXPECT_EQ(Phases(), "bsp@0");
  EXPECT_FALSE(changer_->cut().IsUnderWay());

  // Each for itself, those who have steps left have a cut.
  config::Sync sync;
  sync.mutable_asp();
  Start(sync);
  WantCut();
  Promise(0, 60);
  EXPECT_EQ(Promise(1, 100).cut_dropped, "");
  EXPECT_EQ(Cut(), "1@0:60 1:100");
}

TEST_F(ModeChangerTest, WhoDiesOrJoinsIsTreatedAsInAChange) {
  StartBsp();
  WantCut();
  Promise(0, 12);
  workers_.push_back({.rank = 2, .incarnation = 12});
  EXPECT_FALSE(Lose(1).view_changed);
  Promise(1, 15);
  EXPECT_EQ(Cut(), "1@15");
}

TEST_F(ModeChangerTest, ACutIsBeyondClocksThatTheDeadReachedInBackup) {
  config::Sync sync;
  sync.mutable_backup();
  Start(sync);
  workers_.push_back({.rank = 2, .incarnation = 12});
  view_.add_server();
  view_.add_owner_server(0);
  WantCut();
  Lose(2);
  Promise(0, 12);
  EXPECT_FALSE(Promise(1, 14).view_changed) << "where the shards are is open";
  changer_->OnServer(0, gone_in_, 33);
  EXPECT_TRUE(Advance().view_changed);
  EXPECT_EQ(Cut(), "1@33");
}

TEST_F(ModeChangerTest, LimitsThatCannotBeMakeNoCutThatCannotBe) {
  config::Sync sync;
  sync.mutable_asp();
  Start(sync);
  WantCut();
  Promise(0, -5);
  Promise(1, 9);
  EXPECT_EQ(Cut(), "1@0:0 1:9");
  StartBsp();
  WantCut();
  Promise(0, -5);
  Promise(1, -7);
  EXPECT_EQ(Cut(), "2@1");
}

TEST_F(ModeChangerTest, NoCutIsMadeAtTheEndOrInAnElasticJob) {
  StartBsp();
  view_.set_elastic(true);
  EXPECT_THAT(changer_->MayCut(view_, workers_).message(),
              HasSubstr("elastic sampling"));
  view_.set_elastic(false);
  workers_[0].clock = 97;
  EXPECT_TRUE(changer_->MayCut(view_, workers_).ok()) << "another one is not";
  workers_[1].done = true;
  EXPECT_THAT(changer_->MayCut(view_, workers_).message(),
              HasSubstr("about to end by itself, at step 100"));
  workers_[0].clock = workers_[1].clock = 50;
  workers_[1].done = false;
  changer_->end().Want("enough");
  EXPECT_THAT(changer_->MayCut(view_, workers_).message(),
              HasSubstr("ended early"));
}

}  // namespace slackline::mode_changer_test
