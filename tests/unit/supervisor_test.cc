#include "tools/cli/members/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

namespace slackline::supervisor_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr JobProcess kServer0{.worker = false, .index = 0};
constexpr JobProcess kServer1{.worker = false, .index = 1};
constexpr JobProcess kServer2{.worker = false, .index = 2};
constexpr JobProcess kWorker0{.worker = true, .index = 0};
constexpr JobProcess kWorker1{.worker = true, .index = 1};
constexpr ExitStatus kGood{};
constexpr ExitStatus kCodeOne{.code = 1};
constexpr ExitStatus kKilled{.signal = SIGKILL};

// Two servers, or three where any of them takes over, and two workers on
// virtual time. A coordinator that is there answers four times a second.
class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() { Start({}); }

  void Start(Supervisor::Options options) {
    options.servers = options.any_server_takes_over ? 3 : 2;
    options.workers = 2;
    takes_over_ = options.any_server_takes_over;
    supervisor_ = std::make_unique<Supervisor>(options, now_);
  }
  void SetState(wire::JobState state, const std::string& reason = "") {
    coordinator_ = true;
    status_.mutable_view()->set_state(state);
    status_.mutable_view()->mutable_end()->set_reason(reason);
  }
  // The coordinator is in this server from now on, and answers.
  void SetHost(const JobProcess& server) {
    coordinator_ = true;
    status_.set_coordinator_server(server.index);
  }
  void Exit(const JobProcess& member, ExitStatus status,
            const std::string& error_line = "") {
    if (member == supervisor_->host()) coordinator_ = false;
    supervisor_->OnExit({.member = member,
                         .pid = 7,
                         .status = status,
                         .error_line = error_line},
                        now_);
  }
  void ExitAll(ExitStatus status) {
    for (const JobProcess& member : {kServer0, kServer1, kWorker0, kWorker1}) {
      Exit(member, status);
    }
  }
  // Effects of all that happens in `duration`, together.
  Supervisor::Effects Pass(absl::Duration duration) {
    Supervisor::Effects all;
    const absl::Time end = now_ + duration;
    for (; now_ < end; now_ += absl::Milliseconds(50)) {
      if (coordinator_ && now_ >= next_status_) {
        supervisor_->OnStatus(status_, now_);
        next_status_ = now_ + absl::Milliseconds(250);
      }
      const Supervisor::Effects some = supervisor_->Tick(now_);
      const auto append = [](const auto& from, auto* to) {
        to->insert(to->end(), from.begin(), from.end());
      };
      append(some.deaths, &all.deaths);
      append(some.restarts, &all.restarts);
      append(some.notes, &all.notes);
      if (!some.stop_reason.empty()) all.stop_reason = some.stop_reason;
      if (!some.finish_reason.empty()) all.finish_reason = some.finish_reason;
      if (!some.suspend_reason.empty())
        all.suspend_reason = some.suspend_reason;
      if (some.signal_others != 0) all.signal_others = some.signal_others;
      if (some.signal_host != 0) all.signal_host = some.signal_host;
      for (const JobProcess& member : some.restarts) {
        if (member == supervisor_->host() && !takes_over_)
          coordinator_ = starts_;
        supervisor_->OnRestart(member, starts_, now_);
      }
    }
    return all;
  }

  absl::Time now_ = absl::UnixEpoch();
  absl::Time next_status_ = absl::UnixEpoch();
  bool coordinator_ = false;
  bool starts_ = true;       // Whoever is started again.
  bool takes_over_ = false;  // Any server.
  wire::StatusReply status_;
  std::unique_ptr<Supervisor> supervisor_;
};

// It had got over the worker's death, and ends with the coordinator.
TEST_F(SupervisorTest, TheReasonIsTheDeathThatEndedTheJob) {
  for (const int restarts : {0, 1}) {
    Start({.worker_restarts_max = restarts});
    SetState(wire::RUNNING);
    Pass(absl::Seconds(2));
    Exit(kWorker1, kKilled);
    Pass(absl::Seconds(30));
    Exit(kServer0, kKilled);
    Pass(absl::Seconds(5));
    EXPECT_EQ(supervisor_->Reason(),
              "server 0 (pid 7) was killed by signal 9 (SIGKILL)");
  }
}

TEST_F(SupervisorTest, AFinishedJobIsOverWhenAllProcessesAreGone) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(10));
  EXPECT_FALSE(supervisor_->Over());
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  ExitAll(kGood);
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, Server0ThatExitsWellHasFinishedTheJob) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  ExitAll(kGood);  // Between two statuses.
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, OtherProcessesThatExitWellDoNotFinishIt) {
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1}) {
    Exit(member, kGood);
  }
  Exit(kServer0, kCodeOne);
  EXPECT_THAT(Pass(absl::Seconds(2)).deaths, SizeIs(1));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_FALSE(supervisor_->finished());
  EXPECT_EQ(supervisor_->Reason(), "server 0 (pid 7) exited with code 1");
}

