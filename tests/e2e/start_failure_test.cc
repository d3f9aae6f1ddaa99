// Goal: a job that cannot start says so soon, with a sentence that names the
// culprit and what to do.
// Method: one mistake at a time, with the real programs.
#include <csignal>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::start_failure_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Programs start in well under a second on an idle machine; not all are idle.
constexpr absl::Duration kPromptly = absl::Seconds(20);
// Of members that are waited for in vain: the others have come by then, on a
// busy machine, too.
constexpr absl::Duration kStartMax = absl::Seconds(20);

std::string StartTimeout() {
  return absl::StrCat("--set=limits.start_timeout_ms=",
                      absl::ToInt64Milliseconds(kStartMax));
}

class StartFailure : public JobTest {};

TEST_F(StartFailure, APortThatIsTakenIsNamed) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> holder =
      StartMember("holder", "slackline_server", 0, config, "holder");
  const auto status = AwaitStatus(
      config, kPromptly,
      [](const wire::StatusReply& now) { return now.server_size() == 1; });
  ASSERT_TRUE(status.has_value()) << holder->Output();

  const std::unique_ptr<Process> run = StartRun("run", config);
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("coordinator.port (choose another, or leave it "
                              "out for any free one): listening at 127.0.0.1:"),
                    HasSubstr("Address already in use")));
  // Nor does it put its config in the place of the running job's.
  const std::string kept = ReadText(Path("holder/cluster.textproto"));
  EXPECT_THAT(kept, HasSubstr("job: \"small\""));
  const std::unique_ptr<Process> server =
      StartMember("second", "slackline_server", 0, config, "holder",
                  {"--set=train.seed=9"});
  EXPECT_EQ(server->WaitText(kPromptly), kFailed);
  EXPECT_EQ(ReadText(Path("holder/cluster.textproto")), kept);
  EXPECT_THAT(server->Output(),
              AllOf(HasSubstr("cannot start the coordinator: "),
                    HasSubstr("tcp://127.0.0.1:"), HasSubstr("in use")));
}

// The folder was made before, and the same command begins there once it can.
TEST_F(StartFailure, ARunThatHasItsFolderAndDoesNotBeginSaysWhyThere) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> run =
      StartRun("run", config, {absl::StrCat("--key=", Path("none.key"))});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("none.key"), HasSubstr("failure.txt")));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "NOT_FORMED");
  EXPECT_THAT(
      ReadText(Path("run/failure.txt")),
      AllOf(HasSubstr("NOT_FORMED: "), HasSubstr("none.key"),
            HasSubstr(absl::StrCat(
                "slackline run ", Path("run/cluster.textproto"), " --out ",
                Path("run"), " --new-run --key ", Path("none.key")))));
  Run("run", config, {"--epochs=1"});
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["state"], "FINISHED");
  EXPECT_FALSE(std::filesystem::exists(Path("run/failure.txt")));
  // A run that is there is not put aside for one that has no key.
  const std::unique_ptr<Process> mistyped = StartRun(
      "run", config, {"--new-run", absl::StrCat("--key=", Path("none.key"))});
  EXPECT_EQ(mistyped->WaitText(kPromptly), kFailed);
  EXPECT_THAT(mistyped->Output(), HasSubstr("none.key"));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["state"], "FINISHED");
}

TEST_F(StartFailure, ATakenPortOfAHealthPageIsNamedToAll) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> server = StartMember(
      "server", "slackline_server", 0, config, "by-hand", {"--health-port=0"});
  ASSERT_TRUE(AwaitStatus(config, kPromptly,
                          [](const wire::StatusReply& now) {
                            return now.server_size() == 1;
                          })
                  .has_value())
      << server->Output();
  const std::string output = server->Output();
  const std::string before = "health: http://127.0.0.1:";
  const size_t at = output.find(before);
  ASSERT_NE(at, std::string::npos) << output;
  const std::string port =
      output.substr(at + before.size(),
                    output.find('/', at + before.size()) - at - before.size());
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 1, config, "by-hand",
                  {absl::StrCat("--health-port=", port)});
  EXPECT_EQ(worker->WaitText(kPromptly), kFailed);
  const std::string why = absl::StrCat(
      "--health-port (choose another, or 0 for any free one): 127.0.0.1:", port,
      ": Address already in use");
  EXPECT_THAT(worker->Output(), HasSubstr(why));
  EXPECT_THAT(server->Output(),
              HasSubstr(absl::StrCat("on 127.0.0.1) cannot join: ", why)));
}

