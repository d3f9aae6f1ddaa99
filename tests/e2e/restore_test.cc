// Goal: a job that loses servers, or the workers that it needs, is started
// again from its last checkpoint, where its config asks for that, and ends with
// the bits of one that nobody disturbed; one that makes no progress is given
// up; and who wants it to end, ends it. Method: the real programs, killed with
// SIGKILL.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/shell_line.h"
#include "common/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/must.h"
#include "tests/support/run_files.h"

namespace slackline::restore_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr Clock kSteps = 600;
constexpr char kRestoring[] = "restoring the job: ";

// 2 servers and 2 workers whose steps take some milliseconds, so that they can
// be killed in the job's midst.
std::string SomeJob() {
  return R"(
job: "small"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 conditions { step_ms: 12 } }
model { mlp { hidden: 32 } }
data {
  teacher_student {
    features: 16 classes: 4 train_examples: 8000 test_examples: 1000
  }
  batch_size: 20
}
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: 3 seed: 1 }
limits { shard_kib: 1 lease_ms: 2000 }
)";
}

class Restore : public JobTest {
 protected:
  std::string JobWith(const std::string& checkpoint) const {
    return Write("job.textproto",
                 absl::StrCat("checkpoint { ", checkpoint, " }\n", SomeJob()));
  }
  std::string Cluster() const { return Path("run/cluster.textproto"); }
  // The model that comes out if nobody disturbs the job. Its workers need no
  // time.
  std::string UndisturbedHash(const std::string& mode) {
    Run("undisturbed", Write("plain.textproto", SomeJob()),
        {absl::StrCat("--mode=", mode),
         "--set=worker[0].conditions.step_ms=0"});
    return HashOf("undisturbed");
  }
  std::string HashOf(const std::string& run) const {
    return ReadJson(Path(absl::StrCat(run, "/summary.json")))["model_sha256"]
        .get<std::string>();
  }
  // The status of a run of the job that none of `runs_` is, once all workers
  // are there and have come to `clock`.
  std::optional<wire::StatusReply> AwaitNextRun(Clock clock) {
    const std::optional<wire::StatusReply> status =
        AwaitStatus(Cluster(), kJobMax, [&](const wire::StatusReply& reply) {
          return reply.view().state() == wire::RUNNING &&
                 std::count(runs_.begin(), runs_.end(), reply.view().run()) ==
                     0 &&
                 reply.worker_size() == 2 && reply.server_size() == 2 &&
                 std::all_of(reply.worker().begin(), reply.worker().end(),
                             [&](const run::WorkerStats& worker) {
                               return worker.clock() >= clock;
                             });
        });
    if (status.has_value()) runs_.push_back(status->view().run());
    return status;
  }
  bool AwaitCheckpoint() const {
    return WaitUntil(kJobMax, [&] {
      std::error_code error;
      for (fs::directory_iterator at(Path("run/checkpoints"), error), end;
           !error && at != end; at.increment(error)) {
        if (absl::StartsWith(at->path().filename().string(), "step-"))
          return true;
      }
      return false;
    });
  }
  // The first number between the two; -1: there is none.
  static Clock NumberAfter(const std::string& text, const std::string& before,
                           const std::string& behind) {
    const std::vector<std::string> pieces = absl::StrSplit(text, before);
    for (size_t i = 1; i < pieces.size(); ++i) {
      Clock number = -1;
      if (absl::SimpleAtoi(pieces[i].substr(0, pieces[i].find(behind)),
                           &number))
        return number;
    }
    return -1;
  }
  static int Restores(const std::string& output) {
    return static_cast<int>(
               std::vector<std::string>(absl::StrSplit(output, kRestoring))
                   .size()) -
           1;
  }

  std::vector<uint64_t> runs_;
};

