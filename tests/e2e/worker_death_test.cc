// Goal: a worker that dies takes nobody along: the others complete their steps.
// A worker that comes back joins in. (All-reduce: mode_change_test.cc.)
// Method: kill -9 (or SIGSTOP) in the midst of a job of `slackline run`.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::worker_death_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kSteps = 400;
constexpr int kVictim = 2;

class WorkerDeath : public JobTest {
 protected:
  // Of kSteps, in at least 6 s, so that it is far from its end when progress is
  // seen, and does not want much of a busy machine.
  std::unique_ptr<Process> StartPacedRun(const std::string& mode) {
    return StartRun("run", Write("job.textproto", SmallJob()),
                    {absl::StrCat("--mode=", mode), "--epochs=4",
                     "--set=worker[0].conditions.step_ms=15"});
  }
  // Ends when the test says so.
  std::unique_ptr<Process> StartLongRun(const std::string& mode,
                                        int restarts = 0) {
    return StartRun("run", Write("job.textproto", SmallJob()),
                    {absl::StrCat("--mode=", mode), "--epochs=10000",
                     absl::StrCat("--restart-workers=", restarts)});
  }
  std::string ResolvedConfig() const { return Path("run/cluster.textproto"); }
  std::string WorkerLog(int rank) const {
    return ReadText(Path(absl::StrCat("run/logs/worker-", rank, ".log")));
  }
  static std::string Completed(int64_t steps) {
    return absl::StrCat("completed ", steps, " steps");
  }
  void ExpectSurvivorsCompleted(int64_t steps) const {
    for (const int rank : {0, 1, 3}) {
      EXPECT_THAT(WorkerLog(rank), HasSubstr(Completed(steps))) << rank;
    }
  }
  // In the midst of the job, and then to its end, at this step.
  static void ExpectJoinedTheRunningJob(const std::string& log, int64_t steps) {
    const std::string says = "joining the running job at clock ";
    const size_t at = log.find(says);
    ASSERT_NE(at, std::string::npos) << log;
    const int64_t clock = std::stoll(log.substr(at + says.size()));
    EXPECT_GE(clock, 10);
    EXPECT_LT(clock, steps);
    EXPECT_THAT(log.substr(at), HasSubstr(Completed(steps)));
  }
};

class WorkerDeathOverServers : public WorkerDeath,
                               public testing::WithParamInterface<std::string> {
};

INSTANTIATE_TEST_SUITE_P(Modes, WorkerDeathOverServers,
                         testing::Values("bsp", "ssp:3", "asp"),
                         [](const auto& test) {
                           return test.param.substr(0, 3);
                         });

TEST_P(WorkerDeathOverServers, TheOthersCompleteAndTheSummaryNamesIt) {
  const std::unique_ptr<Process> run = StartPacedRun(GetParam());
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();

  ExpectSurvivorsCompleted(kSteps);
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_GT(summary["test_accuracy"], 0.7);
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))), summary["model_sha256"]);
  ASSERT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_THAT(summary["workers_lost"][0].get<std::string>(),
              HasSubstr(absl::StrCat("worker ", kVictim, " (pid ", pid, " ")));
  // The user heard of it when it happened.
  EXPECT_THAT(run->Output(),
              HasSubstr(absl::StrCat("worker ", kVictim, " (pid ", pid,
                                     ") was killed by signal 9 (SIGKILL)")));
}

TEST_F(WorkerDeath, AWorkerStartedAgainByHandJoinsIn) {
  const std::unique_ptr<Process> run = StartLongRun("ssp:3");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  const std::unique_ptr<Process> again = StartMember(
      "again", "slackline_worker", kVictim, ResolvedConfig(), "run");
  ASSERT_TRUE(AwaitNewWorker(ResolvedConfig(), kVictim, pid).has_value())
      << run->Output() << again->Output();
  const int64_t steps = EndEarly("run", run.get());
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();

  ExpectSurvivorsCompleted(steps);
  ExpectJoinedTheRunningJob(again->Output(), steps);
  EXPECT_THAT(ReadJson(Path("run/summary.json"))["workers_lost"], SizeIs(1));
}

TEST_F(WorkerDeath, RestartWorkersStartsItAgain) {
  const std::unique_ptr<Process> run = StartLongRun("bsp", /*restarts=*/1);
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  ASSERT_TRUE(AwaitNewWorker(ResolvedConfig(), kVictim, pid).has_value())
      << run->Output();
  const int64_t steps = EndEarly("run", run.get());

  ExpectSurvivorsCompleted(steps);
  ExpectJoinedTheRunningJob(
      ReadText(Path(absl::StrCat("run/logs/worker-", kVictim, ".2.log"))),
      steps);
  EXPECT_THAT(run->Output(),
              HasSubstr(absl::StrCat("started worker ", kVictim, " again")));
}

// It is no member any more when it goes on, and must not take part as the one
// that it was.
TEST_F(WorkerDeath, AWorkerThatWasPausedBeyondItsLeaseJoinsAgain) {
  const std::unique_ptr<Process> run = StartLongRun("ssp:3");
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGSTOP);
  status = AwaitStatus(
      ResolvedConfig(), kJobMax,
      [](const wire::StatusReply& now) { return now.worker_size() == 3; });
  ASSERT_TRUE(status.has_value()) << run->Output();
  const int64_t there = status->worker(0).clock();
  SignalProcess(pid, SIGCONT);
  status =
      AwaitStatus(ResolvedConfig(), kJobMax, [&](const wire::StatusReply& now) {
        return now.worker_size() == 4 && now.worker(kVictim).clock() > there;
      });
  ASSERT_TRUE(status.has_value()) << run->Output();
  const int64_t steps = EndEarly("run", run.get());

  ExpectSurvivorsCompleted(steps);
  const std::string log = WorkerLog(kVictim);
  EXPECT_THAT(log, HasSubstr("lease"));
  EXPECT_THAT(log, HasSubstr("joining again"));
  ExpectJoinedTheRunningJob(log, steps);
  EXPECT_THAT(ReadJson(Path("run/summary.json"))["workers_lost"], SizeIs(1));
}

}  // namespace slackline::worker_death_test