TEST_F(StartFailure, AWorkerWithAnotherConfigIsRefused) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> server =
      StartMember("server", "slackline_server", 0, config, "by-hand");
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 1, config, "by-hand",
                  {"--set=train.seed=2"});
  EXPECT_EQ(worker->WaitText(kPromptly), kFailed);
  const std::string why =
      "worker 1 was started with another config than the coordinator: "
      "train.seed: its value is 2, the coordinator's is 1; start all processes "
      "with one file and the same";
  EXPECT_THAT(worker->Output(), HasSubstr(why));
  EXPECT_THAT(server->Output(),
              HasSubstr(absl::StrCat("on 127.0.0.1) cannot join: ", why)));
  EXPECT_TRUE(server->running()) << server->Output();
}

TEST_F(StartFailure, AWorkerWithOtherLabelsIsRefused) {
  const std::string config = WriteWithPort("job.textproto",
                                           R"(job: "labels"
         server { host: "127.0.0.1" }
         worker { host: "127.0.0.1" count: 2 }
         model { logistic {} }
         data { libsvm { train: "train" test: "test" features: 2 } batch_size: 1 }
         optimizer { sgd { learning_rate: 0.1 } })");
  std::filesystem::create_directories(Path("mine"));
  std::filesystem::create_directories(Path("theirs"));
  for (const char* const folder : {"mine", "theirs"}) {
    Write(absl::StrCat(folder, "/test"), "+1 1:1\n-1 2:1\n");
    Write(absl::StrCat(folder, "/train"),
          absl::StrCat("+1 1:1\n", folder[0] == 'm' ? "-1" : "+1",
                       " 2:1\n-1 1:0.5\n"));
  }
  const std::unique_ptr<Process> server =
      StartMember("server", "slackline_server", 0, config, "by-hand");
  const std::unique_ptr<Process> first =
      StartMember("first", "slackline_worker", 0, config, "by-hand",
                  {absl::StrCat("--data-dir=", Path("mine"))});
  const auto joined = AwaitStatus(
      config, kPromptly,
      [](const wire::StatusReply& now) { return now.worker_size() == 1; });
  ASSERT_TRUE(joined.has_value()) << first->Output();
  const std::unique_ptr<Process> second =
      StartMember("second", "slackline_worker", 1, config, "by-hand",
                  {absl::StrCat("--data-dir=", Path("theirs"))});
  EXPECT_EQ(second->WaitText(kPromptly), kFailed);
  EXPECT_THAT(second->Output(),
              AllOf(HasSubstr("worker 1 has other examples than worker 0"),
                    HasSubstr("give all workers the same files")));
  EXPECT_TRUE(server->running()) << server->Output();
  EXPECT_TRUE(first->running()) << first->Output();
}