TEST_F(Restore, AfterEveryKindOfLossTheModelHasTheSameBits) {
  const std::string hash = UndisturbedHash("bsp");
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"),
               {"--mode=bsp"});
  auto status = AwaitNextRun(60);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  const pid_t server_1 = ServerPid(*status, 1);
  SignalProcess(server_1, SIGKILL);
  status = AwaitNextRun(200);
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t server_0 = ServerPid(*status, 0);
  SignalProcess(server_0, SIGKILL);
  status = AwaitNextRun(350);
  ASSERT_TRUE(status.has_value()) << run->Output();
  for (const int rank : {0, 1})
    SignalProcess(WorkerPid(*status, rank), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(HashOf("run"), hash);

  const std::string output = run->Output();
  EXPECT_EQ(Restores(output), 3) << output;
  EXPECT_THAT(
      output,
      AllOf(HasSubstr(absl::StrCat(kRestoring, "server 1 (pid ", server_1)),
            HasSubstr(absl::StrCat(kRestoring, "server 0 (pid ", server_0)),
            HasSubstr("no worker is left"),
            HasSubstr(absl::StrCat("goes on from step ")),
            HasSubstr(Path("run/checkpoints/step-")), HasSubstr("done anew"),
            HasSubstr("went on small bsp: 3 times")));
  EXPECT_EQ(ReadJson(Path("run/earlier-1/summary.json"))["cause"],
            "SERVER_LOST");
  EXPECT_EQ(ReadJson(Path("run/earlier-3/summary.json"))["cause"],
            "NO_WORKER_LEFT");
  // Server 0 could not write where its run had begun.
  const nlohmann::json without_0 = ReadJson(Path("run/earlier-2/summary.json"));
  EXPECT_EQ(without_0["about"], nlohmann::json({"server 0"}));
  EXPECT_GT(without_0["resumed_from"]["clock"], 0) << without_0;
  // `summary` counts by what the slowest worker of each run has come to, and
  // each loss is told by the fastest.
  const std::vector<std::string> losses = absl::StrSplit(output, kRestoring);
  Clock told = 0;
  for (size_t i = 1; i < losses.size(); ++i)
    told += NumberAfter(losses[i], ": ", " step");
  const Clock counted = NumberAfter(output, "; steps done anew: ", "\n");
  EXPECT_GT(counted, 0) << output;
  EXPECT_LE(counted, told) << output;
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["cause"], "COMPLETED");
  // The records are those of one run.
  Clock evaluated = 0;
  for (const nlohmann::json& line : ReadJsonLines(Path("run/metrics.jsonl"))) {
    if (line["kind"] != "eval") continue;
    EXPECT_GT(line["step"].get<Clock>(), evaluated) << line;
    evaluated = line["step"].get<Clock>();
  }
  EXPECT_EQ(evaluated, kSteps);
  for (const auto& entry : fs::directory_iterator(Path("run/checkpoints")))
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("step-"));
}

TEST_F(Restore, ByAllReduceTheModelIsLostWithTheLastWorker) {
  const std::string hash = UndisturbedHash("allreduce");
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"),
               {"--mode=allreduce"});
  auto status = AwaitNextRun(60);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  for (const int rank : {0, 1})
    SignalProcess(WorkerPid(*status, rank), SIGKILL);
  status = AwaitNextRun(200);
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 0), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 2) << run->Output();
  EXPECT_EQ(HashOf("run"), hash);
}

TEST_F(Restore, WithGivenDelaysOneWorkerIsALoss) {
  std::vector<std::string> flags = {
      "--delays=uniform:3", "--set=optimizer.momentum.learning_rate=0.01"};
  const std::unique_ptr<Process> run = StartRun(
      "run", JobWith("every_steps: 20 on_server_loss: RESTORE"), flags);
  const auto status = AwaitNextRun(60);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  const pid_t worker = WorkerPid(*status, 1);
  SignalProcess(worker, SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 1) << run->Output();
  EXPECT_THAT(
      run->Output(),
      AllOf(HasSubstr(absl::StrCat(kRestoring, "worker 1 (pid ", worker)),
            HasSubstr("goes on from step ")));
  EXPECT_EQ(ReadJson(Path("run/earlier-1/summary.json"))["cause"],
            "WORKER_LOST");
  flags.push_back("--set=worker[0].conditions.step_ms=0");
  Run("undisturbed", Write("plain.textproto", SomeJob()), flags);
  EXPECT_EQ(HashOf("run"), HashOf("undisturbed"));
}

TEST_F(Restore, BeforeTheFirstCheckpointTheJobBeginsAnew) {
  const std::string hash = UndisturbedHash("bsp");
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("on_server_loss: RESTORE"), {"--mode=bsp"});
  const auto status = AwaitNextRun(20);
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 0), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 1) << run->Output();
  EXPECT_THAT(run->Output(),
              HasSubstr("begins anew, since it has no checkpoint yet"));
  EXPECT_EQ(HashOf("run"), hash);
  EXPECT_FALSE(ReadJson(Path("run/summary.json")).contains("resumed_from"));
}