TEST_F(SupervisorTest, AWorkerThatDiesWhileTheJobRunsIsReportedOnce) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kWorker1, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(30));
  ASSERT_THAT(effects.deaths, SizeIs(1));
  EXPECT_EQ(effects.deaths[0].ToString(),
            "worker 1 (pid 7) was killed by signal 9 (SIGKILL)");
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_EQ(effects.stop_reason, "") << "the coordinator decides";
  EXPECT_EQ(effects.signal_others, 0);
}

TEST_F(SupervisorTest, ADeadWorkerIsStartedAgainAsOftenAsAllowed) {
  Start({.worker_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  for (int i = 0; i < 2; ++i) {
    Exit(kWorker1, kCodeOne);
    EXPECT_THAT(Pass(absl::Seconds(5)).restarts,
                testing::ElementsAre(kWorker1));
  }
  Exit(kWorker1, kCodeOne);
  EXPECT_THAT(Pass(absl::Seconds(5)).restarts, IsEmpty());
  Exit(kWorker0, kCodeOne);
  EXPECT_THAT(Pass(absl::Seconds(5)).restarts, testing::ElementsAre(kWorker0))
      << "each worker has its own";
}

TEST_F(SupervisorTest, ADeadServerIsNotStartedAgainAsAWorkerIs) {
  Start({.worker_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(2));
  EXPECT_THAT(effects.deaths, SizeIs(1));
  EXPECT_THAT(effects.restarts, IsEmpty());
}

TEST_F(SupervisorTest, ADeadServerIsStartedAgainAsOftenAsAllowed) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  for (const ExitStatus& status : {kKilled, kCodeOne}) {
    Exit(kServer1, status);
    const Supervisor::Effects effects = Pass(absl::Seconds(5));
    EXPECT_THAT(effects.deaths, SizeIs(1)) << "it is reported all the same";
    EXPECT_THAT(effects.restarts, testing::ElementsAre(kServer1));
  }
  Exit(kServer1, kKilled);
  EXPECT_THAT(Pass(absl::Seconds(5)).restarts, IsEmpty());
  Exit(kWorker1, kKilled);
  EXPECT_THAT(Pass(absl::Seconds(5)).restarts, IsEmpty())
      << "workers have a number of their own";
}

TEST_F(SupervisorTest, AServerIsStartedAgainOnlyWhileTheJobRuns) {
  Start({.server_restarts_max = 2});
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kCodeOne, "the port is taken");
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_THAT(effects.stop_reason, HasSubstr("before the job had started"));
}

TEST_F(SupervisorTest, AServerThatTakesTheJobAlongIsNotStartedAgain) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kKilled);
  SetState(wire::FAILED, "server 1 is dead");
  EXPECT_THAT(Pass(absl::Seconds(1)).restarts, IsEmpty());
}

TEST_F(SupervisorTest, TheKilledServerWithTheCoordinatorIsStartedAgain) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  for (int i = 0; i < 2; ++i) {
    Exit(kServer0, kKilled);
    const Supervisor::Effects effects = Pass(absl::Milliseconds(50));
    EXPECT_THAT(effects.deaths, SizeIs(1));
    EXPECT_THAT(effects.restarts, testing::ElementsAre(kServer0)) << "at once";
    EXPECT_EQ(Pass(absl::Seconds(30)).signal_others, 0);
  }
  Exit(kServer0, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(4));
  EXPECT_THAT(effects.restarts, IsEmpty()) << "as often as allowed";
  EXPECT_EQ(effects.signal_others, SIGTERM);
  EXPECT_EQ(effects.signal_host, 0) << "it is gone";
}

TEST_F(SupervisorTest, AJobThatGoesOnWithAnotherCoordinatorFinishes) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  Pass(absl::Seconds(5));
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  EXPECT_FALSE(supervisor_->Over());
  ExitAll(kGood);
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
  EXPECT_TRUE(supervisor_->lost_a_process());
}

TEST_F(SupervisorTest, ACoordinatorThatIsKilledAtTheEndWritesItsSummaryYet) {
  Start({.server_restarts_max = 1});
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1})
    Exit(member, kGood);
  Exit(kServer0, kKilled);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).restarts,
              testing::ElementsAre(kServer0));
  EXPECT_FALSE(supervisor_->Over());
  Exit(kServer0, kGood);
  Pass(absl::Milliseconds(50));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, AnyHostThatIsKilledAtTheEndWritesItsSummaryYet) {
  Start({.server_restarts_max = 1, .any_server_takes_over = true});
  SetHost(kServer2);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  for (const JobProcess& member : {kServer0, kServer1, kWorker0, kWorker1})
    Exit(member, kGood);
  Exit(kServer2, kKilled);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).restarts,
              testing::ElementsAre(kServer2));
  Exit(kServer2, kGood);
  Pass(absl::Milliseconds(50));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

