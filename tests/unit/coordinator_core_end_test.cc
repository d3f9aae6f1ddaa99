// Goal: what ends a job, what its summary says, and that all are told. Method:
// a job of a few members, played by hand on virtual time.
#include <algorithm>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator_core_fixture.h"

namespace slackline::coordinator_core_end_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// ---- The end ----------------------------------------------------------------

TEST_F(CoordinatorCoreTest, FinishesWhenAllAreDoneAndTheChiefHasReported) {
  StartJob();
  Leave(0);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  EXPECT_TRUE(core_->Status(now_).view().worker(0).done());
  Leave(1);
  EXPECT_EQ(core_->state(), wire::RUNNING) << "the result is missing";
  const CoordinatorCore::Effects effects = Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  ASSERT_NE(ViewFor(effects, Server(1)), nullptr);
  EXPECT_EQ(core_->Summary().steps(), 7);
}

TEST_F(CoordinatorCoreTest, AUserMayStopTheJob) {
  StartJob();
  const PeerId user{.kind = PeerId::Kind::kObserver, .instance = 5};
  EXPECT_THAT(
      Answers(Call(user, 0, 1,
                   [](wire::Call& call) {
                     call.mutable_stop()->set_reason("stopped by the user");
                   })),
      ElementsAre("observer.0.5:1 OK"));
  EXPECT_EQ(core_->state(), wire::FAILED);
  EXPECT_EQ(core_->reason(), "stopped by the user");
  EXPECT_THAT(core_->Summary().about(), ElementsAre());
  EXPECT_EQ(Join(Worker(0, 999)).code(), wire::REJECTED);
}

TEST_F(CoordinatorCoreTest, AStopIsAboutTheMemberThatCannotGoOn) {
  StartJob();
  Call(Worker(1), workers_[1], 40, [](wire::Call& call) {
    call.mutable_stop()->set_reason("worker 1 has failed");
  });
  EXPECT_EQ(core_->Summary().cause(), "STOPPED");
  EXPECT_THAT(core_->Summary().about(), ElementsAre("worker 1"));
}

// With the number of a member, but not as that one.
TEST_F(CoordinatorCoreTest, AStopInAnothersNameStopsNothing) {
  StartJob();
  const PeerId stranger{.kind = PeerId::Kind::kObserver, .instance = 5};
  uint64_t call_id = 0;
  for (const PeerId& from : {stranger, Worker(0)}) {
    for (const Incarnation as : {Incarnation{999}, workers_[1]}) {
      for (const bool checkpoint : {false, true}) {
        const auto answers =
            Answers(Call(from, as, ++call_id, [checkpoint](wire::Call& call) {
              if (checkpoint) {
                call.mutable_suspend();
              } else {
                call.mutable_stop();
              }
            }));
        ASSERT_EQ(answers.size(), 1u);
        EXPECT_THAT(answers[0], HasSubstr("FENCED"));
        EXPECT_EQ(core_->state(), wire::RUNNING);
      }
    }
  }
}

TEST_F(CoordinatorCoreTest, AUserMayEndTheJobEarly) {
  steps_total_ = 100;
  StartJob();
  const auto finish = [](wire::Call& call) {
    call.mutable_finish()->set_reason("enough");
  };
  EXPECT_THAT(Answers(Call(kUser, 0, 1, finish)),
              ElementsAre("observer.0.5:1 OK"));
  ASSERT_TRUE(core_->view().change().has_ending());
  for (const int rank : {0, 1}) {
    Call(Worker(rank), workers_[rank], 40, [&](wire::Call& call) {
      call.mutable_step_limit()->set_change(core_->view().change().id());
      call.mutable_step_limit()->set_clock(7 - rank);
    });
  }
  EXPECT_EQ(core_->view().end_clock(), 7);
  // Whoever asks once more, or when the end is near, is told that it comes.
  EXPECT_THAT(Answers(Call(kUser, 0, 2, finish)),
              ElementsAre("observer.0.5:2 OK"));
  Leave(0);
  Leave(1);
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.cause(), "FINISHED_EARLY");
  EXPECT_EQ(summary.reason(), "ended early, at step 7 of 100: enough");
  EXPECT_EQ(summary.stopped(), "at step 7 of 100: enough");
  EXPECT_EQ(summary.steps(), 7);
  EXPECT_FALSE(summary.has_diverged_at_step());
}

