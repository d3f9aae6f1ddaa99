// Goal: which mode holds from which clock on, by the config, a user and the
// policy, that nobody who is gone holds up a change, and how moves of shards
// and changes wait for each other. Method: a job of a few members, played by
// hand on virtual time.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_modes_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Phases and changes -----------------------------------------------------

class ModeTest : public PlacementTest {
 protected:
  ModeTest() {
    options_.shard_elements = 5;  // One shard for each server.
    steps_total_ = 100;
    Restart();
  }

  static std::function<void(wire::Call&)> Setting(const sync::Mode& mode) {
    return [=](wire::Call& call) {
      *call.mutable_set_mode()->mutable_mode() = mode;
    };
  }
  static std::function<void(wire::Call&)> Setting(absl::string_view mode) {
    return Setting(ModeOf(mode));
  }
  // From a worker, under a new id.
  CoordinatorCore::Effects Say(int rank,
                               const std::function<void(wire::Call&)>& fill) {
    CoordinatorCore::Effects effects =
        Call(Worker(rank), workers_.at(rank), ++call_id_, fill);
    EXPECT_EQ(AnswerTo(rank, effects), "OK");
    return effects;
  }
  static std::string AnswerTo(int rank,
                              const CoordinatorCore::Effects& effects) {
    for (const Outgoing& out : effects.sends) {
      if (out.to == Worker(rank) && out.message.header.has_call_reply())
        return wire::Code_Name(out.message.header.call_reply().code());
    }
    return "none";
  }
  CoordinatorCore::Effects Promise(int rank, Clock clock) {
    const uint64_t change = ViewNow().change().id();
    return Say(rank, [=](wire::Call& call) {
      call.mutable_step_limit()->set_change(change);
      call.mutable_step_limit()->set_clock(clock);
    });
  }
  CoordinatorCore::Effects Arrive(int rank, Clock clock) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_arrive()->set_clock(clock);
    });
  }
  CoordinatorCore::Effects Enter(int rank, Clock from, uint64_t hash = 0) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_entered()->set_from(from);
      call.mutable_entered()->set_pause_micros(1500);
      call.mutable_entered()->set_model_hash(hash);
    });
  }
  CoordinatorCore::Effects Regroup(int rank, uint64_t group) {
    return Say(rank, [=](wire::Call& call) {
      call.mutable_regroup()->set_group(group);
    });
  }
  // All workers promise, and from `clock` on the new mode holds.
  void ChangeTo(absl::string_view mode, Clock clock) {
    EXPECT_EQ(ReplyIn(Ask(Setting(mode))).error(), "");
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      Promise(static_cast<int>(rank), clock);
    }
    EXPECT_EQ(ViewNow().phase(ViewNow().phase_size() - 1).from(), clock);
  }
};

TEST_F(ModeTest, TheViewListsThePhasesOfTheConfig) {
  EXPECT_EQ(ViewNow().phase_size(), 0) << "nobody knows the steps yet";
  for (const double until : {0.5, 3.0, 0.0}) {
    config::Phase& phase = *options_.config.mutable_sync()->add_phase();
    phase.mutable_ssp()->set_staleness(1 + options_.config.sync().phase_size());
    if (until > 0) phase.set_until_epoch(until);
  }
  Restart();
  for (const PeerId& peer : {Server(0), Server(1), Worker(0)}) Join(peer);
  const CoordinatorCore::Effects effects =
      SendJoin(Worker(1), JoinOf(Worker(1)));
  const wire::View* const view = ViewFor(effects, Worker(0));
  ASSERT_NE(view, nullptr);
  ASSERT_EQ(view->phase_size(), 2);
  EXPECT_EQ(view->phase(1).from(), 50);
  EXPECT_EQ(ModeText(view->phase(1).mode()), "ssp:3");
  EXPECT_THAT(effects.log,
              testing::Contains(HasSubstr("phase ssp:4 would begin at step "
                                          "100")));
}