// Its job has failed, or it cannot go on: the next one would fare as it did.
TEST_F(SupervisorTest, ACoordinatorThatEndsByItselfIsNotStartedAgain) {
  for (const ExitStatus& status : {kGood, kCodeOne, ExitStatus{.code = 75}}) {
    Start({.server_restarts_max = 2});
    SetState(wire::RUNNING);
    Pass(absl::Seconds(1));
    Exit(kServer0, status);
    const Supervisor::Effects effects = Pass(absl::Seconds(4));
    EXPECT_THAT(effects.restarts, IsEmpty());
    EXPECT_EQ(effects.signal_others, SIGTERM);
  }
}

TEST_F(SupervisorTest, BeforeTheJobRunsNobodyStartsTheCoordinatorAgain) {
  Start({.server_restarts_max = 2});
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(4));
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_EQ(effects.signal_others, SIGTERM);
}

TEST_F(SupervisorTest, ACoordinatorThatCannotBeStartedAgainEndsTheOthers) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  starts_ = false;
  Exit(kServer0, kKilled);
  EXPECT_EQ(Pass(absl::Seconds(4)).signal_others, SIGTERM);
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1})
    Exit(member, {.signal = SIGTERM});
  Pass(absl::Seconds(1));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_EQ(supervisor_->Reason(),
            "server 0 (pid 7) was killed by signal 9 (SIGKILL)");
}

TEST_F(SupervisorTest, WhoDiesWhileTheCoordinatorIsAwayIsStartedAgain) {
  Start({.worker_restarts_max = 1, .server_restarts_max = 1});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  for (const JobProcess& member : {kServer1, kWorker1}) Exit(member, kKilled);
  EXPECT_THAT(Pass(absl::Seconds(5)).restarts,
              testing::UnorderedElementsAre(kServer0, kServer1, kWorker1));
}

TEST_F(SupervisorTest, AnInterruptWaitsForTheCoordinatorThatIsAway) {
  Start({.server_restarts_max = 1});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  EXPECT_THAT(supervisor_->OnInterrupt(now_),
              HasSubstr("ending the job early"));
  EXPECT_THAT(Pass(absl::Milliseconds(100)).restarts, SizeIs(1));
  EXPECT_EQ(Pass(absl::Seconds(1)).finish_reason, "interrupted by the user")
      << "asked until it answers";
}

TEST_F(SupervisorTest, ASecondInterruptDoesNotWaitForTheCoordinator) {
  Start({.server_restarts_max = 1});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  supervisor_->OnInterrupt(now_);
  supervisor_->OnInterrupt(now_);
  Exit(kServer0, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(4));
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_EQ(effects.signal_others, SIGTERM);
}

TEST_F(SupervisorTest, AServerThatWasDrainedIsNotStartedAgain) {
  Start({.server_restarts_max = 2});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kGood);
  EXPECT_THAT(Pass(absl::Seconds(2)).restarts, IsEmpty());
}

TEST_F(SupervisorTest, AServerThatExitsWellWhileTheJobRunsWasDrained) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kGood);
  const Supervisor::Effects effects = Pass(absl::Seconds(30));
  EXPECT_THAT(effects.notes,
              testing::ElementsAre("server 1 was drained and has left"));
  EXPECT_THAT(effects.deaths, IsEmpty());
  EXPECT_EQ(effects.stop_reason, "");
  EXPECT_EQ(effects.signal_others, 0);
  EXPECT_FALSE(supervisor_->Over());
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  for (const JobProcess& member : {kServer0, kWorker0, kWorker1}) {
    Exit(member, kGood);
  }
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, AServerThatEndsWithTheJobWasNotDrained) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kGood);  // The status of the end comes after it.
  SetState(wire::FINISHED);
  EXPECT_THAT(Pass(absl::Seconds(1)).notes, IsEmpty());
  for (const JobProcess& member : {kServer0, kWorker0, kWorker1}) {
    Exit(member, kGood);
  }
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, AServerThatIsKilledWhileTheJobRunsWasNotDrained) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(2));
  EXPECT_THAT(effects.notes, IsEmpty());
  EXPECT_THAT(effects.deaths, SizeIs(1));
}

TEST_F(SupervisorTest, ProcessesThatEndWithAFailedJobAreNotReported) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  // The coordinator fails the job; the workers' exits are seen first.
  Exit(kWorker0, kCodeOne);
  Exit(kWorker1, kCodeOne);
  SetState(wire::FAILED, "server 1 is dead");
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_THAT(effects.deaths, IsEmpty());
  EXPECT_THAT(effects.restarts, IsEmpty());
  Exit(kServer0, kCodeOne);
  Exit(kServer1, kCodeOne);
  Pass(absl::Milliseconds(50));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_FALSE(supervisor_->finished());
  EXPECT_EQ(supervisor_->Reason(), "server 1 is dead");
}

// Else the last one in a worker's place would seem to have failed by itself,
// and a job whose workers were all killed would not be restored.
TEST_F(SupervisorTest, WhoGoesWithAnEndedJobIsNotAmongTheDead) {
  Start({.worker_restarts_max = 5});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kWorker1, kKilled);
  EXPECT_THAT(Pass(absl::Seconds(1)).restarts, SizeIs(1));
  supervisor_->OnRestart(kWorker1, /*running=*/true, now_);
  SetState(wire::FAILED, "no worker is left");
  Pass(absl::Seconds(1));
  Exit(kWorker1, kCodeOne);
  Pass(absl::Seconds(1));
  ASSERT_THAT(supervisor_->dead(), SizeIs(1));
  EXPECT_EQ(supervisor_->dead()[0].status.signal, SIGKILL);
}