TEST_F(StartFailure, AMissingDataFolderIsNamed) {
  const std::string text = absl::StrReplaceAll(
      SmallJob(),
      {{"teacher_student {\n    features: 16 classes: 4 train_examples: 8000 "
        "test_examples: 1000\n  }",
        "idx { folder: \"mnist\" }"}});
  ASSERT_NE(text, SmallJob());
  const std::string config = WriteWithPort("job.textproto", text);
  const std::string data_dir = absl::StrCat("--data-dir=", Path("nowhere"));
  const std::unique_ptr<Process> run = StartRun("run", config, {data_dir});
  EXPECT_EQ(run->WaitText(kPromptly), kFailed);
  EXPECT_THAT(run->Output(), HasSubstr(Path("nowhere/mnist")));
  // By hand: whoever waits for it hears of it.
  const std::vector<std::string> soon = {StartTimeout()};
  const std::unique_ptr<Process> server =
      StartMember("server", "slackline_server", 0, config, "by-hand", soon);
  ASSERT_TRUE(AwaitStatus(config, kPromptly, [](const auto& now) {
                return now.server_size() == 1;
              }).has_value());
  const std::unique_ptr<Process> worker = StartMember(
      "worker", "slackline_worker", 0, config, "by-hand", {data_dir, soon[0]});
  EXPECT_EQ(worker->WaitText(kPromptly), kFailed);
  EXPECT_THAT(worker->Output(), HasSubstr(Path("nowhere/mnist")));
  const auto status = AwaitStatus(config, kPromptly, [](const auto& now) {
    return now.held_up_size() > 0;
  });
  ASSERT_TRUE(status.has_value()) << server->Output();
  const auto says_why =
      AllOf(HasSubstr("worker 0 (pid "), HasSubstr("cannot join: "),
            HasSubstr(Path("nowhere/mnist")));
  EXPECT_THAT(status->held_up(0), says_why);
  EXPECT_EQ(server->WaitText(kStartMax + kPromptly), kFailed);
  EXPECT_THAT(server->Output(),
              AllOf(HasSubstr("did not join within 20000 ms; worker 0 (pid "),
                    says_why));
}

TEST_F(StartFailure, AWorkerThatNeverComesIsNamedByAllWhoWait) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  // As long as it takes until only worker 3 has not come.
  for (const int timeout_ms : {5000, 20000, 80000}) {
    const std::string out = absl::StrCat("by-hand-", timeout_ms);
    const std::vector<std::string> arguments = {
        absl::StrCat("--set=limits.start_timeout_ms=", timeout_ms)};
    std::vector<std::unique_ptr<Process>> members;
    for (const int i : {0, 1}) {
      members.push_back(StartMember(absl::StrCat(out, "-server-", i),
                                    "slackline_server", i, config, out,
                                    arguments));
    }
    for (const int i : {0, 1, 2}) {
      members.push_back(StartMember(absl::StrCat(out, "-worker-", i),
                                    "slackline_worker", i, config, out,
                                    arguments));
    }
    for (const std::unique_ptr<Process>& member : members) {
      EXPECT_EQ(
          member->WaitText(absl::Milliseconds(timeout_ms) + 2 * kPromptly),
          kFailed);
    }
    // "coordinator: worker 2 (pid 7 on 127.0.0.1) has joined".
    const std::string log = members[0]->Output();
    bool all_came = true;
    for (const std::unique_ptr<Process>& member : members) {
      all_came &= absl::StrContains(
          log,
          absl::StrCat("(pid ", member->pid(), " on 127.0.0.1) has joined"));
    }
    if (!all_came) continue;
    for (const std::unique_ptr<Process>& member : members) {
      EXPECT_THAT(member->Output(),
                  HasSubstr(absl::StrCat(
                      "worker 3 on 127.0.0.1 did not join within ", timeout_ms,
                      " ms; look at their logs, or raise limits "
                      "{ start_timeout_ms: ... }")));
    }
    EXPECT_THAT(
        ReadText(Path(out + "/failure.txt")),
        AllOf(HasSubstr("NOT_FORMED: worker 3 on 127.0.0.1 did not join"),
              HasSubstr("start all processes again as before")));
    return;
  }
  FAIL() << "the others did not come within 80 s either";
}

TEST_F(StartFailure, WithoutACoordinatorTheOthersSayWhereTheyLooked) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 0, config, "by-hand",
                  {"--set=limits.start_timeout_ms=1000"});
  EXPECT_EQ(worker->WaitText(kPromptly), kFailed);
  EXPECT_THAT(
      worker->Output(),
      AllOf(HasSubstr("no coordinator answered at tcp://127.0.0.1:"),
            HasSubstr("is slackline_server --index=0 of this config running "
                      "there?")));
}