TEST_F(CoordinatorCoreTest, AJobThatEndsSoonAnywayIsNotEndedEarly) {
  StartJob();  // It has few steps.
  Leave(0);
  const CoordinatorCore::Effects effects =
      Call(kUser, 0, 1, [](wire::Call& call) { call.mutable_finish(); });
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::CallReply& reply = effects.sends[0].message.header.call_reply();
  EXPECT_EQ(reply.code(), wire::OK) << "nobody should stop it for that";
  EXPECT_THAT(reply.text(), HasSubstr("ends by itself at step "));
  EXPECT_FALSE(core_->view().has_change());
}

TEST_F(CoordinatorCoreTest, WhoseStepsAreDoneWaitsForItsPrograms) {
  StartJob();
  HeartbeatTrained(0);
  HeartbeatTrained(1);
  const CoordinatorCore::Effects effects =
      Call(kUser, 0, 1, [](wire::Call& call) { call.mutable_finish(); });
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::CallReply& reply = effects.sends[0].message.header.call_reply();
  EXPECT_EQ(reply.code(), wire::OK);
  EXPECT_THAT(reply.text(), HasSubstr("has done all its steps, 7, and ends"));
}

TEST_F(CoordinatorCoreTest, AJobThatDoesNotRunIsNotEndedEarly) {
  Join(Server(0));
  const CoordinatorCore::Effects effects =
      Call(kUser, 0, 1, [](wire::Call& call) { call.mutable_finish(); });
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].message.header.call_reply().error(),
            "the job does not run");
}

TEST_F(CoordinatorCoreTest, AWorkersTrainingThatDivergesIsACauseOfItsOwn) {
  StartJob();
  const auto stop = [](wire::Call& call) {
    call.mutable_stop()->set_reason("the loss is nan");
    wire::Diverged& diverged = *call.mutable_stop()->mutable_diverged();
    diverged.set_clock(41);
    diverged.add_worker(1);
    diverged.add_worker(-1);  // There is none.
  };
  Call(Worker(1), workers_[1], 40, stop);
  EXPECT_EQ(core_->state(), wire::FAILED);
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.cause(), "DIVERGED");
  EXPECT_EQ(summary.diverged_at_step(), 41);
  EXPECT_THAT(summary.about(), ElementsAre("worker 1"));
}

TEST_F(CoordinatorCoreTest, WhoIsNoWorkerDoesNotSayThatTheTrainingDiverged) {
  StartJob();
  Call(kUser, 0, 1, [](wire::Call& call) {
    call.mutable_stop()->mutable_diverged()->set_clock(41);
  });
  EXPECT_EQ(core_->Summary().cause(), "STOPPED");
  EXPECT_FALSE(core_->Summary().has_diverged_at_step());
}

TEST_F(CoordinatorCoreTest, TheSummaryListsProgramsAndTheHashOfTheExamples) {
  options_.build.set_version("1.2.0");
  options_.build.set_commit("abc");
  Restart();
  const auto build = [](const std::string& program, const std::string& commit) {
    wire::Build built;
    built.set_program(program);
    built.set_version("1.2.0");
    built.set_commit(commit);
    built.set_build_id("0123");
    return built;
  };
  std::vector<std::string> warnings;
  for (const PeerId& peer : {Server(0), Server(1), Worker(0), Worker(1)}) {
    wire::JoinRequest join = JoinOf(peer);
    const bool worker = join.role() == wire::JoinRequest::WORKER;
    *join.mutable_build() =
        worker ? build("python3", "abc")
               : build("slackline_server", peer.index == 1 ? "def" : "abc");
    if (worker) join.set_data_hash("5d41");
    const CoordinatorCore::Effects effects = SendJoin(peer, join);
    warnings.insert(warnings.end(), effects.warnings.begin(),
                    effects.warnings.end());
  }
  ASSERT_EQ(core_->state(), wire::RUNNING);
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("server 1 is slackline_server 1.2.0 (def), "
                                    "the coordinator")));
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.data_hash(), "5d41");
  ASSERT_THAT(summary.program(), SizeIs(3));
  EXPECT_EQ(summary.program(2).program(), "python3");
  EXPECT_EQ(summary.program(2).workers(), 2);
  EXPECT_EQ(summary.program(2).servers(), 0);
  EXPECT_EQ(summary.program(2).build_id(), "0123");
}