// The same if the coordinator is gone before it was heard that the job has
// failed, and whoever waited for a place has to be ended.
TEST_F(SupervisorTest, WhoWasToldToEndIsNotAmongTheDead) {
  Start({.worker_restarts_max = 5});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kWorker1, kKilled);
  EXPECT_THAT(Pass(absl::Seconds(1)).restarts, SizeIs(1));
  Exit(kServer0, kCodeOne, "no worker is left");
  EXPECT_EQ(Pass(absl::Seconds(4)).signal_others, SIGTERM);
  Exit(kWorker1, kCodeOne);
  Pass(absl::Seconds(1));
  ASSERT_THAT(supervisor_->dead(), SizeIs(2));
  EXPECT_EQ(supervisor_->dead()[0].status.signal, SIGKILL);
  EXPECT_EQ(supervisor_->dead()[1].member, kServer0);
}

TEST_F(SupervisorTest, AProcessThatDiesBeforeTheStartEndsTheJob) {
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kWorker0, kCodeOne, "no such file");
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_THAT(effects.deaths, SizeIs(1));
  EXPECT_EQ(effects.stop_reason,
            "worker 0 (pid 7) exited with code 1 before the job had started: "
            "no such file");
  EXPECT_EQ(Pass(absl::Seconds(10)).signal_others, SIGKILL)
      << "who does not stop is stopped";
}

TEST_F(SupervisorTest, AWorkerThatExitsWellBeforeTheStartEndsTheJob) {
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kWorker1, kGood);
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_THAT(effects.deaths, SizeIs(1));
  EXPECT_THAT(effects.stop_reason,
              HasSubstr("exited with code 0 before the job had started"));
}

TEST_F(SupervisorTest, AWorkerThatExitsWellAfterAShortJobHasDoneItsWork) {
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kWorker1, kGood);
  SetState(wire::FINISHED);
  EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty());
  for (const JobProcess& member : {kServer0, kServer1, kWorker0})
    Exit(member, kGood);
  EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, WithoutServer0TheOthersAreEnded) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  Supervisor::Effects effects = Pass(absl::Seconds(2));
  EXPECT_THAT(effects.deaths, SizeIs(1));
  EXPECT_EQ(effects.signal_others, 0);
  effects = Pass(absl::Milliseconds(1500));
  EXPECT_EQ(effects.signal_others, SIGTERM);
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1}) {
    Exit(member, {.signal = SIGTERM});
  }
  EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty()) << "those were ours";
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_EQ(supervisor_->Reason(),
            "server 0 (pid 7) was killed by signal 9 (SIGKILL)");
}

TEST_F(SupervisorTest, TheLogOfServer0SaysWhyWhenNoStatusDid) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kWorker0, kCodeOne, "the job failed");
  Exit(kServer0, kCodeOne, "worker 0 left: out of memory");
  Exit(kWorker1, kCodeOne);
  Exit(kServer1, kCodeOne);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_EQ(supervisor_->Reason(), "worker 0 left: out of memory");
}

TEST_F(SupervisorTest, AnInterruptEndsARunningJobEarly) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_THAT(supervisor_->OnInterrupt(now_), HasSubstr("with its model"));
  Supervisor::Effects effects = Pass(absl::Seconds(60));
  EXPECT_EQ(effects.finish_reason, "interrupted by the user");
  EXPECT_EQ(effects.stop_reason, "");
  EXPECT_EQ(effects.signal_others, 0) << "an evaluation may take its time";
  SetState(wire::FINISHED);
  EXPECT_EQ(Pass(absl::Seconds(1)).finish_reason, "");
  ExitAll(kGood);
  Pass(absl::Milliseconds(50));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
  EXPECT_TRUE(supervisor_->interrupted());
}

TEST_F(SupervisorTest, AJobThatCannotEndEarlyIsStopped) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  supervisor_->OnInterrupt(now_);
  EXPECT_THAT(supervisor_->OnFinishRefused("its delays are given", now_),
              HasSubstr("its delays are given; stopping it at once"));
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_EQ(effects.stop_reason, "interrupted by the user");
  EXPECT_EQ(effects.finish_reason, "");
}

TEST_F(SupervisorTest, BeforeItRunsAJobIsStoppedByTheFirstInterrupt) {
  supervisor_->OnInterrupt(now_);
  EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason,
            "interrupted by the user");
}

