// Goal: workers may be programs of somebody else: what they are told, that they
// train in every kind of mode, and that one that does not work is named.
// Method: `slackline run` with examples/cpp/own_model.cc and with shells.
#include <signal.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::own_program_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPromptly = absl::Seconds(20);
constexpr char kWrongUsage[] = "exited with code 2";

// `more` is put into the worker group.
std::string OwnJob(const std::string& more = "") {
  return absl::StrCat(R"(
job: "own"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 )",
                      more, R"( }
optimizer { momentum { learning_rate: 0.05 momentum: 0.9 } }
train { epochs: 3 seed: 1 }
limits { shard_kib: 1 lease_ms: 2000 stall_timeout_ms: 60000 }
)");
}

class OwnProgram : public JobTest {
 protected:
  // `slackline run` of OwnJob() with this program.
  std::unique_ptr<Process> StartOwn(const std::string& name,
                                    const std::vector<std::string>& program,
                                    std::vector<std::string> flags = {}) {
    flags.push_back("--");
    flags.insert(flags.end(), program.begin(), program.end());
    return StartRun(name, Write("job.textproto", OwnJob()), flags);
  }
  std::unique_ptr<Process> StartShells(const std::string& script,
                                       std::vector<std::string> flags = {}) {
    return StartOwn("run", {"sh", "-c", script}, std::move(flags));
  }
  nlohmann::json Train(const std::string& name, const std::string& mode) {
    const std::unique_ptr<Process> run =
        StartOwn(name, {SLACKLINE_OWN_MODEL}, {absl::StrCat("--mode=", mode)});
    EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
    return ReadJson(Path(absl::StrCat(name, "/summary.json")));
  }
};

TEST_F(OwnProgram, ItsModelIsTrainedInEveryMode) {
  for (const char* const mode : {"ssp:3", "allreduce"}) {
    const nlohmann::json summary = Train(mode, mode);
    EXPECT_EQ(summary["mode"], mode);
    EXPECT_EQ(summary["steps"], 240);
    EXPECT_EQ(summary["data"], "points around ten centers");
    EXPECT_GT(summary["test_accuracy"].get<double>(), 0.95) << mode;
  }
}

TEST_F(OwnProgram, TheSeedAloneDecidesTheModelInBsp) {
  const nlohmann::json one = Train("one", "bsp");
  const nlohmann::json other = Train("other", "bsp");
  EXPECT_GT(one["test_accuracy"].get<double>(), 0.95);
  EXPECT_EQ(one["model_sha256"], other["model_sha256"]);
  EXPECT_EQ(one["test_loss"], other["test_loss"]);
  const std::vector<Tensor> model = ReadModel(Path("one"));
  ASSERT_EQ(model.size(), 6u);
  EXPECT_EQ(model[0].name, "hidden.weight");
}

TEST_F(OwnProgram, OfTheConfigIsStartedAndThatOfTheCommandLineWins) {
  const std::string config =
      Write("job.textproto",
            OwnJob("command: \"sh -c 'echo of the config; exit 3'\""));
  const std::unique_ptr<Process> run = StartRun("run", config);
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr("| of the config"));
  const std::unique_ptr<Process> other =
      StartRun("other", config, {"--", "sh", "-c", "echo of mine; exit 3"});
  EXPECT_EQ(other->WaitText(kPromptly), kFailed);
  EXPECT_THAT(other->Output(), HasSubstr("| of mine"));
  EXPECT_THAT(ReadText(Path("other/cluster.textproto")),
              HasSubstr("sh -c \\'echo of mine; exit 3\\'"));
}

TEST_F(OwnProgram, FindsItsPlaceInTheEnvironment) {
  const std::unique_ptr<Process> run = StartShells(
      "cd /; echo $# $SLACKLINE_INDEX $SLACKLINE_CLUSTER $SLACKLINE_OUT "
      "$SLACKLINE_DATA_DIR; exit 3",
      {"--data-dir=/tmp"});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  for (const int i : {0, 1}) {
    EXPECT_EQ(ReadText(Path(absl::StrCat("run/logs/worker-", i, ".log"))),
              absl::StrCat("0 ", i, " ", Path("run/cluster.textproto"), " ",
                           Path("run"), " /tmp\n"));
  }
}

TEST_F(OwnProgram, AFlagWinsOverTheEnvironment) {
  const std::string config = WriteWithPort("job.textproto", OwnJob());
  const std::vector<std::string> environment = {
      "/usr/bin/env", absl::StrCat("SLACKLINE_CLUSTER=", config),
      "SLACKLINE_INDEX=5"};
  const struct {
    const char* flag;
    const char* index;
  } cases[] = {{"--out=x", "5"}, {"--index=7", "7"}};
  for (const auto& c : cases) {
    std::vector<std::string> command = environment;
    command.push_back(SLACKLINE_OWN_MODEL);
    command.push_back(c.flag);
    Process worker(command, Path(absl::StrCat(c.index, ".log")));
    EXPECT_EQ(worker.WaitText(kPromptly), kWrongUsage);
    EXPECT_THAT(worker.Output(), HasSubstr(absl::StrCat("--index: ", c.index,
                                                        " is outside [0, 2)")));
  }
}

