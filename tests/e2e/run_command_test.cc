// Goal: what `slackline run` and `slackline status` show and promise beside the
// job itself. Method: the real programs, with a small job.
#include <signal.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr char kWrongUsage[] = "exited with code 2";

class RunCommand : public JobTest {};

TEST_F(RunCommand, ShowsTheResultAndKeepsTheResolvedConfig) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--mode=ssp:2", "--epochs=1", "--seed=7"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("mode   steps"));
  EXPECT_THAT(run->Output(), HasSubstr("ssp:2    100"));
  const auto config = LoadJobConfig(Path("run/cluster.textproto"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ModeText(*config), "ssp:2");
  EXPECT_EQ(config->train().seed(), 7);
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["mode"], "ssp:2");
  EXPECT_EQ(summary["seed"], 7);
  EXPECT_EQ(summary["steps"], 100);
}

TEST_F(RunCommand, StatusShowsTheMembersOfARunningJob) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  const std::unique_ptr<Process> show =
      StartTool("status", {"status", Path("run")});
  EXPECT_EQ(show->WaitText(kSoon), kEndedWell) << show->Output();
  EXPECT_THAT(show->Output(), HasSubstr("job small is running"));
  EXPECT_THAT(show->Output(), HasSubstr("worker "));
  EXPECT_THAT(show->Output(), HasSubstr("server "));
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
}

TEST_F(RunCommand, ItsProcessesDoNotOutliveItsOwnDeath) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  run->Signal(SIGKILL);
  EXPECT_EQ(run->WaitText(kSoon), "was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(WaitUntil(
      kSoon, [&] { return ProcessesMentioning(Path("run")).empty(); }));
}

TEST_F(RunCommand, NeverOverwritesARun) {
  std::filesystem::create_directories(Path("run"));
  Write("run/precious", "data");
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()));
  EXPECT_EQ(run->WaitText(kSoon), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr(Path("run") + " is not empty"));
  EXPECT_FALSE(std::filesystem::exists(Path("run/cluster.textproto")));
}

TEST_F(RunCommand, RefusesAModeThatDoesNotExist) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()), {"--mode=fast"});
  EXPECT_EQ(run->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(run->Output(), HasSubstr("'fast' is no mode"));
}

TEST_F(RunCommand, ShowsEveryProblemOfAConfigAtItsPlace) {
  const std::string config =
      Write("job.textproto",
            absl::StrCat("limits {\n  lease_ms: 5\n  window_kib: 0\n}\n",
                         SmallJob().replace(SmallJob().find("limits"),
                                            std::string::npos, "\n")));
  const std::unique_ptr<Process> run = StartRun("run", config);
  EXPECT_EQ(run->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(run->Output(), HasSubstr(config + ":2:3: limits.lease_ms: "));
  EXPECT_THAT(run->Output(), HasSubstr(config + ":3:3: limits.window_kib: "));
}

class MemberCommand : public JobTest,
                      public ::testing::WithParamInterface<const char*> {};

TEST_P(MemberCommand, RefusesAnIndexAndAPortThatCannotBe) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> beyond =
      StartMember("beyond", GetParam(), 4, config, "out");
  EXPECT_EQ(beyond->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(beyond->Output(), HasSubstr("--index: 4 is outside [0, "));
  const std::unique_ptr<Process> no_port = StartMember(
      "no-port", GetParam(), 0,
      Write("no-port.textproto", "coordinator { port: 0 }\n" + SmallJob()),
      "out");
  EXPECT_EQ(no_port->WaitText(kSoon), kWrongUsage);
  EXPECT_THAT(no_port->Output(), HasSubstr("coordinator.port: value is 0"));
}

INSTANTIATE_TEST_SUITE_P(Both, MemberCommand,
                         ::testing::Values("slackline_server",
                                           "slackline_worker"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_F(RunCommand, AServerRefusesFlagsThatSayWhatTheConfigSays) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const struct {
    const char* name;
    int index;
    std::vector<std::string> flags;
    const char* reason;
  } cases[] = {
      {"in-config",
       1,
       {"--add"},
       "--index: 1 belongs to the config, which has"},
      {"host", 1, {"--host=127.0.0.1"}, "--host and --threads are for --add"},
      {"threads", 1, {"--threads=2"}, "--host and --threads are for --add"},
      {"no-threads", 7, {"--add", "--threads=0"}, "--threads: "},
  };
  for (const auto& c : cases) {
    const std::unique_ptr<Process> server = StartMember(
        c.name, "slackline_server", c.index, config, "out", c.flags);
    EXPECT_EQ(server->WaitText(kSoon), kWrongUsage) << c.name;
    EXPECT_THAT(server->Output(), HasSubstr(c.reason));
  }
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 7, config, "out", {"--add"});
  EXPECT_EQ(worker->WaitText(kSoon), kWrongUsage)
      << "workers join without being told";
}

}  // namespace
}  // namespace slackline