TEST_F(SupervisorTest, ATerminationStopsTheJobThenItsProcesses) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_THAT(supervisor_->OnTermination(now_),
              HasSubstr("SIGTERM: stopping the job at once, and nothing is "
                        "kept to go on from"));
  Supervisor::Effects effects = Pass(absl::Seconds(4));
  constexpr char kWhy[] =
      "SIGTERM to slackline run stopped the job, and nothing was kept to go on "
      "from, since its config has no checkpoint block; with checkpoint {} it "
      "takes a checkpoint first, and --resume goes on from there";
  EXPECT_EQ(effects.stop_reason, kWhy);
  EXPECT_EQ(effects.signal_others, 0);
  EXPECT_EQ(Pass(absl::Seconds(2)).signal_others, SIGTERM);
  EXPECT_EQ(Pass(absl::Seconds(2)).signal_others, SIGKILL);
  ExitAll(kKilled);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_FALSE(supervisor_->finished());
  EXPECT_EQ(supervisor_->Reason(), kWhy);
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::STOPPED);
}

TEST_F(SupervisorTest, AHangupOfAJobWithoutCheckpointsIsNamed) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_THAT(supervisor_->OnHangup(now_), HasSubstr("SIGHUP: stopping"));
  EXPECT_THAT(Pass(absl::Milliseconds(50)).stop_reason,
              HasSubstr("SIGHUP to slackline run stopped the job"));
  EXPECT_EQ(supervisor_->OnHangup(now_), "");
  EXPECT_THAT(supervisor_->OnTermination(now_), HasSubstr("killing"));
}

TEST_F(SupervisorTest, ATerminationSuspendsAJobWithCheckpoints) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_THAT(supervisor_->OnTermination(now_),
              HasSubstr("taking a checkpoint, then ending the job"));
  Supervisor::Effects effects = Pass(absl::Seconds(60));
  EXPECT_EQ(effects.suspend_reason, "slackline run was interrupted by SIGTERM");
  EXPECT_EQ(effects.stop_reason, "");
  EXPECT_EQ(effects.signal_others, 0) << "a checkpoint may take its time";
  EXPECT_TRUE(supervisor_->suspending());
  EXPECT_FALSE(supervisor_->asked_to_end());
  status_.mutable_view()->mutable_end()->set_cause(wire::JobEnd::SUSPENDED);
  SetState(wire::FAILED, "time is over");
  EXPECT_EQ(Pass(absl::Seconds(1)).suspend_reason, "");
  ExitAll({.code = 75});
  EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_FALSE(supervisor_->finished());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::SUSPENDED);
  EXPECT_EQ(supervisor_->Reason(), "time is over");
}

// SIGTERM comes when nothing is left to be suspended; a script that has sent no
// Ctrl-C is not to be told of one.
TEST_F(SupervisorTest, ATerminationOfAJobThatFinishesAllTheSameIsNoInterrupt) {
  for (const bool suspends : {true, false}) {
    Start({.suspends = suspends});
    SetState(wire::RUNNING);
    Pass(absl::Seconds(1));
    supervisor_->OnTermination(now_);
    SetState(wire::FINISHED);
    Pass(absl::Seconds(1));
    supervisor_->OnTermination(now_);
    ExitAll(kGood);
    EXPECT_TRUE(supervisor_->Over());
    EXPECT_TRUE(supervisor_->finished());
    EXPECT_TRUE(supervisor_->asked_to_end());
    EXPECT_FALSE(supervisor_->interrupted());
  }
}

TEST_F(SupervisorTest, ServerZeroSaysByItsExitCodeThatTheJobIsSuspended) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kWorker0, {.code = 75});
  Exit(kWorker1, {.code = 75});
  Exit(kServer1, {.code = 75});
  Exit(kServer0, {.code = 75});
  EXPECT_THAT(Pass(absl::Seconds(2)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_FALSE(supervisor_->finished());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::SUSPENDED);
}

TEST_F(SupervisorTest, ASecondTerminationStopsASuspensionAtOnce) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  supervisor_->OnTermination(now_);
  Pass(absl::Seconds(1));
  EXPECT_EQ(supervisor_->OnTermination(now_),
            "SIGTERM again: stopping the job without a checkpoint; once more "
            "to kill it");
  const Supervisor::Effects effects = Pass(absl::Seconds(1));
  EXPECT_EQ(effects.suspend_reason, "");
  EXPECT_EQ(effects.stop_reason,
            "stopped by a second SIGTERM before its checkpoint was there");
  EXPECT_TRUE(supervisor_->asked_to_end());
}

TEST_F(SupervisorTest, AHangupSuspendsAsATerminationDoes) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_THAT(supervisor_->OnHangup(now_), HasSubstr("taking a checkpoint"));
  EXPECT_EQ(Pass(absl::Milliseconds(50)).suspend_reason,
            "slackline run was interrupted by SIGHUP");
  // The session that ends says so again.
  EXPECT_EQ(supervisor_->OnHangup(now_), "");
  EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason, "");
  EXPECT_TRUE(supervisor_->suspending());
  supervisor_->OnTermination(now_);
  EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason,
            "stopped by a second SIGTERM before its checkpoint was there");
}