TEST_F(CoordinatorCoreTest, TheSummaryHasEachRanksLastIncarnation) {
  StartJob();
  const auto beat = [&](const PeerId& peer, Incarnation incarnation,
                        int64_t clock, double wait_seconds) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(incarnation);
    heartbeat.mutable_worker()->set_clock(clock);
    heartbeat.mutable_worker()->set_wait_seconds(wait_seconds);
    heartbeat.mutable_worker()->set_bytes_pushed(10 * clock);
    Send(peer, message);
  };
  beat(Worker(0), workers_[0], 6, 0.5);
  beat(Worker(1), workers_[1], 4, 1.5);
  Pass(absl::Seconds(7), {Worker(1)});
  const Incarnation again = Join(Worker(1, 999)).incarnation();
  beat(Worker(1, 999), again, 5, 0.25);
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(servers_[1]);
  heartbeat.mutable_server()->set_pushes(20);
  heartbeat.mutable_server()->set_duplicates(1);
  heartbeat.mutable_server()->set_applied(9);
  heartbeat.mutable_server()->set_held(2);
  heartbeat.mutable_server()->set_dropped(3);
  for (const int rank : {0, 1}) {
    run::NonfiniteGradients& count =
        *heartbeat.mutable_server()->add_nonfinite();
    count.set_rank(rank);
    count.set_gradients(2 + 2 * rank);
  }
  heartbeat.mutable_server()->mutable_missed_clocks()->add_bin(8);
  Send(Server(1), message);

  const run::Summary summary = core_->Summary();
  ASSERT_EQ(summary.worker_size(), 2);
  EXPECT_EQ(summary.worker(0).rank(), 0);
  EXPECT_EQ(summary.worker(0).steps(), 6);
  EXPECT_EQ(summary.worker(1).rank(), 1);
  EXPECT_EQ(summary.worker(1).steps(), 5);
  EXPECT_EQ(summary.worker(1).wait_seconds(), 0.25);
  EXPECT_EQ(summary.bytes_pushed(), 60u + 40u + 50u) << "all incarnations";
  EXPECT_EQ(summary.pushes(), 20u);
  EXPECT_EQ(summary.duplicates(), 1u);
  EXPECT_EQ(summary.applied(), 9u);
  EXPECT_EQ(summary.held(), 2u);
  EXPECT_EQ(summary.dropped(), 3u);
  EXPECT_EQ(summary.nonfinite(), 6u);
  EXPECT_EQ(summary.worker(0).nonfinite(), 2u);
  EXPECT_EQ(summary.worker(1).nonfinite(), 4u);
  EXPECT_THAT(summary.missed_clocks_histogram(), ElementsAre(8));
}

TEST_F(CoordinatorCoreTest, ASlowWorkerIsNamedInTheLogInStatusAndInTheSummary) {
  StartJob();
  std::vector<std::string> log;
  const auto beat = [&](int rank, int64_t steps, double loading) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[rank]);
    run::WorkerStats& stats = *heartbeat.mutable_worker();
    stats.set_clock(steps);
    stats.mutable_phase_seconds()->set_loading(loading * steps);
    stats.mutable_recent()->set_steps(20 + steps);
    stats.mutable_recent()->set_count(20);
    stats.mutable_recent()->mutable_mean()->set_loading(loading);
    stats.mutable_recent()->mutable_mean()->set_computing(0.01);
    const CoordinatorCore::Effects effects = Send(Worker(rank), message);
    log.insert(log.end(), effects.log.begin(), effects.log.end());
  };
  for (const int steps : {5, 6, 7}) {
    for (const int rank : {0, 1}) beat(rank, steps, rank == 1 ? 0.03 : 0.01);
    now_ += absl::Seconds(1);
  }
  const wire::StatusReply status = core_->Status(now_);
  ASSERT_EQ(status.straggler_size(), 1);
  const std::string sentence =
      "worker 1 is 2.0 times slower than the others since step 0: loading "
      "takes 30 ms, theirs 10 ms";
  EXPECT_EQ(status.straggler(0).sentence(), sentence);
  EXPECT_EQ(status.slowness_size(), 2);
  EXPECT_EQ(std::count(log.begin(), log.end(), sentence), 1) << "said once";
  const run::Summary summary = core_->Summary();
  EXPECT_THAT(summary.stragglers(), ElementsAre(sentence));
  EXPECT_NEAR(summary.worker(1).phase_seconds().loading(), 0.21, 1e-9);
}

// ---- Stop rules -------------------------------------------------------------

class StopRuleTest : public CoordinatorCoreTest {
 protected:
  StopRuleTest() { steps_total_ = 1000; }

