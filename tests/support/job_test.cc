#include "tests/support/job_test.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/process/user_key_file.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tests/support/run_files.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Processes are waited for before their starter ends; this is for the kernel.
constexpr absl::Duration kGoneMax = absl::Seconds(5);

std::string Program(const std::string& name) {
  return absl::StrCat(SLACKLINE_BIN_DIR, "/", name);
}

}  // namespace

std::string SmallJob(const SmallJobOptions& options) {
  return absl::StrCat(R"(
job: "small"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: )",
                      options.workers, R"( }
model { mlp { hidden: 32 } }
data {
  teacher_student {
    features: 16 classes: 4 train_examples: 8000 test_examples: 1000
  }
  batch_size: 20
}
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { )",
                      options.train, R"( }
# Small shards, so that there are some.
limits { shard_kib: 1 lease_ms: )",
                      options.lease_ms, " }\n");
}

JobTest::JobTest() {
  const testing::TestInfo& test =
      *testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = absl::StrReplaceAll(
      absl::StrCat(test.test_suite_name(), ".", test.name(), ".", getpid()),
      {{"/", "-"}});
  folder_ = (fs::path(testing::TempDir()) / name).string();
  fs::remove_all(folder_);
  fs::create_directories(folder_);
}

JobTest::~JobTest() {
  ExpectNoProcessLeft();
  if (HasFailure()) {
    std::fprintf(stderr, "all files of the test are in %s\n", folder_.c_str());
    return;
  }
  std::error_code error;
  fs::remove_all(folder_, error);
}

std::string JobTest::Path(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

std::string JobTest::Write(const std::string& name,
                           const std::string& text) const {
  std::ofstream file(Path(name), std::ios::binary);
  file << text;
  EXPECT_TRUE(file.flush().good()) << Path(name);
  return Path(name);
}

std::string JobTest::WriteWithPort(const std::string& name,
                                   const std::string& text) {
  absl::StatusOr<PortReservation> port = PortReservation::AnyFree("127.0.0.1");
  SL_CHECK(port.ok(), port.status().ToString());
  ports_.push_back(*std::move(port));
  return Write(name, absl::StrCat("coordinator { port: ", ports_.back().port(),
                                  " }\n", text));
}

std::unique_ptr<Process> JobTest::StartTool(
    const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {Program("slackline")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Process>(command, Path(absl::StrCat(name, ".log")));
}

std::unique_ptr<Process> JobTest::StartRun(
    const std::string& name, const std::string& config,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"run", config,
                                  absl::StrCat("--out=", Path(name))};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return StartTool(name, all);
}

void JobTest::Run(const std::string& name, const std::string& config,
                  const std::vector<std::string>& arguments) {
  const std::unique_ptr<Process> run = StartRun(name, config, arguments);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
}

std::unique_ptr<Process> JobTest::StartMember(
    const std::string& name, const std::string& program, int index,
    const std::string& cluster_file, const std::string& out,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      Program(program), absl::StrCat("--cluster=", cluster_file),
      absl::StrCat("--index=", index), absl::StrCat("--out=", Path(out))};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Process>(command, Path(absl::StrCat(name, ".log")));
}

std::unique_ptr<Process> JobTest::StartReplay(
    const std::string& name, const std::string& cluster_file,
    const std::string& delays, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      Program("slackline_replay"), absl::StrCat("--cluster=", cluster_file),
      absl::StrCat("--delays=", delays), absl::StrCat("--out=", Path(name))};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Process>(command, Path(absl::StrCat(name, ".log")));
}

std::vector<std::unique_ptr<Process>> JobTest::StartSmallJobByHand(
    const std::string& cluster_file, const std::string& out,
    const std::vector<std::string>& arguments) {
  std::vector<std::unique_ptr<Process>> members;
  for (int i = 0; i < 2; ++i) {
    members.push_back(StartMember(absl::StrCat(out, "-server-", i),
                                  "slackline_server", i, cluster_file, out,
                                  arguments));
  }
  for (int i = 0; i < 4; ++i) {
    members.push_back(StartMember(absl::StrCat(out, "-worker-", i),
                                  "slackline_worker", i, cluster_file, out,
                                  arguments));
  }
  return members;
}

