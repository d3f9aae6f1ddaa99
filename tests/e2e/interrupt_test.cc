// Goal: Ctrl-C ends what it is meant for, in order, and nothing else.
// Method: SIGINT to a whole run, and to one worker that was started by hand.
#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::interrupt_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kInterrupted[] = "exited with code 130";
constexpr int64_t kSteps = 4000;
constexpr absl::Duration kStopMax = absl::Seconds(20);

class Interrupt : public JobTest {};

// A job that was ended early has all that one has at its last step.
void ExpectEndedEarly(const std::string& folder, const std::string& reason) {
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["state"], "FINISHED");
  EXPECT_EQ(summary["cause"], "FINISHED_EARLY");
  EXPECT_THAT(summary["reason"].get<std::string>(), HasSubstr(reason));
  EXPECT_THAT(summary["stopped"].get<std::string>(), HasSubstr(reason));
  EXPECT_GT(summary["test_accuracy"].get<double>(), 0);
  EXPECT_GT(summary["train_loss"].get<double>(), 0);
  ASSERT_THAT(summary["worker"], SizeIs(4));
  for (const nlohmann::json& worker : summary["worker"])
    EXPECT_EQ(worker["steps"], summary["steps"]);
  EXPECT_EQ(ModelSha256(ReadModel(folder)), summary["model_sha256"]);
}

TEST_F(Interrupt, EndsTheWholeRunEarlyWithItsModel) {
  for (const char* const mode : {"ssp:3", "allreduce"}) {
    SCOPED_TRACE(mode);
    const std::string name = mode[0] == 's' ? "over-servers" : "allreduce";
    const std::string folder = Path(name);
    const std::unique_ptr<Process> run =
        StartRun(name, Write("job.textproto", SmallJob()),
                 {absl::StrCat("--mode=", mode), "--epochs=1000"});
    ASSERT_TRUE(AwaitProgress(folder + "/cluster.textproto").has_value())
        << run->Output();
    run->Signal(SIGINT);
    EXPECT_EQ(run->WaitText(kStopMax), kInterrupted) << run->Output();
    ExpectNoProcessLeft();
    EXPECT_THAT(run->Output(),
                HasSubstr("interrupted: ending the job early, with its model"));
    ExpectEndedEarly(folder, "interrupted by the user");
  }
}

TEST_F(Interrupt, OnceMoreStopsTheWholeRunAtOnce) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  run->Signal(SIGTERM);  // As at the second Ctrl-C, which might come late.
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  constexpr char kWhy[] = "SIGTERM to slackline run stopped the job";
  EXPECT_THAT(run->Output(), HasSubstr("SIGTERM: stopping the job at once"));
  EXPECT_THAT(run->Output(),
              HasSubstr(absl::StrCat("the job failed (logs: ", Path("run"),
                                     "/logs): ", kWhy)));
  EXPECT_THAT(run->Output(), HasSubstr(absl::StrCat("\nwhat ", Path("run"),
                                                    " has: no model; ")));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["cause"], "STOPPED");
  EXPECT_THAT(summary["reason"].get<std::string>(), HasSubstr(kWhy));
  // Everybody was told, and nobody had to be killed.
  for (const char* const member : {"server-0", "server-1", "worker-0",
                                   "worker-1", "worker-2", "worker-3"}) {
    EXPECT_THAT(ReadText(Path(absl::StrCat("run/logs/", member, ".log"))),
                HasSubstr(kWhy))
        << member;
  }
}

// Its workers never come. With a checkpoint to go on from it is suspended
// (suspend_test).
TEST_F(Interrupt, WhileAJobFormsTheExitCodeSaysWhoHasEndedIt) {
  for (const auto& [signal, exit] :
       {std::pair(SIGINT, kInterrupted), std::pair(SIGTERM, kFailed)}) {
    const std::string name = signal == SIGINT ? "interrupted" : "terminated";
    SCOPED_TRACE(name);
    const std::unique_ptr<Process> run =
        StartRun(name, Write("job.textproto", SmallJob()),
                 {"--set=worker[0].command=sleep 600"});
    ASSERT_TRUE(AwaitStatus(Path(name + "/cluster.textproto"), kStopMax,
                            [](const wire::StatusReply& status) {
                              return status.server_size() == 2;
                            })
                    .has_value())
        << run->Output();
    run->Signal(signal);
    EXPECT_EQ(run->WaitText(kStopMax), exit) << run->Output();
    ExpectNoProcessLeft();
    EXPECT_THAT(run->Output(),
                HasSubstr(signal == SIGINT ? "interrupted by the user"
                                           : "SIGTERM to slackline run"));
    EXPECT_EQ(ReadJson(Path(name + "/summary.json"))["cause"], "STOPPED");
  }
}

TEST_F(Interrupt, StopEndsAJobFromOutside) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  const std::unique_ptr<Process> stop =
      StartTool("stop", {"stop", Path("run"), "--reason=enough for today"});
  EXPECT_EQ(stop->WaitText(kStopMax), kEndedWell) << stop->Output();
  EXPECT_THAT(stop->Output(), HasSubstr("has finished: ended early, at step"));
  EXPECT_EQ(run->WaitText(kStopMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), HasSubstr("enough for today"));
  ExpectEndedEarly(Path("run"), "enough for today");
}

TEST_F(Interrupt, StopNowEndsAJobWithoutItsModel) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  const std::unique_ptr<Process> stop = StartTool(
      "stop", {"stop", Path("run"), "--now", "--reason=enough for today"});
  EXPECT_EQ(stop->WaitText(kStopMax), kEndedWell) << stop->Output();
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["cause"], "STOPPED");
  EXPECT_EQ(summary["reason"], "enough for today");
}

TEST_F(Interrupt, AJobWithGivenDelaysIsStoppedAtOnce) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--epochs=1000", "--delays=constant:2"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  const std::unique_ptr<Process> stop =
      StartTool("stop", {"stop", Path("run")});
  EXPECT_EQ(stop->WaitText(kStopMax), kFailed) << stop->Output();
  EXPECT_THAT(stop->Output(), HasSubstr("slackline stop --now"));
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), HasSubstr("stopping it at once"));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "STOPPED");
}

TEST_F(Interrupt, OfOneWorkerLetsItLeaveAndTheOthersComplete) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::unique_ptr<Process>> members = StartSmallJobByHand(
      config, "by-hand", {"--mode=ssp:3", "--set=train.epochs=40"});
  const auto status = AwaitProgress(config);
  ASSERT_TRUE(status.has_value()) << members[0]->Output();
  Process& leaver = *members.back();
  ASSERT_EQ(WorkerPid(*status, 3), leaver.pid());
  leaver.Signal(SIGINT);
  EXPECT_EQ(leaver.WaitText(kStopMax), kFailed) << leaver.Output();
  EXPECT_THAT(leaver.Output(), HasSubstr("worker 3 was interrupted by SIGINT"));
  for (const std::unique_ptr<Process>& member : members) {
    if (member.get() == &leaver) continue;
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  }
  const nlohmann::json summary = ReadJson(Path("by-hand/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  ASSERT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_THAT(
      summary["workers_lost"][0].get<std::string>(),
      HasSubstr(absl::StrCat("worker 3 (pid ", leaver.pid(),
                             " on 127.0.0.1) left: worker 3 was interrupted")));
}

}  // namespace slackline::interrupt_test