TEST_F(Restore, WhereAllCheckpointsAreDamagedItDoesNotBeginAnew) {
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"),
               {"--mode=bsp"});
  const auto status = AwaitNextRun(60);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  SignalProcess(ServerPid(*status, 0), SIGSTOP);  // No other one is completed.
  std::vector<std::string> damaged;
  for (const auto& entry : fs::directory_iterator(Path("run/checkpoints"))) {
    if (!absl::StartsWith(entry.path().filename().string(), "step-")) continue;
    fs::resize_file(entry.path() / "manifest.json", 100);
    damaged.push_back(entry.path().string());
  }
  SignalProcess(ServerPid(*status, 0), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 0) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("cannot be restored (server 0 (pid "));
  ASSERT_FALSE(damaged.empty());
  for (const std::string& checkpoint : damaged)
    EXPECT_THAT(run->Output(), HasSubstr(checkpoint + " cannot be used: "));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "SERVER_LOST");
}

TEST_F(Restore, WhoDoesNotAskForItGetsAFailedJob) {
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20"), {"--mode=bsp"});
  const auto status = AwaitNextRun(60);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  SignalProcess(ServerPid(*status, 1), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 0) << run->Output();
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "SERVER_LOST");
  EXPECT_FALSE(fs::exists(Path("run/earlier-1")));
}

TEST_F(Restore, WithoutProgressItIsGivenUp) {
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("on_server_loss: RESTORE"), {"--mode=bsp"});
  for (int i = 0; i < 3; ++i) {
    const auto status = AwaitNextRun(0);
    ASSERT_TRUE(status.has_value()) << run->Output();
    SignalProcess(ServerPid(*status, 1), SIGKILL);
  }
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 2) << run->Output();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("lost 3 times in a row without a newer "
                              "checkpoint"),
                    HasSubstr("the job was restored 2 times"),
                    HasSubstr("its shards are lost")));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "SERVER_LOST");
}

TEST_F(Restore, AJobThatIsStoppedStaysSo) {
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"));
  ASSERT_TRUE(AwaitNextRun(60).has_value()) << run->Output();
  const std::unique_ptr<Process> stop =
      StartTool("stop", {"stop", Path("run"), "--now"});
  EXPECT_EQ(stop->WaitText(kSoon), kEndedWell) << stop->Output();
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  EXPECT_EQ(Restores(run->Output()), 0) << run->Output();
}

TEST_F(Restore, CtrlCInBetweenEndsItAndLeavesNoProcess) {
  // When the death is seen, and when all are about to be started again.
  for (const char* const moment : {"was killed by signal 9", kRestoring}) {
    SCOPED_TRACE(moment);
    fs::remove_all(Path("run"));
    const std::unique_ptr<Process> run =
        StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"));
    const auto status = AwaitNextRun(30);
    ASSERT_TRUE(status.has_value()) << run->Output();
    SignalProcess(ServerPid(*status, 0), SIGKILL);
    ASSERT_TRUE(WaitUntil(kSoon, [&] {
      return absl::StrContains(run->Output(), moment);
    })) << run->Output();
    run->Signal(SIGINT);
    // Early, with its model, if it ran again by then.
    EXPECT_THAT(run->WaitText(kSoon),
                ::testing::AnyOf(kFailed, "exited with code 130"))
        << run->Output();
    ExpectNoProcessLeft();
    EXPECT_LE(Restores(run->Output()), 1) << run->Output();
    EXPECT_THAT(ReadJson(Path("run/summary.json"))["cause"],
                ::testing::AnyOf("STOPPED", "SERVER_LOST", "FINISHED_EARLY"));
  }
}

TEST_F(Restore, SigtermInBetweenSuspendsItAndTheLineThatIsPrintedGoesOn) {
  const std::string hash = UndisturbedHash("bsp");
  // While the coordinator waits for who is dead; when there is none; and when
  // all are about to be started again.
  struct Case {
    int server;
    const char* moment;
  };
  for (const auto& [server, moment] :
       {Case{1, "killed by signal 9"}, Case{0, "killed by signal 9"},
        Case{0, kRestoring}}) {
    SCOPED_TRACE(absl::StrCat("server ", server, ": ", moment));
    fs::remove_all(Path("run"));
    const std::unique_ptr<Process> run =
        StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"),
                 {"--mode=bsp", "--no-memory-check", "--restart-workers", "2",
                  "--data-dir=" + Path("some data")});
    const auto status = AwaitNextRun(30);
    ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
    SignalProcess(ServerPid(*status, server), SIGKILL);
    ASSERT_TRUE(WaitUntil(kSoon, [&, moment = moment] {
      return absl::StrContains(run->Output(), moment);
    })) << run->Output();
    run->Signal(SIGTERM);
    EXPECT_EQ(run->WaitText(kSoon), "exited with code 75") << run->Output();
    ExpectNoProcessLeft();
    EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "SUSPENDED");
    EXPECT_THAT(run->Output(),
                AllOf(HasSubstr("the job is suspended: slackline run was told "
                                "to end (SIGTERM or SIGHUP) before"),
                      HasSubstr("goes on from step ")));
  }
  // As a shell would run it.
  const std::string output = ReadText(Path("run.log"));
  const std::string mark = "to go on: slackline run ";
  ASSERT_THAT(output, HasSubstr(mark));
  std::string line = output.substr(output.find(mark) + mark.size());
  line = line.substr(0, line.find('\n'));
  EXPECT_THAT(line, AllOf(HasSubstr("--data-dir"), HasSubstr("some data"),
                          HasSubstr("--restart-workers 2"),
                          HasSubstr("--no-memory-check"),
                          HasSubstr("--out " + Path("run"))));
  std::vector<std::string> words = Must(SplitShellLine(line));
  words.insert(words.begin(), "run");
  const std::unique_ptr<Process> more = StartTool("more", words);
  EXPECT_EQ(more->WaitText(kJobMax), kEndedWell) << more->Output();
  EXPECT_EQ(HashOf("run"), hash);
}