TEST_F(ModeTest, AUserChangesTheMode) {
  StartJob();
  now_ += absl::Seconds(2);
  const CoordinatorCore::Effects asked = Ask(Setting("ssp:3"));
  EXPECT_EQ(ReplyIn(asked).code(), wire::OK);
  EXPECT_EQ(ReplyIn(asked).text(), "will change from bsp to ssp:3");
  for (const PeerId& peer : {Worker(0), Worker(1), Server(1)}) {
    const wire::View* const view = ViewFor(asked, peer);
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(ModeText(view->change().mode()), "ssp:3");
    EXPECT_EQ(view->change().id(), view->number());
    EXPECT_TRUE(View::Create(*view).ok());
  }
  EXPECT_EQ(ViewFor(Promise(0, 12), Worker(0)), nullptr);
  const CoordinatorCore::Effects last = Promise(1, 9);
  const wire::View* const view = ViewFor(last, Server(0));
  ASSERT_NE(view, nullptr);
  EXPECT_FALSE(view->has_change());
  ASSERT_EQ(view->phase_size(), 2);
  EXPECT_EQ(ModeText(view->phase(1).mode()), "ssp:3");
  EXPECT_EQ(view->phase(1).from(), 12);

  EXPECT_EQ(core_->Summary().mode_changes(), 0);
  Enter(0, 12);
  const CoordinatorCore::Effects done = Enter(1, 12);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_EQ(ModeText(done.modes[0].from()), "bsp");
  EXPECT_EQ(ModeText(done.modes[0].to()), "ssp:3");
  EXPECT_EQ(done.modes[0].reason(), "asked for by a user");
  EXPECT_EQ(done.modes[0].seconds(), 2);
  EXPECT_THAT(done.log,
              ElementsAre(HasSubstr("the mode has changed from bsp to ssp:3 at "
                                    "step 12: the workers stood still for at "
                                    "most 1.5 ms")));
  EXPECT_EQ(ViewNow().entered(), 1);
  EXPECT_NE(ViewFor(done, Worker(0)), nullptr);
  EXPECT_EQ(core_->Summary().mode_changes(), 1);
  ASSERT_EQ(core_->Status(now_).mode_changed_size(), 1);
  EXPECT_EQ(ModeText(core_->Status(now_).mode_changed(0).to()), "ssp:3");
}

TEST_F(ModeTest, ARepeatedCallChangesTheModeOnce) {
  StartJob();
  const CoordinatorCore::Effects first = Call(kUser, 0, 9, Setting("asp"));
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  Enter(1, 12);
  const uint64_t number = ViewNow().number();
  const CoordinatorCore::Effects again = Call(kUser, 0, 9, Setting("asp"));
  EXPECT_EQ(ReplyIn(again).SerializeAsString(),
            ReplyIn(first).SerializeAsString());
  EXPECT_EQ(ViewNow().number(), number);
}

