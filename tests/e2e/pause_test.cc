// Goal: being stopped for a while, and clocks that people set, cost a job time
// and nothing else; a process of an earlier job finds out that it is one.
// Method: SIGSTOP and SIGCONT to real processes, in the midst of a job.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::pause_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSteps = 2000;
constexpr absl::Duration kLease = absl::Seconds(2);

class Pause : public JobTest {
 protected:
  static std::vector<std::string> Arguments(const std::string& mode) {
    // Steps of at least 5 ms make the length of the job a property of the test:
    // longer than any pause.
    return {absl::StrCat("--mode=", mode), "--set=train.epochs=20",
            "--set=worker[0].conditions.step_ms=5",
            absl::StrCat("--set=limits.lease_ms=",
                         absl::ToInt64Milliseconds(kLease))};
  }
  std::string Log(const std::string& member) const {
    return ReadText(Path(absl::StrCat("run/logs/", member, ".log")));
  }
  // The length of the pause is what is tested, so there is no event to wait
  // for.
  static void StopFor(pid_t pid, absl::Duration pause) {
    SignalProcess(pid, SIGSTOP);
    absl::SleepFor(pause);
    SignalProcess(pid, SIGCONT);
  }
};

struct ServerPause {
  std::string mode;
  double leases = 0;
};

class PauseOfServer0 : public Pause,
                       public testing::WithParamInterface<ServerPause> {};

INSTANTIATE_TEST_SUITE_P(
    Modes, PauseOfServer0,
    testing::Values(ServerPause{"bsp", 1.5}, ServerPause{"bsp", 5},
                    ServerPause{"ssp:3", 1.5}, ServerPause{"ssp:3", 5}),
    [](const auto& test) {
      return absl::StrCat(test.param.mode.substr(0, 3), "For",
                          static_cast<int>(10 * test.param.leases),
                          "TenthsOfALease");
    });

TEST_P(PauseOfServer0, EndsAsIfNothingHadHappened) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", SmallJob()), Arguments(GetParam().mode));
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  StopFor(ServerPid(*status, 0), GetParam().leases * kLease);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_THAT(summary["workers_lost"], IsEmpty());
  if (GetParam().leases > 3) {
    EXPECT_THAT(Log("worker-1"),
                AllOf(HasSubstr("the coordinator in server 0 at"),
                      HasSubstr("so this process waits for it"),
                      HasSubstr("is heard again")));
  }
}

TEST_F(Pause, AWorkerThatWasStoppedForThreeLeasesJoinsAgain) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), Arguments("ssp:3"));
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  StopFor(WorkerPid(*status, 2), 3 * kLease);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(
      Log("worker-2"),
      AllOf(HasSubstr("gave this worker up"), HasSubstr("joining again"),
            HasSubstr(absl::StrCat("completed ", kSteps, " steps"))));
  EXPECT_THAT(ReadJson(Path("run/summary.json"))["workers_lost"], SizeIs(1));
}

TEST_F(Pause, AServerThatWasStoppedForThreeLeasesSaysWhyItEnds) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(config, "by-hand", Arguments("ssp:3"));
  ASSERT_TRUE(AwaitProgress(config).has_value()) << members[0]->Output();
  Process& stopped = *members[1];
  StopFor(stopped.pid(), 3 * kLease);
  EXPECT_EQ(stopped.WaitText(kJobMax), kFailed) << stopped.Output();
  EXPECT_THAT(stopped.Output(), HasSubstr("was stopped for "));
  for (const std::unique_ptr<Process>& member : members) {
    if (member.get() == &stopped) continue;
    EXPECT_EQ(member->WaitText(kJobMax), kFailed) << member->Output();
    EXPECT_THAT(member->Output(),
                HasSubstr(absl::StrCat("server 1 (pid ", stopped.pid())));
  }
}

// The clocks of three processes are set at once, in the midst of the job.
class ClockStep : public Pause, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Hours, ClockStep, testing::Values(1, -1),
                         [](const auto& test) {
                           return test.param > 0 ? "Forwards" : "Backwards";
                         });

TEST_P(ClockStep, ChangesNothingButPrintedTimes) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  std::vector<std::string> arguments = Arguments("ssp:3");
  std::vector<std::string> stepped = arguments;
  stepped.push_back(
      absl::StrCat("--wall-clock-step=", GetParam() * 7200, "@3"));
  std::vector<std::unique_ptr<Process>> members;
  for (int i = 0; i < 2; ++i) {
    members.push_back(StartMember(absl::StrCat("server-", i),
                                  "slackline_server", i, config, "by-hand",
                                  stepped));
  }
  for (int i = 0; i < 4; ++i) {
    members.push_back(StartMember(absl::StrCat("worker-", i),
                                  "slackline_worker", i, config, "by-hand",
                                  i == 1 ? stepped : arguments));
  }
  for (const std::unique_ptr<Process>& member : members) {
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  }
  const nlohmann::json summary = ReadJson(Path("by-hand/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_THAT(summary["workers_lost"], IsEmpty());
  EXPECT_LT(summary["wall_seconds"], absl::ToDoubleSeconds(kJobMax));
  EXPECT_GT(summary["wall_seconds"], 0);
  // The step did happen. It is two hours, so that the lines are of different
  // hours also where an hour begins between them.
  for (const size_t member : {0, 1, 3}) {
    const std::string log = members[member]->Output();
    const size_t last = log.rfind('\n', log.size() - 2) + 1;
    constexpr size_t kHourAt = sizeof("2026-01-02 ") - 1;
    const int first_hour = std::stoi(log.substr(kHourAt, 2));
    const int last_hour = std::stoi(log.substr(last + kHourAt, 2));
    EXPECT_NE(first_hour, last_hour) << log;
  }
}

TEST_F(Pause, AWorkerOfAnEarlierRunOnTheSamePortsIsToldSo) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::unique_ptr<Process>> old =
      StartSmallJobByHand(config, "old", Arguments("ssp:3"));
  ASSERT_TRUE(AwaitProgress(config).has_value()) << old[0]->Output();
  Process& zombie = *old.back();
  SignalProcess(zombie.pid(), SIGSTOP);
  for (const std::unique_ptr<Process>& member : old) {
    if (member.get() == &zombie) continue;
    member->Signal(SIGKILL);
    member->WaitText(kJobMax);
  }
  const std::vector<std::unique_ptr<Process>> present =
      StartSmallJobByHand(config, "new", Arguments("ssp:3"));
  ASSERT_TRUE(AwaitProgress(config).has_value()) << present[0]->Output();
  SignalProcess(zombie.pid(), SIGCONT);
  EXPECT_EQ(zombie.WaitText(kJobMax), kFailed) << zombie.Output();
  EXPECT_THAT(zombie.Output(),
              AllOf(HasSubstr("this process belongs to another run ("),
                    HasSubstr(") of job 'small'; the "
                              "coordinator at tcp://127.0.0.1:"),
                    HasSubstr(" runs job 'small' (run ")));
  for (const std::unique_ptr<Process>& member : present) {
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  }
  const nlohmann::json summary = ReadJson(Path("new/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_THAT(summary["workers_lost"], IsEmpty());
}

}  // namespace slackline::pause_test