TEST_F(Restore, AnInterruptInBetweenStopsIt) {
  const std::unique_ptr<Process> run =
      StartRun("run", JobWith("every_steps: 20 on_server_loss: RESTORE"));
  const auto status = AwaitNextRun(30);
  ASSERT_TRUE(status.has_value() && AwaitCheckpoint()) << run->Output();
  SignalProcess(ServerPid(*status, 0), SIGKILL);
  ASSERT_TRUE(WaitUntil(kSoon, [&] {
    return absl::StrContains(run->Output(), "killed by signal 9");
  })) << run->Output();
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kSoon), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Restores(run->Output()), 0) << run->Output();
}

TEST_F(Restore, ByHandAJobIsStartedAgainWithTheSameCommands) {
  const std::string hash = UndisturbedHash("bsp");
  const std::string config = WriteWithPort(
      "hand.textproto",
      absl::StrCat("checkpoint { every_steps: 20 }\n", SomeJob()));
  const auto start = [&](const std::string& prefix) {
    std::vector<std::unique_ptr<Process>> members;
    for (const int i : {0, 1}) {
      members.push_back(StartMember(absl::StrCat(prefix, "-server-", i),
                                    "slackline_server", i, config, "run",
                                    {"--restore"}));
    }
    for (const int i : {0, 1}) {
      members.push_back(StartMember(absl::StrCat(prefix, "-worker-", i),
                                    "slackline_worker", i, config, "run"));
    }
    return members;
  };
  {
    const auto members = start("first");
    ASSERT_TRUE(AwaitProgress(config).has_value()) << members[0]->Output();
    ASSERT_TRUE(AwaitCheckpoint()) << members[0]->Output();
    EXPECT_THAT(members[0]->Output(), HasSubstr("begins anew"));
    for (const auto& member : members) member->Signal(SIGKILL);
    for (const auto& member : members) member->WaitText(kSoon);
  }
  const auto members = start("second");
  for (const auto& member : members)
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  for (const int i : {0, 1}) {
    EXPECT_THAT(members[i]->Output(),
                HasSubstr(absl::StrCat("goes on from ",
                                       Path("run/checkpoints/step-"))));
  }
  EXPECT_EQ(HashOf("run"), hash);
  EXPECT_GT(ReadJson(Path("run/summary.json"))["resumed_from"]["clock"], 0);
}

// The port that a run had by chance may be somebody else's by now.
TEST_F(Restore, AKeptConfigAsksForNoPortThatNobodyHasChosen) {
  const std::vector<std::string> flags = {
      "--epochs=0.1", "--set=worker[0].conditions.step_ms=0"};
  Run("run", Write("plain.textproto", SomeJob()), flags);
  const int port = Must(LoadJobConfig(Cluster())).coordinator().port();
  const int somebody = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(somebody, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // If somebody else has it already, that serves as well.
  if (bind(somebody, reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) == 0) {
    ASSERT_EQ(listen(somebody, 1), 0);
  }
  Run("again", Cluster(), flags);
  EXPECT_EQ(HashOf("again"), HashOf("run"));
  EXPECT_NE(
      Must(LoadJobConfig(Path("again/cluster.textproto"))).coordinator().port(),
      port);
  // One that somebody has chosen is taken at his word.
  const std::unique_ptr<Process> chosen = StartRun(
      "chosen", Cluster(), {absl::StrCat("--set=coordinator.port=", port)});
  EXPECT_EQ(chosen->WaitText(kSoon), kFailed) << chosen->Output();
  EXPECT_THAT(chosen->Output(), HasSubstr("coordinator.port"));
  close(somebody);
}

}  // namespace slackline::restore_test