TEST_F(ModeTest, AModeThatCannotBeIsRefusedWithTheReason) {
  const auto why = [&](const std::function<void(wire::Call&)>& fill,
                       wire::Code code = wire::REJECTED) {
    const wire::CallReply reply = ReplyIn(Ask(fill));
    EXPECT_EQ(reply.code(), code);
    return reply.error();
  };
  EXPECT_EQ(why(Setting("asp")), "the job does not run");
  StartJob();
  const uint64_t number = ViewNow().number();
  EXPECT_EQ(why(Setting("bsp")), "the mode is bsp already");
  const auto why_not = [&](const sync::Mode& mode) {
    return why(Setting(mode));
  };
  sync::Mode mode;
  mode.mutable_ssp()->set_staleness(-1);
  EXPECT_EQ(why_not(mode),
            "ssp:-1: staleness: value is -1; 0 to 1000000 is required; for no "
            "bound use asp");
  EXPECT_THAT(why_not(sync::Mode()), HasSubstr("no mode is set"));
  // As of a program that has more modes: field 77, a message of 0 bytes.
  sync::Mode unknown;
  ASSERT_TRUE(unknown.ParseFromString(std::string("\xea\x04\0", 3)));
  EXPECT_THAT(why_not(unknown), HasSubstr("not known here"));
  EXPECT_THAT(why([](wire::Call& call) { call.mutable_set_mode(); }),
              HasSubstr("no mode is set"));
  mode.mutable_dssp()->set_min_staleness(4);
  mode.mutable_dssp()->set_max_staleness(3);
  EXPECT_EQ(
      why_not(mode),
      "dssp:4:3: max_staleness: value is 3; at least the smallest bound (4) "
      "is required");
  mode.mutable_dssp()->set_max_staleness(2000000000);
  EXPECT_THAT(why_not(mode),
              HasSubstr("value is 2000000000; 0 to 1000000 is required"));
  for (const int late : {-1, 0, 2}) {
    mode.mutable_backup()->set_workers(late);
    EXPECT_EQ(why_not(mode),
              absl::StrCat("backup:", late, ": workers: value is ", late,
                           "; 1 to 1 is required; there are 2 workers"));
  }
  EXPECT_EQ(ViewNow().number(), number);
  Ask(Setting("ssp:3"));
  EXPECT_THAT(why(Setting("asp"), wire::BUSY),
              HasSubstr("the mode is just changing from bsp to ssp:3"));
  Promise(0, 12);
  Promise(1, 12);
  EXPECT_THAT(why(Setting("asp"), wire::BUSY),
              HasSubstr("the mode changes to ssp:3 at step 12"));
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_EQ(why(Setting("ssp:3")), "the mode is ssp:3 already");
  Leave(0);
  EXPECT_THAT(why(Setting("asp")), HasSubstr("the job is about to end"));
}

TEST_F(ModeTest, OfAModeOnlyWhatIsKnownGoesToOthers) {
  StartJob();
  sync::Mode mode = ModeOf("ssp:3");
  for (google::protobuf::Message* const part :
       std::initializer_list<google::protobuf::Message*>{&mode,
                                                         mode.mutable_ssp()}) {
    part->GetReflection()->MutableUnknownFields(part)->AddLengthDelimited(
        99, std::string(1000, 'x'));
  }
  Ask(Setting(mode));
  EXPECT_EQ(ViewNow().change().mode().SerializeAsString(),
            ModeOf("ssp:3").SerializeAsString());
}

TEST_F(ModeTest, APhaseThatLiesAheadForbidsAChange) {
  options_.config.mutable_sync()->add_phase()->mutable_bsp();
  options_.config.mutable_sync()->mutable_phase(0)->set_until_epoch(0.5);
  options_.config.mutable_sync()->add_phase()->mutable_asp();
  Restart();
  StartJob();
  EXPECT_EQ(ReplyIn(Ask(Setting("ssp:0"))).error(),
            "the mode changes to asp at step 50 (schedule); try again when it "
            "has");
  Enter(0, 50);
  Enter(1, 50);
  EXPECT_EQ(ReplyIn(Ask(Setting("ssp:0"))).code(), wire::OK);
}

TEST_F(ModeTest, WhoDiesBeforePromisingHoldsNothingUp) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(ViewNow().worker_size(), 1);
  EXPECT_TRUE(ViewNow().has_change()) << "what it has left at shards is open";
  TellReached(13);
  ASSERT_EQ(ViewNow().phase_size(), 2);
  EXPECT_EQ(ViewNow().phase(1).from(), 13);
}

TEST_F(ModeTest, WhoDiesAfterPromisingHoldsNothingUp) {
  StartJob();
  Ask(Setting("asp"));
  Promise(1, 50);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_TRUE(ViewNow().has_change());
  TellReached(5);
  Promise(0, 12);
  ASSERT_EQ(ViewNow().phase_size(), 2);
  EXPECT_EQ(ViewNow().phase(1).from(), 12);
}

TEST_F(ModeTest, AServerWhoseStatisticsAreUnfitSaysHowFarItsShardsAre) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  Pass(absl::Seconds(6), {Worker(1)});
  run::ServerStats stats;
  stats.set_seen_view(ViewNow().number());
  stats.set_reached_clock(13);
  Tell(0, stats);
  stats.set_index(1);
  stats.set_io_utilisation(-1);
  EXPECT_TRUE(ViewNow().has_change());
  EXPECT_THAT(Tell(1, stats).log,
              testing::Contains(HasSubstr("its figures do not count")));
  ASSERT_EQ(ViewNow().phase_size(), 2);
  EXPECT_EQ(ViewNow().phase(1).from(), 13);
}

