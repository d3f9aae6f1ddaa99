// `slackline run` with the real binaries: every way in which a job ends, and
// that no process is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "tools/cli/coordinator_client.h"
#include "tools/cli/logs.h"
#include "tools/cli/process.h"
#include "tools/cli/summary_table.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// Far beyond what any step here takes, so that a hang fails and nothing else.
constexpr absl::Duration kWaitMax = absl::Seconds(60);
constexpr absl::Duration kLookAgain = absl::Milliseconds(20);

constexpr char kConfig[] = R"(
job: "tiny"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 }
model { softmax {} }
data { teacher_student { features: 8 classes: 3 train_examples: 512
                         test_examples: 64 } batch_size: 8 }
optimizer { sgd { learning_rate: 0.1 } }
limits { lease_ms: 2000 }
)";
// A job that does not end by itself while a test lasts.
constexpr char kEndless[] = "--set=train.epochs=1000000";

bool IsRunning(pid_t pid) {
  // Its parent is gone, so it is ours (see PR_SET_CHILD_SUBREAPER).
  while (waitpid(pid, nullptr, WNOHANG) == pid) {
  }
  return kill(pid, 0) == 0 || errno != ESRCH;
}

class RunCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("slackline-run-") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "tiny.textproto") << kConfig;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }

  std::string Out() const { return (folder_ / "out").string(); }
  // What the command has written to stdout and stderr.
  std::string Output() const { return ReadTail((folder_ / "log").string()); }

  std::vector<std::string> Command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SLACKLINE_BINARY);
    return arguments;
  }
  void StartRun(const std::vector<std::string>& flags) {
    std::vector<std::string> command =
        Command({"run", (folder_ / "tiny.textproto").string(),
                 absl::StrCat("--out=", Out())});
    command.insert(command.end(), flags.begin(), flags.end());
    auto run = ChildProcess::Start(
        {.command = command, .log_path = (folder_ / "log").string()});
    ASSERT_TRUE(run.ok()) << run.status();
    run_.emplace(*std::move(run));
  }
  // "still runs" if it does not end.
  std::string AwaitRun() { return Await(&*run_); }
  std::string Await(ChildProcess* process) {
    const absl::Time deadline = absl::Now() + kWaitMax;
    while (absl::Now() < deadline) {
      if (const auto status = process->Poll()) return status->ToString();
      absl::SleepFor(kLookAgain);
    }
    return "still runs";
  }
  // Asks the coordinator until `wanted` of its status, or fails.
  template <typename Predicate>
  wire::StatusReply AwaitStatus(Predicate wanted) {
    const absl::Time deadline = absl::Now() + kWaitMax;
    while (absl::Now() < deadline) {
      const auto config = LoadClusterConfig(Out() + "/cluster.textproto");
      if (config.ok()) {
        auto client = CoordinatorClient::Connect(CoordinatorEndpoint(*config));
        if (client.ok()) {
          const auto status = (*client)->GetStatus(absl::Seconds(1));
          if (status.ok() && wanted(*status)) return *status;
        }
      }
      absl::SleepFor(kLookAgain);
    }
    ADD_FAILURE() << "the status never came; output:\n" << Output();
    return {};
  }
  // Every worker has trained.
  wire::StatusReply AwaitTraining() {
    return AwaitStatus([](const wire::StatusReply& status) {
      if (status.view().state() != wire::RUNNING) return false;
      for (const run::WorkerStats& worker : status.worker()) {
        if (worker.clock() == 0) return false;
      }
      return status.worker_size() == 2;
    });
  }
  static std::vector<pid_t> Pids(const wire::StatusReply& status) {
    std::vector<pid_t> pids;
    for (const auto& server : status.server()) {
      pids.push_back(static_cast<pid_t>(server.pid()));
    }
    for (const auto& worker : status.worker()) {
      pids.push_back(static_cast<pid_t>(worker.pid()));
    }
    return pids;
  }
  void ExpectNoneIsLeft(const wire::StatusReply& status) {
    const std::vector<pid_t> pids = Pids(status);
    EXPECT_EQ(pids.size(), 4);
    for (const pid_t pid : pids) EXPECT_FALSE(IsRunning(pid)) << pid;
  }

  fs::path folder_;
  std::optional<ChildProcess> run_;
};

TEST_F(RunCommandTest, AJobThatFinishesLeavesItsResults) {
  StartRun({"--mode=ssp:2", "--epochs=2", "--seed=7"});
  EXPECT_EQ(AwaitRun(), "exited with code 0") << Output();
  EXPECT_THAT(Output(), HasSubstr("mode   steps"));
  EXPECT_THAT(Output(), HasSubstr("ssp:2     64"));
  const absl::StatusOr<RunResult> result = ReadRunResult(Out());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->summary.mode(), "ssp:2");
  EXPECT_EQ(result->summary.seed(), 7);
  EXPECT_EQ(result->summary.steps(), 64);  // 2 * 512 / (8 * 2)
  EXPECT_TRUE(fs::exists(Out() + "/model.safetensors"));
  EXPECT_TRUE(fs::exists(Out() + "/metrics.jsonl"));
  EXPECT_TRUE(fs::exists(Out() + "/logs/worker-1.log"));
  const auto config = LoadClusterConfig(Out() + "/cluster.textproto");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ModeText(*config), "ssp:2");
  EXPECT_EQ(config->train().seed(), 7);
}