  void StartWith(const config::Stop& stop) {
    *options_.config.mutable_train()->mutable_stop() = stop;
    Restart();
    now_ += absl::Seconds(3);
    StartJob();
  }
  // A heartbeat of worker 0 with an evaluation that began `ago`.
  CoordinatorCore::Effects Evaluate(int64_t step, double loss, double accuracy,
                                    absl::Duration ago = absl::ZeroDuration()) {
    Message message;
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[0]);
    heartbeat.set_first_record(records_++);
    heartbeat.mutable_worker()->set_clock(step + 1);
    run::MetricRecord& record = *heartbeat.add_record();
    record.set_kind(run::MetricRecord::EVAL);
    record.set_step(step);
    record.set_loss(loss);
    record.set_accuracy(accuracy);
    record.set_seconds(absl::ToDoubleSeconds(ago));
    record.set_model_sha256("abc");
    return Send(Worker(0), message);
  }

 private:
  uint64_t records_ = 0;
};

TEST_F(StopRuleTest, AnAccuracyThatIsReachedFinishesTheJob) {
  config::Stop stop;
  stop.set_test_accuracy(0.975);
  StartWith(stop);
  now_ += absl::Seconds(10);
  Evaluate(100, 0.09, 0.9749);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  now_ += absl::Seconds(3);
  const CoordinatorCore::Effects effects =
      Evaluate(412, 0.08, 0.9756, absl::Milliseconds(500));
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_THAT(effects.records, SizeIs(1)) << "the evaluation is kept";
  for (const PeerId& peer : {Server(0), Server(1), Worker(0), Worker(1)}) {
    ASSERT_NE(ViewFor(effects, peer), nullptr);
    EXPECT_EQ(ViewFor(effects, peer)->state(), wire::FINISHED);
  }
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.stopped(),
            "test accuracy 0.9756 reached 0.975 at step 412 after 12.5 s");
  EXPECT_EQ(summary.steps(), 412);
  EXPECT_DOUBLE_EQ(summary.test_accuracy(), 0.9756);
  EXPECT_DOUBLE_EQ(summary.test_loss(), 0.08);
  EXPECT_DOUBLE_EQ(summary.wall_seconds(), 12.5) << "when the model was there";
  EXPECT_EQ(summary.model_sha256(), "abc");
}

TEST_F(StopRuleTest, ALossThatIsReachedFinishesTheJobOnce) {
  config::Stop stop;
  stop.set_test_loss(0.1);
  StartWith(stop);
  now_ += absl::Seconds(1);
  Evaluate(10, 0.11, 0.99);
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Evaluate(20, 0.1, 0.5);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_THAT(Evaluate(30, 0.01, 0.99).records, SizeIs(1));
  EXPECT_EQ(core_->Summary().stopped(),
            "test loss 0.1 reached 0.1 at step 20 after 1.0 s");
  EXPECT_EQ(core_->Summary().steps(), 20);
}

TEST_F(StopRuleTest, TheTimeIsUpAtTheSmallestClock) {
  config::Stop stop;
  stop.set_wall_seconds(20);
  stop.set_test_accuracy(1);
  StartWith(stop);
  const absl::Time start = now_;
  Evaluate(40, 0.5, 0.75);
  Message message;
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat.set_incarnation(workers_[1]);
  heartbeat.mutable_worker()->set_clock(33);
  Send(Worker(1), message);
  // Fast forward; NextWakeup() names the time by itself.
  CoordinatorCore::Effects effects;
  while (core_->state() == wire::RUNNING && now_ < start + absl::Hours(1)) {
    for (int i : {0, 1}) Heartbeat(Server(i), servers_[i]);
    for (int i : {0, 1}) Heartbeat(Worker(i), workers_[i]);
    now_ = core_->NextWakeup();
    core_->OnTick(now_, &effects);
  }
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_LE(now_, start + absl::Milliseconds(20001));
  const run::Summary summary = core_->Summary();
  EXPECT_EQ(summary.stopped(),
            "train.stop.wall_seconds 20 had passed, the last evaluation was "
            "of step 40 after 20.0 s");
  EXPECT_EQ(summary.steps(), 33);
  heartbeat.mutable_worker()->set_clock(35);
  Send(Worker(1), message);
  EXPECT_EQ(core_->Summary().steps(), 35) << "known after the end only";
  EXPECT_DOUBLE_EQ(summary.test_accuracy(), 0.75);
  EXPECT_EQ(summary.model_sha256(), "");
}