TEST_F(ModeTest, ShardsAreAtNoClockBehindTheEndOfTheJob) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  Pass(absl::Seconds(6), {Worker(1)});
  TellReached(kClockMax);
  EXPECT_FALSE(ViewNow().has_change()) << "no step is left for it";
  EXPECT_EQ(ViewNow().phase_size(), 1);
}

TEST_F(ModeTest, WhoDiesBetweenTheFenceAndItsArrivalHoldsNothingUp) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  ChangeTo("bsp", 12);
  Arrive(0, 12);
  EXPECT_EQ(ViewNow().arrived(), 0);
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_EQ(ViewNow().arrived(), 12);
  const CoordinatorCore::Effects done = Enter(0, 12);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_EQ(done.modes[0].workers(), 1);
}

TEST_F(ModeTest, WhoIsFencedHasNoSayInAChange) {
  StartJob();
  Ask(Setting("asp"));
  const uint64_t change = ViewNow().change().id();
  Pass(absl::Seconds(6), {Worker(1)});
  const CoordinatorCore::Effects late =
      Call(Worker(1), workers_[1], 77, [&](wire::Call& call) {
        call.mutable_step_limit()->set_change(change);
        call.mutable_step_limit()->set_clock(90);
      });
  EXPECT_EQ(AnswerTo(1, late), "FENCED");
  TellReached(5);
  Promise(0, 12);
  EXPECT_EQ(ViewNow().phase(1).from(), 12);
}

TEST_F(ModeTest, LateAndRepeatedCallsAreAnsweredAndChangeNothing) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  Ask(Setting("ssp:0"));
  const uint64_t change = ViewNow().change().id();
  Promise(0, 12);
  Promise(1, 12);
  for (const int rank : {0, 1}) Arrive(rank, 12);
  for (const int rank : {0, 1}) Enter(rank, 12);
  const uint64_t number = ViewNow().number();
  for (const int rank : {0, 1}) {
    Say(rank, [=](wire::Call& call) {
      call.mutable_step_limit()->set_change(change);
      call.mutable_step_limit()->set_clock(40);
    });
    Arrive(rank, 12);
    Enter(rank, 12);
  }
  EXPECT_EQ(ViewNow().number(), number);
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  Arrive(0, 100);
  Enter(0, 12);
  EXPECT_EQ(ViewNow().number(), number + 1);
}

TEST_F(ModeTest, AChangeAtTheEndOfTheJobIsDropped) {
  StartJob();
  Ask(Setting("asp"));
  Promise(0, 12);
  const CoordinatorCore::Effects last = Promise(1, 100);
  EXPECT_EQ(ViewNow().phase_size(), 1);
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_NE(ViewFor(last, Worker(0)), nullptr) << "who waits may go on";
  EXPECT_THAT(last.log, ElementsAre(HasSubstr("does not change")));
  EXPECT_EQ(core_->state(), wire::RUNNING);
}

TEST_F(ModeTest, DifferentModelsFailTheJob) {
  StartJob();
  ChangeTo("allreduce", 12);
  Enter(0, 12, 1);
  const CoordinatorCore::Effects effects = Enter(1, 12, 2);
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_THAT(core_->reason(),
              AllOf(HasSubstr("worker 0 has hash 0000000000000001"),
                    HasSubstr("worker 1 has 0000000000000002")));
  EXPECT_NE(ViewFor(effects, Server(1)), nullptr);
}

// ---- Groups -----------------------------------------------------------------

TEST_F(ModeTest, AGroupLastsWhileTheWorkersAreTheSame) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t first = ViewNow().group();
  EXPECT_EQ(first, ViewNow().number());
  AddServer(2);
  ChangeTo("bsp", 12);
  EXPECT_EQ(ViewNow().group(), first);
  Leave(1);
  EXPECT_EQ(ViewNow().group(), first) << "it is done, but there";
  Pass(absl::Seconds(6), {Worker(1)});
  EXPECT_GT(ViewNow().group(), first);
}

