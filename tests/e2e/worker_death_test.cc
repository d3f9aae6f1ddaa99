// Goal: a worker that dies takes nobody along: over servers the others complete
// their steps, and an all-reduce, which cannot go on, ends soon and says who
// died. A worker that comes back joins in.
// Method: kill -9 (or SIGSTOP) in the midst of a job of `slackline run`.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kSteps = 4000;
constexpr int kVictim = 2;
constexpr absl::Duration kLease = absl::Seconds(2);

class WorkerDeath : public JobTest {
 protected:
  // Enough steps that the job is far from its end when progress is seen.
  std::unique_ptr<Process> StartLongRun(const std::string& mode) {
    return StartRun("run", Write("job.textproto", SmallJob()),
                    {absl::StrCat("--mode=", mode), "--epochs=40",
                     absl::StrCat("--set=limits.lease_ms=",
                                  absl::ToInt64Milliseconds(kLease))});
  }
  std::string ResolvedConfig() const { return Path("run/cluster.textproto"); }
  std::string WorkerLog(int rank) const {
    return ReadText(Path(absl::StrCat("run/logs/worker-", rank, ".log")));
  }
  void ExpectSurvivorsCompleted() const {
    for (const int rank : {0, 1, 3}) {
      EXPECT_THAT(WorkerLog(rank),
                  HasSubstr(absl::StrCat("completed ", kSteps, " steps")));
    }
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
  const std::unique_ptr<Process> run = StartLongRun(GetParam());
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();

  ExpectSurvivorsCompleted();
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

TEST_F(WorkerDeath, AllReduceEndsSoonAndEverybodyNamesIt) {
  const std::unique_ptr<Process> run = StartLongRun("allreduce");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  EXPECT_EQ(run->WaitText(2 * kLease + absl::Seconds(5)), kFailed)
      << run->Output();
  ExpectNoProcessLeft();

  const std::string who = absl::StrCat("worker ", kVictim, " (pid ", pid);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr(absl::StrCat("the job failed (logs: ",
                                           Path("run"), "/logs): ", who)),
                    HasSubstr("an all-reduce needs every rank")));
  for (const int rank : {0, 1, 3}) EXPECT_THAT(WorkerLog(rank), HasSubstr(who));
}

}  // namespace
}  // namespace slackline