TEST_F(SupervisorTest, CtrlCOrAQuitStopsASuspensionAtOnce) {
  for (const bool quit : {true, false}) {
    Start({.suspends = true});
    SetState(wire::RUNNING);
    Pass(absl::Seconds(1));
    supervisor_->OnTermination(now_);
    if (quit) {
      supervisor_->OnQuit(now_);
    } else {
      supervisor_->OnInterrupt(now_);
    }
    EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason,
              "interrupted by the user");
    EXPECT_FALSE(supervisor_->suspending());
    EXPECT_TRUE(supervisor_->asked_to_end());
  }
}

// It may have begun with a checkpoint, and that stays.
TEST_F(SupervisorTest, BeforeItRunsAJobWithCheckpointsIsStoppedAtOnce) {
  Start({.suspends = true});
  EXPECT_THAT(supervisor_->OnTermination(now_), HasSubstr("stopping the job"));
  EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason,
            "slackline run was interrupted by SIGTERM");
  ExitAll(kCodeOne);
  Pass(absl::Seconds(1));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->suspending());
  EXPECT_FALSE(supervisor_->ran());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::STOPPED);
  EXPECT_EQ(supervisor_->Reason(), "slackline run was interrupted by SIGTERM");
}

TEST_F(SupervisorTest, ATerminationAfterTheDeathOfServer0LeavesItsCause) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  Pass(absl::Milliseconds(100));
  EXPECT_THAT(supervisor_->OnTermination(now_), HasSubstr("stopping the job"));
  EXPECT_EQ(Pass(absl::Seconds(4)).signal_others, SIGTERM);
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1})
    Exit(member, {.signal = SIGTERM});
  Pass(absl::Seconds(1));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->suspending());
  EXPECT_FALSE(supervisor_->asked_to_end());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_EQ(supervisor_->Reason(),
            "server 0 (pid 7) was killed by signal 9 (SIGKILL)");
}

TEST_F(SupervisorTest, ATerminationAfterTheVerdictLeavesIt) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  status_.mutable_view()->mutable_end()->set_cause(wire::JobEnd::SERVER_LOST);
  SetState(wire::FAILED, "server 1 is dead");
  Pass(absl::Milliseconds(300));
  supervisor_->OnTermination(now_);
  EXPECT_EQ(Pass(absl::Seconds(6)).signal_host, SIGTERM);
  ExitAll(kKilled);
  Pass(absl::Seconds(1));
  EXPECT_TRUE(supervisor_->suspending());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_EQ(supervisor_->Reason(), "server 1 is dead");
}

// Told once, a member would go on until its job has a checkpoint.
TEST_F(SupervisorTest, MembersOfAJobWithCheckpointsAreToldTwiceToEnd) {
  Start({.suspends = true});
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  supervisor_->OnQuit(now_);
  int terminations = 0;
  for (int i = 0; i < 130; ++i)
    terminations += Pass(absl::Milliseconds(50)).signal_others == SIGTERM;
  EXPECT_EQ(terminations, 2);
  EXPECT_EQ(Pass(absl::Seconds(2)).signal_others, SIGKILL);
}

TEST_F(SupervisorTest, ASecondInterruptStopsAndAThirdKillsAtOnce) {
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  supervisor_->OnInterrupt(now_);
  supervisor_->OnInterrupt(now_);
  EXPECT_EQ(Pass(absl::Milliseconds(50)).stop_reason,
            "interrupted by the user");
  supervisor_->OnInterrupt(now_);
  EXPECT_EQ(Pass(absl::Milliseconds(50)).signal_others, SIGKILL);
}

TEST_F(SupervisorTest, ACoordinatorThatNeverAnswersIsGivenUp) {
  Start({.silence_max = absl::Seconds(20)});
  EXPECT_EQ(Pass(absl::Seconds(19)).signal_others, 0);
  EXPECT_EQ(Pass(absl::Seconds(2)).signal_others, SIGTERM);
  ExitAll({.signal = SIGTERM});
  Pass(absl::Milliseconds(50));
  EXPECT_THAT(supervisor_->Reason(), HasSubstr("has not answered for 20 s"));
}

TEST_F(SupervisorTest, ProcessesThatStayAfterTheEndAreEnded) {
  Start({.lease = absl::Seconds(2)});
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  Exit(kServer0, kGood);
  const Supervisor::Effects effects = Pass(absl::Seconds(4));
  EXPECT_EQ(effects.signal_others, SIGTERM);
  EXPECT_THAT(
      effects.notes,
      testing::ElementsAre("3 processes have not ended yet; sending SIGTERM"));
  for (const JobProcess& member : {kServer1, kWorker0, kWorker1}) {
    Exit(member, {.signal = SIGTERM});
  }
  EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, AWorkerThatFailsAfterTheEndIsRemembered) {
  for (const bool seen : {true, false}) {
    Start({});
    SetState(wire::RUNNING);
    Pass(absl::Seconds(1));
    if (seen) SetState(wire::FINISHED);
    Pass(absl::Milliseconds(300));
    Exit(kWorker0, kCodeOne, "error: no such folder");
    Exit(kWorker1, kGood);
    SetState(wire::FINISHED);
    for (const JobProcess& member : {kServer0, kServer1}) Exit(member, kGood);
    EXPECT_THAT(Pass(absl::Seconds(1)).deaths, IsEmpty());
    EXPECT_TRUE(supervisor_->Over());
    EXPECT_TRUE(supervisor_->finished());
    ASSERT_THAT(supervisor_->failed_after_end(), SizeIs(1));
    EXPECT_EQ(supervisor_->failed_after_end()[0].error_line,
              "error: no such folder");
  }
}