TEST_F(ModeTest, AWorkerThatJoinsMakesANewGroup) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Worker(1)});
  const uint64_t without = ViewNow().group();
  Join(Worker(1, 777));
  EXPECT_GT(ViewNow().group(), without);
  EXPECT_EQ(ViewNow().group(), ViewNow().number());
}

TEST_F(ModeTest, LostConnectionsMakeANewGroupOnce) {
  options_.config.mutable_sync()->mutable_allreduce();
  Restart();
  StartJob();
  const uint64_t first = ViewNow().group();
  const CoordinatorCore::Effects effects = Regroup(0, first);
  const uint64_t second = ViewNow().group();
  EXPECT_GT(second, first);
  EXPECT_EQ(second, ViewNow().number());
  EXPECT_NE(ViewFor(effects, Worker(1)), nullptr);
  EXPECT_THAT(effects.log,
              ElementsAre(HasSubstr("worker 0 (pid 4100 on somewhere) has lost "
                                    "its connections")));
  Regroup(1, first);  // It has lost them for the same reason.
  Regroup(0, first);
  EXPECT_EQ(ViewNow().group(), second);
  Regroup(1, second);
  EXPECT_GT(ViewNow().group(), second);
}

TEST_F(ModeTest, WhoComesWhenAllHaveArrivedJoinsAfterTheChange) {
  options_.config.mutable_sync()->mutable_allreduce();
  options_.workers = 3;
  Restart();
  StartJob();
  Pass(absl::Seconds(6), {Worker(2)});
  workers_.pop_back();
  ChangeTo("bsp", 12);
  Arrive(0, 12);
  Arrive(1, 12);
  const PeerId late = Worker(2, 777);
  EXPECT_EQ(Join(late).code(), wire::RETRY);
  EXPECT_EQ(Join(late).error(),
            "the mode is just changing from allreduce to bsp");
  EXPECT_EQ(Join(Server(2)).code(), wire::OK) << "servers do not mind";
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_EQ(Join(late).code(), wire::OK);
  EXPECT_EQ(ViewNow().worker_size(), 3);
}

// ---- The policy -------------------------------------------------------------

class ModePolicyOfTheJobTest : public ModeTest {
 protected:
  ModePolicyOfTheJobTest() {
    steps_total_ = 100000;
    options_.config.mutable_sync()->mutable_auto_()->set_staleness(4);
    options_.config.mutable_limits()->set_lease_ms(5000);
    Restart();
  }
  // Heartbeats of all, one in a second, with the steps that each worker has
  // done, which take it so long.
  CoordinatorCore::Effects Train(int seconds,
                                 const std::vector<double>& step_ms) {
    CoordinatorCore::Effects all;
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      for (size_t s = 0; s < servers_.size(); ++s)
        Heartbeat(Server(static_cast<int>(s)), servers_[s]);
      for (size_t w = 0; w < workers_.size(); ++w) {
        stats_.resize(workers_.size());
        stats_[w].set_clock(stats_[w].clock() + 30);
        stats_[w].set_compute_seconds(stats_[w].compute_seconds() +
                                      30 * step_ms.at(w) / 1000);
        Message message;
        message.header.set_view_number(ViewNow().number());
        message.header.mutable_heartbeat()->set_incarnation(workers_[w]);
        *message.header.mutable_heartbeat()->mutable_worker() = stats_[w];
        const CoordinatorCore::Effects effects =
            Send(Worker(static_cast<int>(w)), message);
        all.log.insert(all.log.end(), effects.log.begin(), effects.log.end());
      }
      CoordinatorCore::Effects effects;
      core_->OnTick(now_, &effects);
      all.log.insert(all.log.end(), effects.log.begin(), effects.log.end());
    }
    return all;
  }
  CoordinatorCore::Effects Automatic() {
    return Ask(
        [](wire::Call& call) { call.mutable_set_mode()->mutable_by_policy(); });
  }
  std::string Policy() { return core_->Status(now_).mode_policy(); }

  std::vector<run::WorkerStats> stats_;
};