std::optional<wire::StatusReply> JobTest::AwaitStatus(
    const std::string& cluster_file, absl::Duration wait_max,
    const std::function<bool(const wire::StatusReply&)>& accept) {
  const absl::Time deadline = absl::Now() + wait_max;
  if (!WaitUntil(wait_max, [&] { return fs::exists(cluster_file); })) {
    ADD_FAILURE() << cluster_file << " is not there after " << wait_max;
    return std::nullopt;
  }
  const auto config = LoadJobConfig(cluster_file);
  SL_CHECK(config.ok(), config.status().ToString());
  // That of the run, or of whoever started its processes by hand.
  const auto credentials =
      KeyOfJob({.own = UserKeyFileHere()},
               fs::path(cluster_file).parent_path().string(), *config);
  SL_CHECK(credentials.ok(), credentials.status().ToString());
  const auto client = CoordinatorClient::Connect(CoordinatorEndpoints(*config),
                                                 config->job(), *credentials);
  SL_CHECK(client.ok(), client.status().ToString());
  absl::StatusOr<wire::StatusReply> status;
  std::optional<wire::StatusReply> accepted;
  WaitUntil(deadline - absl::Now(), [&] {
    status = (*client)->GetStatus(absl::Seconds(1));
    if (status.ok() && accept(*status)) accepted = *status;
    return accepted.has_value();
  });
  if (!accepted.has_value()) {
    ADD_FAILURE() << "not the status that the test waits for after " << wait_max
                  << ": "
                  << (status.ok() ? status->ShortDebugString()
                                  : status.status().ToString());
  }
  return accepted;
}

std::optional<wire::StatusReply> JobTest::AwaitProgress(
    const std::string& cluster_file) {
  return AwaitStatus(
      cluster_file, kJobMax, [](const wire::StatusReply& status) {
        return status.worker_size() > 0 &&
               std::all_of(status.worker().begin(), status.worker().end(),
                           [](const run::WorkerStats& worker) {
                             return worker.clock() >= 10;
                           });
      });
}

std::optional<wire::StatusReply> JobTest::AwaitNewWorker(
    const std::string& cluster_file, int rank, pid_t before) {
  return AwaitStatus(
      cluster_file, kJobMax, [&](const wire::StatusReply& status) {
        return std::any_of(status.worker().begin(), status.worker().end(),
                           [&](const run::WorkerStats& worker) {
                             return worker.rank() == rank &&
                                    worker.pid() != before &&
                                    worker.clock() >= 10;
                           });
      });
}

int64_t JobTest::EndEarly(const std::string& name, Process* run) {
  const std::unique_ptr<Process> stop =
      StartTool(absl::StrCat(name, "-stop"), {"stop", Path(name)});
  EXPECT_EQ(stop->WaitText(kJobMax), kEndedWell) << stop->Output();
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary =
      ReadJson(absl::StrCat(Path(name), "/summary.json"));
  EXPECT_EQ(summary["cause"], "FINISHED_EARLY");
  return summary["steps"].get<int64_t>();
}

int JobTest::RunCommandsOfPage(const std::string& page) {
  const std::string text =
      ReadText(absl::StrCat(SLACKLINE_SOURCE_DIR, "/docs/manual/", page));
  int commands = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "slackline ")) continue;
    Process command(
        {"/bin/sh", "-c",
         absl::StrCat("cd ", folder_, " && ln -sfn ", SLACKLINE_SOURCE_DIR,
                      "/examples examples && PATH=", SLACKLINE_BIN_DIR,
                      ":$PATH && ", line)},
        Path(absl::StrCat("page-", commands++, ".log")));
    // What follows `slackline run` comes when the job has finished.
    EXPECT_EQ(command.WaitText(kJobMax),
              absl::StartsWith(line, "slackline status ") ? "exited with code 4"
                                                          : kEndedWell)
        << line << ": " << command.Output();
  }
  return commands;
}

void JobTest::ExpectNoProcessLeft() const {
  std::vector<std::string> left;
  WaitUntil(kGoneMax, [&] {
    left = ProcessesMentioning(folder_);
    return left.empty();
  });
  for (const std::string& process : left) {
    ADD_FAILURE() << "left running, and killed by the test: " << process;
    // The folder's name is this test's alone, so the process is, too.
    const std::vector<std::string> parts = absl::StrSplit(process, ':');
    int pid = 0;
    if (absl::SimpleAtoi(parts[0], &pid)) kill(pid, SIGKILL);
  }
}

pid_t WorkerPid(const wire::StatusReply& status, int rank) {
  for (const run::WorkerStats& worker : status.worker()) {
    if (worker.rank() == rank) return static_cast<pid_t>(worker.pid());
  }
  ADD_FAILURE() << "no worker " << rank << ": " << status.ShortDebugString();
  return 0;
}

pid_t ServerPid(const wire::StatusReply& status, int index) {
  for (const run::ServerStats& server : status.server()) {
    if (server.index() == index) return static_cast<pid_t>(server.pid());
  }
  ADD_FAILURE() << "no server " << index << ": " << status.ShortDebugString();
  return 0;
}

void SignalProcess(pid_t pid, int signal) {
  // 0 and below would be whole groups of processes.
  SL_CHECK(pid > 1, absl::StrCat("signal to pid ", pid));
  EXPECT_EQ(kill(pid, signal), 0) << "pid " << pid << " is gone already";
}

}  // namespace slackline