// Server 0 bounds it itself.
TEST_F(SupervisorTest, Server0HasTimeToWriteWhatTheJobLeaves) {
  Start({.lease = absl::Seconds(2), .save_timeout = absl::Seconds(60)});
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  Exit(kWorker0, kGood);
  Exit(kServer1, kGood);
  Supervisor::Effects effects = Pass(absl::Seconds(8));
  EXPECT_EQ(effects.signal_others, SIGTERM);
  EXPECT_EQ(effects.signal_host, 0);
  EXPECT_THAT(
      effects.notes,
      testing::ElementsAre(
          "1 process has not ended yet; sending SIGTERM",
          testing::AllOf(HasSubstr("server 0 still writes"), HasSubstr("1m"),
                         HasSubstr("save_timeout_ms"))));
  Exit(kWorker1, {.signal = SIGTERM});
  effects = Pass(absl::Seconds(110));
  EXPECT_EQ(effects.signal_host, 0);
  EXPECT_THAT(effects.notes, IsEmpty()) << "said once";
  effects = Pass(absl::Seconds(10));
  EXPECT_EQ(effects.signal_host, SIGTERM);
  EXPECT_EQ(Pass(absl::Seconds(3)).signal_host, SIGKILL);
}

TEST_F(SupervisorTest, WhereAnyServerTakesOverAJobOutlivesItsHost) {
  for (const ExitStatus& status : {kKilled, kCodeOne}) {
    Start({.any_server_takes_over = true});
    SetHost(kServer0);
    SetState(wire::RUNNING);
    Pass(absl::Seconds(1));
    Exit(kServer0, status, "error: etcd is away");
    Supervisor::Effects effects = Pass(absl::Seconds(30));
    ASSERT_THAT(effects.deaths, SizeIs(1));
    EXPECT_TRUE(effects.deaths[0].hosted_coordinator);
    EXPECT_THAT(effects.restarts, IsEmpty());
    EXPECT_EQ(effects.stop_reason, "");
    EXPECT_EQ(effects.signal_others, 0);
    EXPECT_FALSE(supervisor_->coordinator_gone());
    SetHost(kServer2);
    Pass(absl::Seconds(100));
    EXPECT_EQ(supervisor_->host(), kServer2);
    SetState(wire::FINISHED);
    Pass(absl::Milliseconds(300));
    for (const JobProcess& member : {kWorker0, kWorker1, kServer1, kServer2})
      Exit(member, kGood);
    EXPECT_TRUE(supervisor_->Over());
    EXPECT_TRUE(supervisor_->finished());
  }
}

TEST_F(SupervisorTest, AHostThatWasKilledComesBackAsAServer) {
  Start({.server_restarts_max = 1, .any_server_takes_over = true});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).restarts,
              testing::ElementsAre(kServer0));
  Pass(absl::Seconds(20));
  SetHost(kServer2);
  Pass(absl::Seconds(1));
  // A second time it is none of the coordinator's.
  Exit(kServer0, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(30));
  ASSERT_THAT(effects.deaths, SizeIs(1));
  EXPECT_FALSE(effects.deaths[0].hosted_coordinator);
  EXPECT_THAT(effects.restarts, IsEmpty()) << "as often as allowed";
  EXPECT_EQ(effects.signal_others, 0);
  Exit(kServer2, kKilled);
  EXPECT_THAT(Pass(absl::Milliseconds(50)).restarts,
              testing::ElementsAre(kServer2));
}

// The coordinator's own store has failed, for example: the next process of it
// would fare as it did, and another server goes on.
TEST_F(SupervisorTest, AHostThatEndsByItselfIsNotStartedAgain) {
  Start({.server_restarts_max = 1, .any_server_takes_over = true});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kCodeOne);
  const Supervisor::Effects effects = Pass(absl::Seconds(30));
  EXPECT_THAT(effects.deaths, SizeIs(1));
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_EQ(effects.signal_others, 0);
}

