// Goal: a job whose shards have copies goes on when a server dies: nothing that
// was told to anybody is lost, BSP ends with the bits of a run that nobody
// disturbed, and the server may come back.
// Method: the real programs; servers are killed, stopped and drained.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/replicated_job.h"

namespace slackline::replicas_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Replicas : public ReplicatedJob {};

TEST_F(Replicas, BspKeepsItsBitsWhenOneServerAfterTheOtherIsKilled) {
  const std::string model = ModelOfBsp();
  const std::unique_ptr<Process> run = StartJob("bsp");
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  ASSERT_TRUE(CopiesAreComplete(*status)) << "from the start";
  for (const int victim : {1, 2}) {
    SignalProcess(ServerPid(*status, victim), SIGKILL);
    status = AwaitReplaced(ResolvedConfig(), *status, victim);
    ASSERT_TRUE(status.has_value()) << run->Output();
  }
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), AllOf(HasSubstr("started server 1 again"),
                                   HasSubstr("started server 2 again"),
                                   Not(HasSubstr("restoring the job"))));
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], model);
}

TEST_F(Replicas, AServerThatComesBackGetsShards) {
  const std::unique_ptr<Process> run = StartJob("ssp:3");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 1), SIGKILL);
  EXPECT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                          [&](const wire::StatusReply& now) {
                            const auto& owners = now.view().owner_server();
                            return LifeOf(now, 1) != LifeOf(*status, 1) &&
                                   std::count(owners.begin(), owners.end(), 1) >
                                       0;
                          })
                  .has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run");
}

class ReplicasInMode : public Replicas,
                       public testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Modes, ReplicasInMode,
                         testing::Values("ssp:3", "asp", "dssp:1:4",
                                         "backup:1"),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':'));
                         });

TEST_P(ReplicasInMode, TheJobEndsWithAllStepsWhenAServerIsKilled) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", JobText()),
               {absl::StrCat("--mode=", GetParam()), "--epochs=10",
                "--set=worker[0].conditions.step_ms=10"});
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 2), SIGKILL);
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run", 1000);
}

TEST_F(Replicas, ByHandTheSameCommandStartsAServerAgain) {
  const std::string config = WriteWithPort("job.textproto", JobText());
  std::vector<std::unique_ptr<Process>> members;
  const auto start = [&](const std::string& name, const std::string& program,
                         int index) {
    return StartMember(name, program, index, config, "by-hand",
                       Arguments("bsp"));
  };
  for (int i = 0; i < 3; ++i) {
    members.push_back(start(absl::StrCat("server-", i), "slackline_server", i));
  }
  for (int i = 0; i < 4; ++i) {
    members.push_back(start(absl::StrCat("worker-", i), "slackline_worker", i));
  }
  const auto status = AwaitProgress(config);
  ASSERT_TRUE(status.has_value()) << members[0]->Output();
  members[1]->Signal(SIGKILL);
  const std::unique_ptr<Process> again = start("again", "slackline_server", 1);
  EXPECT_TRUE(AwaitReplaced(config, *status, 1).has_value()) << again->Output();
  for (const std::unique_ptr<Process>& member : members) {
    if (member == members[1]) continue;
    EXPECT_EQ(member->WaitText(kEndMax), kEndedWell) << member->Output();
  }
  EXPECT_EQ(again->WaitText(kEndMax), kEndedWell) << again->Output();
  ExpectWhole("by-hand");
}

TEST_F(Replicas, AServerThatIsKilledWhileShardsMoveIsSurvived) {
  const std::string model = ModelOfBsp();
  const std::unique_ptr<Process> run = StartJob("bsp");
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  // Everything is on its way to the victim, then from it.
  for (const int to : {1, 2}) {
    const int64_t moves = status->moves();
    const std::unique_ptr<Process> move =
        StartTool(absl::StrCat("move-", to),
                  {"move", Job(), "0-21", "--to", absl::StrCat(to)});
    ASSERT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                            [&](const wire::StatusReply& now) {
                              return now.moves() > moves;
                            })
                    .has_value())
        << move->Output();
    SignalProcess(ServerPid(*status, 1), SIGKILL);
    status = AwaitReplaced(ResolvedConfig(), *status, 1);
    ASSERT_TRUE(status.has_value()) << run->Output();
    move->WaitText(kJobMax);  // It may be done, or its server gone.
  }
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], model);
}