// Servers look at gradients, and steps by all-reduce pass them by.
TEST_F(ModeTest, AJobWithABoundOfGradientsStaysOverServers) {
  options_.config.mutable_train()->mutable_gradient_bound();
  options_.config.mutable_train()->mutable_gradient_bound()->set_rms(1);
  Restart();
  StartJob();
  const auto by_policy = [](wire::Call& call) {
    call.mutable_set_mode()->mutable_by_policy();
  };
  for (const auto& set :
       {Setting("allreduce"), std::function<void(wire::Call&)>(by_policy)}) {
    const wire::CallReply reply = ReplyIn(Ask(set));
    EXPECT_EQ(reply.code(), wire::REJECTED);
    EXPECT_THAT(reply.error(), HasSubstr("train.gradient_bound is of gradients "
                                         "that servers apply"));
  }
  ChangeTo("asp", 12);
}

TEST_F(ModePolicyOfTheJobTest, BeginsWithAllReduceAndLeavesItForAStraggler) {
  StartJob();
  EXPECT_EQ(ModeText(ViewNow().phase(0).mode()), "allreduce");
  EXPECT_EQ(Policy(), "has not measured yet");
  EXPECT_THAT(Train(10, {7, 7}).log, IsEmpty());
  const CoordinatorCore::Effects effects = Train(10, {7, 28});
  ASSERT_THAT(effects.log, SizeIs(1));
  EXPECT_THAT(effects.log[0],
              AllOf(HasSubstr("the mode will change from allreduce to ssp:4: "
                              "rank 1 takes "),
                    HasSubstr(" ms a step, the median worker 7.0 ms ("),
                    HasSubstr(" times, bound 1.5) for ")));
  ASSERT_TRUE(ViewNow().has_change());
  EXPECT_EQ(ModeText(ViewNow().change().mode()), "ssp:4");
  EXPECT_THAT(Train(20, {7, 28}).log, IsEmpty()) << "one change at a time";
  Promise(0, 1500);
  Promise(1, 1500);
  Enter(0, 1500);
  const CoordinatorCore::Effects done = Enter(1, 1500);
  ASSERT_EQ(done.modes.size(), 1u);
  EXPECT_THAT(done.modes[0].reason(), HasSubstr("rank 1 takes"));
  EXPECT_THAT(Train(10, {7, 28}).log, IsEmpty());
  EXPECT_THAT(Policy(), HasSubstr("rank 1 takes 28.0 ms a step, the median "
                                  "worker 7.0 ms (4.00 times"));
  EXPECT_THAT(Train(10, {7, 7}).log,
              ElementsAre(HasSubstr("from ssp:4 to allreduce")));
}

TEST_F(ModePolicyOfTheJobTest, AUsersModeSwitchesItOff) {
  StartJob();
  EXPECT_EQ(ReplyIn(Ask(Setting("allreduce"))).text(), "stays allreduce");
  EXPECT_EQ(Policy(), "");
  EXPECT_THAT(Train(20, {7, 28}).log, IsEmpty());
  EXPECT_EQ(ReplyIn(Ask(Setting("allreduce"))).code(), wire::REJECTED);
  EXPECT_EQ(ReplyIn(Automatic()).code(), wire::OK);
  EXPECT_THAT(Train(20, {7, 28}).log,
              ElementsAre(HasSubstr("from allreduce to ssp:4")));
}

TEST_F(ModePolicyOfTheJobTest, AUserSwitchesItOnInAnyJob) {
  options_.config.mutable_sync()->mutable_bsp();
  Restart();
  StartJob();
  EXPECT_EQ(Policy(), "");
  const CoordinatorCore::Effects effects = Automatic();
  EXPECT_EQ(ReplyIn(effects).text(),
            "will change when the workers' step times speak for it");
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("chosen by the policy")));
  EXPECT_THAT(Automatic().log, IsEmpty()) << "it is on already";
  EXPECT_THAT(Train(20, {7, 28}).log,
              ElementsAre(HasSubstr("from bsp to ssp:3")))
      << "with the defaults";
}

