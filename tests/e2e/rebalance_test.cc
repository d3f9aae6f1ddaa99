// Goal: shards that move, servers that come and servers that go leave no trace
// in the result, and no process behind.
// Method: the user's commands on running jobs of real processes.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::rebalance_test {

using ::testing::HasSubstr;

class Rebalance : public JobTest {
 protected:
  // A job lasts 15 s on any machine, so that commands, plans and leases come to
  // their end in its midst.
  const std::vector<std::string> arguments_ = {
      "--set=train.epochs=30", "--set=worker[0].conditions.step_ms=5",
      "--set=limits.lease_ms=2000", "--set=rebalance.min_utilisation=0",
      "--set=rebalance.rest_ms=0"};
  std::vector<std::string> With(std::vector<std::string> more) const {
    more.insert(more.end(), arguments_.begin(), arguments_.end());
    return more;
  }
  // 22 shards.
  static std::string JobText() {
    return absl::StrReplaceAll(SmallJob(), {{"hidden: 32", "hidden: 256"}});
  }
  std::string Job() const { return Path("run"); }
  std::string ResolvedConfig() const { return Path("run/cluster.textproto"); }
  // `slackline ARGUMENTS` that must end well; returns what it says.
  std::string Tool(const std::string& name,
                   const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> tool = StartTool(name, arguments);
    EXPECT_EQ(tool->WaitText(kJobMax), kEndedWell) << tool->Output();
    return tool->Output();
  }
  static int ShardsOf(const wire::StatusReply& status, int server) {
    int shards = 0;
    for (const int owner : status.view().owner_server()) {
      shards += owner == server;
    }
    return shards;
  }
};

TEST_F(Rebalance, MovesDrainsAndNewServersLeaveBspTheSameBits) {
  const std::string config = Write("job.textproto", JobText());
  Run("still", config, With({"--mode=bsp"}));

  const std::unique_ptr<Process> run =
      StartRun("run", config, With({"--mode=bsp"}));
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  Tool("move", {"move", Job(), "0-9", "--to", "1"});
  Tool("back", {"move", Job(), "3-6", "--to", "0.0"});
  EXPECT_THAT(Tool("add", {"servers", "add", Job()}), HasSubstr("server 2 "));
  Tool("to-new", {"move", Job(), "0-4", "--to", "2"});
  EXPECT_THAT(Tool("drain", {"drain", Job(), "1"}),
              HasSubstr("server 1 has given its shards away"));
  const auto status = AwaitStatus(
      ResolvedConfig(), kJobMax,
      [](const wire::StatusReply& now) { return now.server_size() == 2; });
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->view().state(), wire::RUNNING)
      << "the job has to be still running for the test to mean anything";
  EXPECT_GE(ShardsOf(*status, 2), 5);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();

  EXPECT_THAT(run->Output(), HasSubstr("server 1 was drained and has left"));
  const nlohmann::json still = ReadJson(Path("still/summary.json"));
  const nlohmann::json moved = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(still["model_sha256"], moved["model_sha256"]);
  EXPECT_EQ(still["shards_moved"], 0);
  EXPECT_GE(moved["shards_moved"], 19);
  EXPECT_EQ(ReadJsonLines(Path("run/moves.jsonl")).size(),
            moved["shards_moved"].get<size_t>());
}

TEST_F(Rebalance, ADrainedServerExitsWellAndTheJobGoesOn) {
  const std::string config = WriteWithPort("job.textproto", JobText());
  const std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(config, "by-hand", With({"--mode=ssp:3"}));
  ASSERT_TRUE(AwaitProgress(config).has_value()) << members[0]->Output();
  Tool("drain", {"drain", config, "1"});
  EXPECT_EQ(members[1]->WaitText(kJobMax), kEndedWell) << members[1]->Output();
  EXPECT_THAT(members[1]->Output(),
              HasSubstr("has no shards and leaves the job"));
  for (const std::unique_ptr<Process>& member : members) {
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  }
  EXPECT_GT(ReadJson(Path("by-hand/summary.json"))["test_accuracy"], 0.7);
}

TEST_F(Rebalance, WithAutoANewServerGetsItsShareByItself) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", JobText()),
               With({"--mode=asp", "--set=rebalance.mode=AUTO",
                     "--set=rebalance.interval_ms=500"}));
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  Tool("add", {"servers", "add", Job()});
  const auto status =
      AwaitStatus(ResolvedConfig(), kJobMax, [](const wire::StatusReply& now) {
        return ShardsOf(now, 2) > 0 && now.plan().move_size() == 0;
      });
  EXPECT_TRUE(status.has_value()) << run->Output();
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
}

TEST_F(Rebalance, AServerWithoutShardsMayDie) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", JobText()), With({"--mode=ssp:3"}));
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  Tool("add", {"servers", "add", Job()});
  auto status = AwaitStatus(
      ResolvedConfig(), kJobMax,
      [](const wire::StatusReply& now) { return now.server_size() == 3; });
  ASSERT_TRUE(status.has_value());
  SignalProcess(ServerPid(*status, 2), SIGKILL);
  status = AwaitStatus(
      ResolvedConfig(), kJobMax,
      [](const wire::StatusReply& now) { return now.server_size() == 2; });
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->view().state(), wire::RUNNING);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
}

TEST_F(Rebalance, AnInterruptedServerWithoutShardsLeavesTheJobAlone) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", JobText()), With({"--mode=ssp:3"}));
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  Tool("add", {"servers", "add", Job()});
  auto status = AwaitStatus(
      ResolvedConfig(), kJobMax,
      [](const wire::StatusReply& now) { return now.server_size() == 3; });
  ASSERT_TRUE(status.has_value());
  SignalProcess(ServerPid(*status, 2), SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(ReadText(Path("run/logs/server-2.log")),
              HasSubstr("has no shards and leaves the job"));
}

TEST_F(Rebalance, WhatCannotBeDoneIsRefusedWithAReason) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", JobText()), With({"--mode=ssp:3"}));
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> tool = StartTool("refused", arguments);
    EXPECT_NE(tool->WaitText(kJobMax), kEndedWell);
    return tool->Output();
  };
  EXPECT_THAT(refused({"drain", Job(), "0"}),
              HasSubstr("server 0 hosts the coordinator"));
  EXPECT_THAT(refused({"drain", Job(), "7"}),
              HasSubstr("server 7 is not in the job"));
  EXPECT_THAT(refused({"move", Job(), "0", "--to", "7"}),
              HasSubstr("server 7 is not in the job"));
  EXPECT_THAT(refused({"move", Job(), "100000", "--to", "1"}),
              HasSubstr("100000"));
  Tool("stop", {"stop", "--now", Job()});
  EXPECT_EQ(run->WaitText(kJobMax), kFailed);
  ExpectNoProcessLeft();
}

}  // namespace slackline::rebalance_test