TEST_F(RunCommandTest, StopEndsItWithTheReason) {
  StartRun({kEndless});
  const wire::StatusReply status = AwaitTraining();
  auto stop = ChildProcess::Start(
      {.command = Command({"stop", Out(), "--reason=seen enough"}),
       .log_path = (folder_ / "stop.log").string()});
  ASSERT_TRUE(stop.ok()) << stop.status();
  EXPECT_EQ(Await(&*stop), "exited with code 0");
  EXPECT_EQ(AwaitRun(), "exited with code 1");
  EXPECT_THAT(Output(), HasSubstr("slackline run: the job failed"));
  EXPECT_THAT(Output(), HasSubstr("seen enough"));
  ExpectNoneIsLeft(status);
}

TEST_F(RunCommandTest, StatusShowsItsMembers) {
  StartRun({kEndless});
  AwaitTraining();
  auto show =
      ChildProcess::Start({.command = Command({"status", Out()}),
                           .log_path = (folder_ / "status.log").string()});
  ASSERT_TRUE(show.ok()) << show.status();
  EXPECT_EQ(Await(&*show), "exited with code 0");
  const std::string table = ReadTail((folder_ / "status.log").string());
  EXPECT_THAT(table, HasSubstr("job tiny is running"));
  EXPECT_THAT(table, HasSubstr("worker "));
  EXPECT_THAT(table, HasSubstr("server "));
}

TEST_F(RunCommandTest, AnInterruptEndsAllProcesses) {
  StartRun({kEndless});
  const wire::StatusReply status = AwaitTraining();
  run_->Signal(SIGINT);
  EXPECT_EQ(AwaitRun(), "exited with code 1");
  EXPECT_THAT(Output(), HasSubstr("interrupted by the user"));
  ExpectNoneIsLeft(status);
}

TEST_F(RunCommandTest, ItsProcessesDoNotOutliveIt) {
  StartRun({kEndless});
  const wire::StatusReply status = AwaitTraining();
  run_->Signal(SIGKILL);
  EXPECT_EQ(AwaitRun(), "was killed by signal 9 (SIGKILL)");
  const absl::Time deadline = absl::Now() + kWaitMax;
  for (const pid_t pid : Pids(status)) {
    while (IsRunning(pid) && absl::Now() < deadline) {
      absl::SleepFor(kLookAgain);
    }
  }
  ExpectNoneIsLeft(status);
}

TEST_F(RunCommandTest, AKilledWorkerIsStartedAgainAndJoins) {
  StartRun({kEndless, "--mode=asp", "--restart-workers=1"});
  const wire::StatusReply before = AwaitTraining();
  pid_t killed = 0;
  for (const run::WorkerStats& worker : before.worker()) {
    if (worker.rank() == 1) killed = static_cast<pid_t>(worker.pid());
  }
  ASSERT_GT(killed, 0);
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  const wire::StatusReply after =
      AwaitStatus([killed](const wire::StatusReply& status) {
        for (const run::WorkerStats& worker : status.worker()) {
          if (worker.rank() == 1) return worker.pid() != killed;
        }
        return false;
      });
  EXPECT_EQ(after.view().state(), wire::RUNNING);
  EXPECT_THAT(Output(), HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(Output(), HasSubstr("started worker 1 again"));
  EXPECT_TRUE(fs::exists(Out() + "/logs/worker-1.2.log"));
}

TEST_F(RunCommandTest, WithoutServer0ItEndsAndSaysSo) {
  StartRun({kEndless});
  const wire::StatusReply status = AwaitTraining();
  for (const run::ServerStats& server : status.server()) {
    if (server.index() == 0) kill(static_cast<pid_t>(server.pid()), SIGKILL);
  }
  EXPECT_EQ(AwaitRun(), "exited with code 1");
  EXPECT_THAT(Output(), HasSubstr("server 0 (pid "));
  EXPECT_THAT(Output(), HasSubstr("was killed by signal 9 (SIGKILL)"));
  ExpectNoneIsLeft(status);
}

TEST_F(RunCommandTest, ARunIsNeverOverwritten) {
  fs::create_directories(Out());
  std::ofstream(Out() + "/precious") << "data";
  StartRun({});
  EXPECT_EQ(AwaitRun(), "exited with code 1");
  EXPECT_THAT(Output(), HasSubstr(Out() + " is not empty"));
  EXPECT_FALSE(fs::exists(Out() + "/cluster.textproto"));
}

TEST_F(RunCommandTest, WrongUsageIsTold) {
  StartRun({"--mode=fast"});
  EXPECT_EQ(AwaitRun(), "exited with code 2");
  EXPECT_THAT(Output(), HasSubstr("'fast' is no mode"));
}

}  // namespace
}  // namespace slackline