// With a rule for stale gradients that remembers something of each shard.
TEST_F(Replicas, WithGivenDelaysTheBitsStayThoseOfTheReplay) {
  const std::string job = Write("job.textproto", JobText());
  std::vector<std::string> flags = {
      absl::StrCat("--set=train.epochs=", kEpochs / 2),
      "--set=optimizer.momentum.learning_rate=0.02",
      "--set=sync.stale[0]={adaptive_delay_compensation{}}",
      "--set=worker[0].conditions.step_ms=10"};
  const std::unique_ptr<Process> replay =
      StartReplay("replay", job, "uniform:4", flags);
  ASSERT_EQ(replay->WaitText(kJobMax), kEndedWell) << replay->Output();
  flags.push_back("--delays=uniform:4");
  const std::unique_ptr<Process> run = StartRun("run", job, flags);
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  Tool("move", {"move", Job(), "0-9", "--to", "1"});
  SignalProcess(ServerPid(*status, 1), SIGKILL);
  status = AwaitReplaced(ResolvedConfig(), *status, 1);
  ASSERT_TRUE(status.has_value()) << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["state"], "FINISHED");
  EXPECT_NE(summary["model_sha256"], "");
  EXPECT_EQ(summary["model_sha256"],
            ReadJson(Path("replay/summary.json"))["model_sha256"]);
}

TEST_F(Replicas, ADrainedServerGivesItsCopiesAwayFirst) {
  const std::string model = ModelOfBsp();
  const std::unique_ptr<Process> run = StartJob("bsp");
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  Tool("drain", {"drain", Job(), "1"});
  status = AwaitGone(ResolvedConfig(), 1);
  ASSERT_TRUE(status.has_value()) << run->Output();
  // Of the two that are left each has all shards.
  SignalProcess(ServerPid(*status, 2), SIGKILL);
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 2).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), HasSubstr("server 1 was drained and has left"));
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], model);
}

// Whoever was away for so long may still be asked by workers who do not know
// yet, and must not answer.
TEST_F(Replicas, AServerThatWasStoppedBeyondItsLeaseHarmsNobody) {
  const std::string model = ModelOfBsp();
  const std::unique_ptr<Process> run = StartJob("bsp");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t stopped = ServerPid(*status, 1);
  SignalProcess(stopped, SIGSTOP);
  const auto without = AwaitGone(ResolvedConfig(), 1);
  ASSERT_TRUE(without.has_value()) << run->Output();
  const int64_t clock = SlowestClock(*without);
  EXPECT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                          [&](const wire::StatusReply& now) {
                            return SlowestClock(now) >= clock + 10;
                          })
                  .has_value())
      << "the others go on without it";
  SignalProcess(stopped, SIGCONT);
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 1).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(ReadText(Path("run/logs/server-1.log")),
              HasSubstr("was stopped for "));
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], model);
}

TEST_F(Replicas, TwoServersAtOnceEndTheJobWithASentence) {
  const std::unique_ptr<Process> run = StartJob("bsp");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  for (const int victim : {1, 2})
    SignalProcess(ServerPid(*status, victim), SIGKILL);
  EXPECT_EQ(run->WaitText(kEndMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["cause"], "SERVER_LOST");
  EXPECT_THAT(summary["reason"].get<std::string>(), HasSubstr("replicas"));
}

TEST_F(Replicas, TheCommandsOfThePageWorkAsPrinted) {
  EXPECT_EQ(RunCommandsOfPage("replicas.md"), 3);
}

}  // namespace slackline::replicas_test
