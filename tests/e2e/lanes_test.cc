// Goal: in steps by all-reduce gradients may be summed by the servers, all or
// some of them, and nothing else of the job changes.
// Method: `slackline run` on a small job; hashes of models, logs, a death.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::lanes_test {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kAll[] = "--set=sync.collective.lane[0]={servers{}}";
constexpr char kWeights[] =
    "--set=sync.collective.lane[0]={table:\"*.weight\" servers{}}";
constexpr char kMeasured[] = "--set=sync.collective.lane[0]={measured{}}";

class LanesTest : public JobTest {
 protected:
  std::string ModelOf(const std::string& name,
                      const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"--epochs=1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Run(name, Write("job.textproto", SmallJob()), all);
    return ReadJson(Path(name + "/summary.json"))["model_sha256"];
  }
  std::string WorkerLog(const std::string& name, int rank = 0) const {
    return ReadText(Path(absl::StrCat(name, "/logs/worker-", rank, ".log")));
  }
};

// On one host the ranks sum in their order, and so do servers: whoever sums,
// the bits are those of bsp.
TEST_F(LanesTest, WhoeverSumsTheModelIsTheSame) {
  const std::string bsp = ModelOf("bsp", {"--mode=bsp"});
  const std::string mode = "--mode=allreduce";
  EXPECT_EQ(ModelOf("ranks", {mode}), bsp);
  EXPECT_EQ(ModelOf("servers", {mode, kAll}), bsp);
  EXPECT_EQ(ModelOf("weights", {mode, kWeights}), bsp);
  EXPECT_EQ(ModelOf("measured", {mode, kMeasured}), bsp);
  EXPECT_EQ(ModelOf("tcp", {mode, kAll, "--set=limits.transport=TCP"}), bsp);
  EXPECT_EQ(ModelOf("phases", {"--set=sync={phase{bsp{} until_epoch:0.4} "
                               "phase{allreduce{} until_epoch:0.8} "
                               "phase{bsp{}} collective{lane{servers{}}}}"}),
            bsp);
  EXPECT_THAT(WorkerLog("servers"),
              HasSubstr("servers sum the gradients of 4 of 4 tables"));
  EXPECT_THAT(WorkerLog("weights"),
              HasSubstr("servers sum the gradients of 2 of 4 tables"));
  EXPECT_THAT(
      WorkerLog("measured"),
      ContainsRegex("of 4 tables, .* a MB takes .* ms among the ranks"));
}

TEST_F(LanesTest, TheOthersGoOnWithoutAWorkerThatDied) {
  constexpr int kVictim = 2;
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", SmallJob()),
      {"--mode=allreduce", "--epochs=20", kAll, "--set=limits.lease_ms=2000"});
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(WorkerPid(*status, kVictim), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(WorkerLog("run", rank),
                HasSubstr("connected to 2 other workers"));
    EXPECT_THAT(WorkerLog("run", rank), HasSubstr("completed 2000 steps"));
  }
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  ASSERT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_GT(summary["test_accuracy"], 0.7);
}

// The next group sums by the servers that are left.
TEST_F(LanesTest, TheJobGoesOnWithoutAServerWhoseShardsHaveCopies) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--mode=allreduce", "--epochs=20", "--restart-servers=0", kAll,
                "--set=replicas=1", "--set=limits.lease_ms=2000"});
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 1), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  // Whoever finds that first gives the group up; others may only see that.
  std::string logs;
  for (const int rank : {0, 1, 2, 3}) logs += WorkerLog("run", rank);
  EXPECT_THAT(logs, HasSubstr("server 1 thread 0 has ended"));
  EXPECT_THAT(WorkerLog("run"), HasSubstr("completed 2000 steps"));
}

TEST_F(LanesTest, AnEntryThatSaysNothingOrFitsNothingIsRefused) {
  const std::string config = Write("job.textproto", SmallJob());
  const auto refused = [&](const char* name, const char* lane) {
    const std::unique_ptr<Process> run =
        StartRun(name, config, {"--mode=allreduce", lane});
    EXPECT_THAT(run->WaitText(kJobMax), testing::Ne(kEndedWell));
    return run->Output();
  };
  EXPECT_THAT(refused("no-way", "--set=sync.collective.lane[0]={table:\"*\"}"),
              HasSubstr("one of ranks, servers, measured is required"));
  EXPECT_THAT(
      refused(
          "no-table",
          "--set=sync.collective.lane[0]={table:\"convolution*\" servers{}}"),
      HasSubstr("\"convolution*\" fits no table of the model"));
}

}  // namespace slackline::lanes_test