TEST_F(StopRuleTest, NoRuleHoldsOnceAllStepsAreDone) {
  config::Stop stop;
  stop.set_wall_seconds(20);
  stop.set_test_accuracy(0.9);
  StartWith(stop);
  Leave(0);
  Leave(1);
  Evaluate(1000, 0.1, 0.99);
  Pass(absl::Seconds(30), {});
  EXPECT_EQ(core_->state(), wire::RUNNING) << "the chief writes the model";
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_EQ(core_->Summary().stopped(), "");
}

// Programs may do something else after their last step.
TEST_F(StopRuleTest, NeitherRulesNorTheTimeCountOnceAllStepsAreDone) {
  config::Stop stop;
  stop.set_wall_seconds(20);
  StartWith(stop);
  Pass(absl::Seconds(10), {});
  HeartbeatTrained(0);
  now_ += absl::Seconds(2);
  HeartbeatTrained(1);
  Pass(absl::Seconds(30), {});
  EXPECT_EQ(core_->state(), wire::RUNNING);
  Leave(0);
  Leave(1);
  Leave(0, /*with_result=*/true);
  EXPECT_EQ(core_->state(), wire::FINISHED);
  EXPECT_EQ(core_->Summary().stopped(), "");
  EXPECT_NEAR(core_->Summary().wall_seconds(), 12, 0.5);
}

// ---- All know the end -------------------------------------------------------

TEST_F(CoordinatorCoreTest, StaysUntilAllKnowTheEnd) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_FALSE(core_->Over(now_));
  const uint64_t number = core_->Status(now_).view().number();
  for (int i : {0, 1}) Heartbeat(Server(i), servers_[i], number);
  Heartbeat(Worker(0), workers_[0], number);
  EXPECT_FALSE(core_->Over(now_));
  Heartbeat(Worker(1), workers_[1], number);
  EXPECT_TRUE(core_->Over(now_));
}

// A process that was started again, and whose place is held by the one before.
TEST_F(CoordinatorCoreTest, StaysUntilWhoWaitsForAPlaceKnowsTheEnd) {
  StartJob();
  PeerId again = Server(0);
  again.instance = 999;
  EXPECT_EQ(Join(again).code(), wire::RETRY);
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  const uint64_t number = core_->Status(now_).view().number();
  for (int i : {0, 1}) {
    Heartbeat(Server(i), servers_[i], number);
    Heartbeat(Worker(i), workers_[i], number);
  }
  EXPECT_FALSE(core_->Over(now_));
  now_ += absl::Milliseconds(200);
  core_->OnTick(now_, &effects);
  const wire::JoinReply reply = Join(again);
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_EQ(reply.obstacle(), wire::JoinReply::JOB_ENDED);
  EXPECT_EQ(reply.end().cause(), core_->view().end().cause());
  EXPECT_EQ(reply.end().reason(), "enough");
  EXPECT_FALSE(core_->Over(now_)) << "the answer may be lost";
  TickUntil(now_ + absl::Milliseconds(1001), &effects);
  EXPECT_TRUE(core_->Over(now_));
}

// The server of its process has failed before it had joined, for example.
TEST_F(CoordinatorCoreTest, WaitsForNobodyIfItsProcessStopsAndNobodyHasJoined) {
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_TRUE(core_->Over(now_));
}

TEST_F(CoordinatorCoreTest, WhoComesFromAnotherJobDoesNotHearOfTheEnd) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  PeerId again = Server(0);
  again.instance = 999;
  wire::JoinRequest join = JoinOf(again);
  join.set_config_hash("another");
  const wire::JoinReply reply = Join(again, join);
  EXPECT_EQ(reply.code(), wire::REJECTED);
  EXPECT_EQ(reply.obstacle(), wire::JoinReply::OBSTACLE_UNSPECIFIED);
  EXPECT_FALSE(reply.has_end());
}

TEST_F(CoordinatorCoreTest,
       StaysForALeaseIfSomebodyDoesNotSayThatItKnowsTheEnd) {
  StartJob();
  CoordinatorCore::Effects effects;
  core_->Fail("enough", now_, &effects);
  EXPECT_FALSE(core_->Over(now_ + absl::Seconds(60)))
      << "it did not run, and nobody could reach it";
  absl::Time now = now_;
  while (!core_->Over(now) && now < now_ + absl::Seconds(60)) {
    now = core_->NextWakeup();
    core_->OnTick(now, &effects);
  }
  EXPECT_EQ(now, now_ + absl::Milliseconds(5001)) << "they had their time";
}

}  // namespace slackline::coordinator_core_end_test