TEST_F(ModePolicyOfTheJobTest, PhasesThatLieAheadForbidIt) {
  options_.config.mutable_sync()->clear_auto_();
  options_.config.mutable_sync()->add_phase()->mutable_bsp();
  options_.config.mutable_sync()->mutable_phase(0)->set_until_epoch(0.5);
  options_.config.mutable_sync()->add_phase()->mutable_asp();
  Restart();
  StartJob();
  EXPECT_THAT(ReplyIn(Automatic()).error(),
              HasSubstr("the mode changes to asp at step 50000"));
}

TEST_F(ModePolicyOfTheJobTest, ItSleepsBetweenItsLooks) {
  StartJob();
  Train(2, {7, 28});
  now_ += absl::Milliseconds(500);
  int wakeups = 0;
  CoordinatorCore::Effects effects;
  for (const absl::Time end = now_ + absl::Seconds(4);
       core_->NextWakeup() <= end && wakeups < 100; ++wakeups) {
    now_ = std::max(now_, core_->NextWakeup());
    core_->OnTick(now_, &effects);
  }
  EXPECT_LT(wakeups, 10);
  EXPECT_THAT(effects.log, ElementsAre(HasSubstr("to ssp:4")))
      << "the hold ends without further news";
}

// ---- Modes and placement ----------------------------------------------------

TEST_F(ModeTest, AChangeWaitsForMovesAndOtherMovesForTheChange) {
  options_.shard_elements = 2;
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
  const wire::CallReply reply = ReplyIn(Ask(Setting("asp")));
  EXPECT_EQ(reply.text(),
            "will change from bsp to asp once 1 moves of shards are done");
  EXPECT_FALSE(ViewNow().has_change());
  EXPECT_THAT(ReplyIn(Ask(Moving({4}, 1))).error(),
              HasSubstr("the mode is just changing"));
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty()) << "the other one waits";
  EXPECT_TRUE(ViewNow().has_change());
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  Enter(1, 12);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("2>1.0"));
  EXPECT_EQ(ViewNow().move(0).id(), ViewNow().number());
}

TEST_F(ModeTest, MovesThatWaitDoSoUntilTheServersHaveTheModelAgain) {
  options_.shard_elements = 2;
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  Ask(Setting("allreduce"));
  Done(0);
  Promise(0, 12);
  Promise(1, 12);
  Enter(0, 12);
  Enter(1, 12);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  ChangeTo("asp", 30);
  for (const int rank : {0, 1}) Arrive(rank, 30);
  Enter(0, 30);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty());
  Enter(1, 30);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("2>1.0"));
}

// The coordinator knows how far the workers are from heartbeats, with a delay.
TEST_F(ModeTest, AMoveThatIsUnderWayWhenScheduledAllReduceBeginsComesToItsEnd) {
  options_.shard_elements = 2;
  options_.config.mutable_rebalance()->set_concurrent_moves(1);
  config::Phase& first = *options_.config.mutable_sync()->add_phase();
  first.mutable_bsp();
  first.set_until_epoch(0.2);
  options_.config.mutable_sync()->add_phase()->mutable_allreduce();
  Restart();
  StartJob();
  Ask(Moving({0, 2}, 1));
  ASSERT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0"));
  Enter(0, 20);
  Enter(1, 20);
  ASSERT_EQ(ViewNow().entered(), 1);
  EXPECT_THAT(MovesOf(ViewNow()), ElementsAre("0>1.0")) << "never taken back";
  Done(0);
  EXPECT_THAT(MovesOf(ViewNow()), IsEmpty()) << "and no other one begins";
  EXPECT_EQ(ViewNow().owner_server(0), 1);
}

TEST_F(ModeTest, TheDeathOfTheServerThatAShardWasToMoveToLetsTheChangeBegin) {
  StartJob();
  AddServer(2);
  Ask(Moving({0}, 2));
  Ask(Setting("asp"));
  EXPECT_FALSE(ViewNow().has_change());
  Pass(absl::Seconds(6), {Server(2)});
  EXPECT_TRUE(ViewNow().has_change());
}

}  // namespace slackline::coordinator_core_modes_test