TEST_F(StartFailure, ASecondProcessWithAnIndexIsRefusedWhileTheFirstLives) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  const std::vector<std::string> arguments = {"--mode=asp",
                                              "--set=train.epochs=10000"};
  const std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(config, "by-hand", arguments);
  const auto status = AwaitProgress(config);
  ASSERT_TRUE(status.has_value()) << members[0]->Output();
  const std::unique_ptr<Process> second = StartMember(
      "second", "slackline_worker", 1, config, "by-hand", arguments);
  EXPECT_EQ(second->WaitText(kStartMax + kPromptly), kFailed);
  EXPECT_THAT(
      second->Output(),
      AllOf(HasSubstr(absl::StrCat("worker 1 (pid ", WorkerPid(*status, 1),
                                   " on 127.0.0.1) holds this place")),
            HasSubstr("the place is free when that process ends")));
  for (const std::unique_ptr<Process>& member : members) {
    EXPECT_TRUE(member->running()) << "disturbed: " << member->Output();
  }
}

// A namespace with its own routes, in which a process waits that holds it. A
// route stands for a firewall that lets nobody connect to 127.0.0.9.
TEST_F(StartFailure, AFirewallBetweenTwoMembersIsNamedAndTheJobEnds) {
  Process probe(
      {"/usr/bin/env", "unshare", "--net", "ip", "link", "set", "lo", "up"},
      Path("probe.log"));
  if (probe.WaitText(kPromptly) != kEndedWell) {
    GTEST_SKIP() << "no network namespaces, or no ip, on this machine: "
                 << probe.Output();
  }
  Process holder({"/usr/bin/env", "unshare", "--net", "sh", "-c",
                  "ip link set lo up && echo up && exec sleep 300"},
                 Path("holder.log"));
  ASSERT_TRUE(WaitUntil(kPromptly, [&] { return !holder.Output().empty(); }));
  const std::string config = Write("job.textproto", R"(
job: "firewall"
coordinator { port: 7700 }
server { host: "127.0.0.1" }
server { host: "127.0.0.9" }
worker { host: "127.0.0.1" }
model { logistic {} }
data { teacher_student { features: 4 classes: 2 train_examples: 100
                         test_examples: 10 } batch_size: 10 }
optimizer { sgd { learning_rate: 0.1 } }
limits { lease_ms: 3000 start_timeout_ms: 20000 transport: TCP })");
  const auto inside = [&](const std::string& name,
                          std::vector<std::string> command) {
    std::vector<std::string> whole = {
        "/usr/bin/env", "nsenter",
        absl::StrCat("--net=/proc/", holder.pid(), "/ns/net")};
    whole.insert(whole.end(), command.begin(), command.end());
    return std::make_unique<Process>(whole, Path(name + ".log"));
  };
  const auto member = [&](const std::string& program, int index) {
    return inside(
        absl::StrCat(program, "-", index),
        {absl::StrCat(SLACKLINE_BIN_DIR, "/", program),
         absl::StrCat("--cluster=", config), absl::StrCat("--index=", index)});
  };
  const std::unique_ptr<Process> second = member("slackline_server", 1);
  ASSERT_TRUE(WaitUntil(kPromptly, [&] {
    return absl::StrContains(second->Output(), "shard thread 0 listens");
  })) << second->Output();
  const std::unique_ptr<Process> wall = inside(
      "wall",
      {"ip", "route", "add", "unreachable", "127.0.0.9/32", "table", "local"});
  ASSERT_EQ(wall->WaitText(kPromptly), kEndedWell) << wall->Output();
  const std::unique_ptr<Process> first = member("slackline_server", 0);
  const std::unique_ptr<Process> worker = member("slackline_worker", 0);
  for (Process* const process : {first.get(), second.get(), worker.get()}) {
    EXPECT_EQ(process->WaitText(kStartMax + kPromptly), kFailed);
    EXPECT_THAT(process->Output(),
                AllOf(HasSubstr("not all members could connect with each "
                                "other within 20000 ms: "),
                      HasSubstr("worker 0 (pid "),
                      HasSubstr("on 127.0.0.1) cannot connect to server 1 "
                                "(pid "),
                      HasSubstr("on 127.0.0.9) at tcp://127.0.0.9:")));
  }
  EXPECT_THAT(worker->Output(),
              HasSubstr("cannot connect to server 1 at tcp://127.0.0.9:"));
  holder.Signal(SIGKILL);
  (void)holder.WaitText(kPromptly);
}

}  // namespace slackline::start_failure_test