TEST_F(SupervisorTest, Server0MayLeaveWhenItIsNotTheHost) {
  Start({.any_server_takes_over = true});
  SetHost(kServer2);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kGood);
  const Supervisor::Effects effects = Pass(absl::Seconds(30));
  EXPECT_THAT(effects.notes,
              testing::ElementsAre("server 0 was drained and has left"));
  EXPECT_THAT(effects.deaths, IsEmpty());
  EXPECT_EQ(effects.signal_others, 0);
  EXPECT_FALSE(supervisor_->finished());
  Exit(kServer2, kGood);  // That does say that the job has finished.
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, WithoutAnyServerNobodyTakesOver) {
  Start({.any_server_takes_over = true});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer1, kKilled);
  Pass(absl::Seconds(5));
  Exit(kServer0, kKilled);
  EXPECT_EQ(Pass(absl::Seconds(4)).signal_others, 0) << "server 2 may";
  // It may have taken over before it died; nobody has heard of it.
  Exit(kServer2, kKilled);
  EXPECT_TRUE(supervisor_->coordinator_gone());
  EXPECT_EQ(Pass(absl::Seconds(4)).signal_others, SIGTERM);
  for (const JobProcess& member : {kWorker0, kWorker1})
    Exit(member, {.signal = SIGTERM});
  Pass(absl::Seconds(1));
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_EQ(supervisor_->Cause(), wire::JobEnd::SERVER_LOST);
  EXPECT_EQ(supervisor_->host(), kServer2);
  EXPECT_EQ(supervisor_->Reason(),
            "server 1 (pid 7) was killed by signal 9 (SIGKILL)");
}

TEST_F(SupervisorTest, ServersThatDieTogetherAreStartedAgain) {
  Start({.server_restarts_max = 1, .any_server_takes_over = true});
  SetHost(kServer2);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  for (const JobProcess& member : {kServer0, kServer1, kServer2})
    Exit(member, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(5));
  EXPECT_THAT(effects.restarts,
              testing::UnorderedElementsAre(kServer0, kServer1, kServer2));
  EXPECT_EQ(effects.signal_others, 0);
}

// Between two statuses, from the server that has taken over unheard.
TEST_F(SupervisorTest, TheLastServerThatExitsWellHasFinishedTheJob) {
  Start({.any_server_takes_over = true});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  Pass(absl::Seconds(5));
  for (const JobProcess& member : {kWorker0, kWorker1, kServer1, kServer2})
    Exit(member, kGood);
  EXPECT_THAT(Pass(absl::Seconds(1)).notes, IsEmpty());
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

TEST_F(SupervisorTest, BeforeTheJobRunsNobodyTakesOver) {
  Start({.server_restarts_max = 2, .any_server_takes_over = true});
  SetHost(kServer0);
  SetState(wire::FORMING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  const Supervisor::Effects effects = Pass(absl::Seconds(4));
  EXPECT_THAT(effects.restarts, IsEmpty());
  EXPECT_EQ(effects.signal_others, SIGTERM);
}

TEST_F(SupervisorTest, WhereNobodyTakesOverTheJobIsGivenUp) {
  Start({.any_server_takes_over = true, .silence_max = absl::Seconds(20)});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  Exit(kServer0, kKilled);
  EXPECT_EQ(Pass(absl::Seconds(19)).signal_others, 0);
  EXPECT_EQ(Pass(absl::Seconds(2)).signal_others, SIGTERM);
  for (const JobProcess& member : {kServer1, kServer2, kWorker0, kWorker1})
    Exit(member, {.signal = SIGTERM});
  Pass(absl::Milliseconds(50));
  EXPECT_THAT(supervisor_->Reason(),
              HasSubstr("no coordinator has answered for 20 s, and server 0 "
                        "had it last and has ended"));
}

// Whichever server it is, it has what server 0 has elsewhere.
TEST_F(SupervisorTest, TheHostHasTimeToWriteWhatTheJobLeaves) {
  Start({.lease = absl::Seconds(2),
         .any_server_takes_over = true,
         .save_timeout = absl::Seconds(60)});
  SetHost(kServer0);
  SetState(wire::RUNNING);
  Pass(absl::Seconds(1));
  SetHost(kServer2);
  SetState(wire::FINISHED);
  Pass(absl::Milliseconds(300));
  for (const JobProcess& member : {kWorker0, kWorker1, kServer1})
    Exit(member, kGood);
  Supervisor::Effects effects = Pass(absl::Seconds(110));
  EXPECT_EQ(effects.signal_others, SIGKILL) << "server 0";
  EXPECT_EQ(effects.signal_host, 0);
  EXPECT_THAT(effects.notes,
              testing::ElementsAre(
                  "1 process has not ended yet; sending SIGTERM",
                  HasSubstr("server 2 still writes its last checkpoint")));
  Exit(kServer0, kKilled);
  EXPECT_EQ(Pass(absl::Seconds(18)).signal_host, SIGTERM);
  Exit(kServer2, kGood);
  EXPECT_TRUE(supervisor_->Over());
  EXPECT_TRUE(supervisor_->finished());
}

// In a config where only server 0 has it, no status says otherwise.
TEST_F(SupervisorTest, ElsewhereTheHostIsServer0) {
  SetState(wire::RUNNING);
  SetHost(kServer1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(supervisor_->host(), kServer0);
}

TEST_F(SupervisorTest, AnInterruptEndsTheWaitForServer0) {
  SetState(wire::FINISHED);
  Pass(absl::Seconds(20));
  supervisor_->OnInterrupt(now_);
  EXPECT_EQ(Pass(absl::Seconds(6)).signal_host, SIGTERM);
}

}  // namespace slackline::supervisor_test