TEST_F(OwnProgram, OneThatIsNotThereIsNamedBeforeAnythingStarts) {
  const std::unique_ptr<Process> run = StartOwn("run", {"./no-such-program"});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(),
              HasSubstr("worker[0].command: program './no-such-program' cannot "
                        "be started: No such file"));
  EXPECT_FALSE(std::filesystem::exists(Path("run")));
  const std::unique_ptr<Process> none =
      StartRun("none", Write("job.textproto", OwnJob()));
  EXPECT_EQ(none->WaitText(kPromptly), kFailed);
  EXPECT_THAT(none->Output(), HasSubstr("slackline run CONFIG -- python3"));
}

TEST_F(OwnProgram, OneThatEndsAtOnceIsNamedWithItsLastWords) {
  const std::unique_ptr<Process> bad = StartShells("echo no weights; exit 3");
  EXPECT_EQ(bad->WaitText(kPromptly), kFailed);
  EXPECT_THAT(bad->Output(),
              AllOf(HasSubstr("exited with code 3 before the job had started"),
                    HasSubstr("| no weights")));
  const std::unique_ptr<Process> good = StartOwn("good", {"/bin/true"});
  EXPECT_EQ(good->WaitText(kPromptly), kFailed);
  EXPECT_THAT(good->Output(),
              HasSubstr("exited with code 0 before the job had started"));
  EXPECT_THAT(good->Output(), HasSubstr("ended well without having joined"));
}

TEST_F(OwnProgram, ALogThatBecomesLongIsPutAside) {
  // 5 MiB, and then words at its end.
  const std::unique_ptr<Process> run = StartShells(
      "for i in 1 2 3 4 5; do head -c 1000000 /dev/zero | tr '\\0' x; sleep "
      "0.4; done; echo; echo no weights; exit 3",
      {"--set=launch.log_mib=1"});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr("| no weights"));
  const std::string log = Path("run/logs/worker-0.log");
  EXPECT_LT(fs::file_size(log), 4000000u);
  EXPECT_GT(fs::file_size(Path("run/logs/worker-0.old.log")), 1u << 20);
}

TEST_F(OwnProgram, OneThatNeverJoinsIsNamed) {
  const std::unique_ptr<Process> run =
      StartShells("sleep 1000", {"--set=limits.start_timeout_ms=2000"});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr("did not join within 2000 ms"));
}

TEST_F(OwnProgram, AnInterruptEndsWhatItHasStarted) {
  // The first one trains as a grandchild of `slackline run`; both leave a
  // process that mentions the test's folder.
  const std::unique_ptr<Process> run = StartShells(
      absl::StrCat("tail -f $SLACKLINE_CLUSTER & if [ $SLACKLINE_INDEX = 0 ]; "
                   "then ",
                   SLACKLINE_OWN_MODEL, "; exit $?; else exec ",
                   SLACKLINE_OWN_MODEL, "; fi"),
      {"--epochs=100000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kPromptly), "exited with code 130") << run->Output();
  EXPECT_THAT(run->Output(), AllOf(HasSubstr("interrupted by the user"),
                                   Not(HasSubstr("SIGTERM"))));
  ExpectNoProcessLeft();
}

TEST_F(OwnProgram, ExperimentsTakeItAndReplaysDoNot) {
  const std::string config = Write("job.textproto", OwnJob());
  const std::unique_ptr<Process> ablate =
      StartTool("ablate", {"ablate", config, "--over=mode=bsp,asp", "--seeds=1",
                           "--set=train.epochs=1", "--no-report",
                           absl::StrCat("--out=", Path("grid")), "--",
                           SLACKLINE_OWN_MODEL});
  EXPECT_EQ(ablate->WaitText(kJobMax), kEndedWell) << ablate->Output();
  EXPECT_THAT(ablate->Output(), HasSubstr("2 of 2 runs done"));
  const std::unique_ptr<Process> replay =
      StartTool("replay", {"replay", config, "--delays=uniform:2",
                           absl::StrCat("--out=", Path("replay"))});
  EXPECT_EQ(replay->WaitText(kPromptly), kFailed);
  EXPECT_THAT(replay->Output(),
              HasSubstr("programs of their own, which a replay cannot stand"));
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 0,
                  WriteWithPort("port.textproto", OwnJob()), "out");
  EXPECT_EQ(worker->WaitText(kPromptly), kFailed);
  EXPECT_THAT(worker->Output(), HasSubstr("slackline_worker cannot stand in"));
}

// Of docs/manual/own-models.md, as they stand there.
TEST_F(OwnProgram, CommandsOfThePageWork) {
  EXPECT_EQ(RunCommandsOfPage("own-models.md"), 3);
}

TEST_F(OwnProgram, DashesAreForWhatStartsWorkers) {
  const std::unique_ptr<Process> status =
      StartTool("status", {"status", "x", "--", "train"});
  EXPECT_EQ(status->WaitText(kPromptly), kWrongUsage);
  EXPECT_THAT(status->Output(),
              HasSubstr("is for slackline run, doctor, compare and"));
  const std::unique_ptr<Process> nothing = StartTool("run", {"run", "x", "--"});
  EXPECT_EQ(nothing->WaitText(kPromptly), kWrongUsage);
  EXPECT_THAT(nothing->Output(), HasSubstr("no program follows --"));
}

}  // namespace slackline::own_program_test
