// Goal: nobody without a job's key reads, changes or ends it, and who is
// refused is told why; nobody whose key fits notices anything.
// Method: real programs; strangers with no key, another one, or one that is for
// something else, beside a job whose model is compared with that of an
// undisturbed run.
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/cluster_config.h"
#include "common/endpoint.h"
#include "common/host_port.h"
#include "common/keys/credentials.h"
#include "common/keys/key_file.h"
#include "common/metrics/refusals.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/must.h"
#include "tests/support/run_files.h"

namespace slackline::security_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPromptly = absl::Seconds(20);
constexpr const char* kKeysOfRun[] = {"run/job.key", "run/worker-0.key",
                                      "run/worker-1.key", "run/worker-2.key",
                                      "run/worker-3.key"};

class SecurityTest : public JobTest {
 protected:
  // Over tcp, so that every message of it is on a socket.
  static std::string OverTcp() {
    return absl::StrReplaceAll(SmallJob(),
                               {{"limits {", "limits { transport: TCP"}});
  }
  // The same for some seconds, which do not change what it ends with.
  static std::string ForAWhile(int step_ms = 20) {
    return absl::StrReplaceAll(
        OverTcp(),
        {{"worker {",
          absl::StrCat("worker { conditions { step_ms: ", step_ms, " }")}});
  }
  // Until each process of the run says that it has new keys.
  void AwaitExchange() const {
    for (const char* const member : {"server-0", "server-1", "worker-0",
                                     "worker-1", "worker-2", "worker-3"}) {
      const std::string log = Path(absl::StrCat("run/logs/", member, ".log"));
      EXPECT_TRUE(WaitUntil(kPromptly, [&] {
        return ReadText(log).find("keys of the job have been exchanged") !=
               std::string::npos;
      })) << log;
    }
  }

  // A job in its midst, as strangers find it.
  struct Target {
    std::unique_ptr<Process> run;
    std::string cluster;
    config::ClusterConfig config;
    std::string coordinator;  // Its endpoint.
    wire::StatusReply status;
  };
  // Not `run` if it has not come that far. Before, the same job has run
  // undisturbed.
  Target StartTarget() {
    Run("alone", Write("alone.textproto", OverTcp()));
    Target target;
    target.run = StartRun("run", Write("job.textproto", ForAWhile()));
    target.cluster = Path("run/cluster.textproto");
    const auto status = AwaitProgress(target.cluster);
    if (!status.has_value()) {
      ADD_FAILURE() << target.run->Output();
      target.run = nullptr;
      return target;
    }
    target.status = *status;
    target.config = Must(LoadJobConfig(target.cluster));
    target.coordinator = CoordinatorEndpoints(target.config).front();
    return target;
  }
  // It has ended as the undisturbed one.
  void ExpectUnchanged(Target* target) {
    EXPECT_EQ(target->run->WaitText(kJobMax), kEndedWell)
        << target->run->Output();
    EXPECT_EQ(ReadText(Path("run/model.safetensors")),
              ReadText(Path("alone/model.safetensors")));
  }

  // `slackline keys export` of the role, with that user's key. `name`: of the
  // file, if not the role's.
  std::string Export(const std::string& config, const std::string& role,
                     const std::vector<std::string>& more = {},
                     std::string name = "") {
    if (name.empty()) name = role;
    const std::string file = Path(absl::StrCat(name, ".key"));
    std::vector<std::string> words = {"keys", "export", config, "--role",
                                      role,   "--out",  file};
    words.insert(words.end(), more.begin(), more.end());
    const std::unique_ptr<Process> made = StartTool("export-" + name, words);
    EXPECT_EQ(made->WaitText(kPromptly), kEndedWell) << made->Output();
    return file;
  }

  // How `slackline ARGUMENTS` has ended, and what it has said.
  std::string Tool(const std::string& name,
                   const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> tool = StartTool(name, arguments);
    const std::string how = tool->WaitText(kPromptly);
    return absl::StrCat(how, "\n", tool->Output());
  }
};

// The key that `slackline run` has given to a worker.
Credentials WorkerKeyOf(const std::string& file, const std::string& job,
                        int rank) {
  return Must(KeyPlanFrom(Must(ReadKeyFile(file)), job,
                          {Role::kWorker, Rank{rank}}, file))
      .first;
}

// Sends what ends a job to all of its ports, as programs do that know its
// protocol and not its key. What it says of itself has these numbers.
void Attack(const wire::StatusReply& status, const std::string& coordinator,
            const std::optional<Credentials>& credentials, int index = 0,
            Incarnation instance = 0) {
  ZmqTransport::Options options;
  if (credentials.has_value())
    options.keys = std::make_shared<LiveKeys>(*credentials);
  ZmqTransport transport(options);
  std::vector<std::string> endpoints = {coordinator};
  for (const wire::ServerMember& server : status.view().server()) {
    for (const wire::Endpoints& thread : server.thread())
      endpoints.push_back(NetworkEndpoint(thread));
  }
  std::vector<Message> messages(7);
  messages[0].header.mutable_call()->mutable_stop()->set_reason("attack");
  messages[1].header.mutable_call()->mutable_finish()->set_reason("attack");
  messages[2].header.mutable_call()->mutable_drain()->set_server(1);
  messages[3].header.mutable_view()->set_number(1'000'000);
  messages[4].header.mutable_hand_over();
  messages[5].header.mutable_push_request();
  // In the name of a member, whose number is easily guessed.
  messages[6].header.mutable_call()->set_incarnation(3);
  messages[6].header.mutable_call()->mutable_stop()->set_reason("attack");
  for (Message& message : messages) {
    message.header.set_run(status.view().run());
    message.header.set_view_number(status.view().number());
  }
  std::vector<std::unique_ptr<Channel>> channels;
  Poller poller;
  for (const std::string& endpoint : endpoints) {
    for (const PeerId::Kind kind :
         {PeerId::Kind::kObserver, PeerId::Kind::kWorker, PeerId::Kind::kServer,
          PeerId::Kind::kShardThread, PeerId::Kind::kCoordinator}) {
      channels.push_back(Must(transport.Connect(
          {kind, index, instance}, endpoint,
          {.linger = absl::ZeroDuration(), .watch_link = true})));
      poller.Add(*channels.back());
      for (const Message& message : messages)
        Must(channels.back()->Send(message));
    }
  }
  const absl::Time end = absl::Now() + absl::Seconds(1);
  while (absl::Now() < end) Must(poller.Wait(absl::Milliseconds(20)));
  for (const auto& channel : channels) poller.Remove(*channel);
}

TEST_F(SecurityTest, StrangersChangeNothing) {
  Target target = StartTarget();
  ASSERT_NE(target.run, nullptr);
  Attack(target.status, target.coordinator, std::nullopt);
  Attack(target.status, target.coordinator,
         CredentialsOf(JobSecret(Secret::Random(), target.config.job()),
                       Role::kServer));
  // Those at the coordinator and those at shard threads of two servers, of
  // either kind.
  const auto now =
      AwaitStatus(target.cluster, kPromptly, [](const auto& status) {
        return status.refused().other_key() > 0 &&
               status.refused().no_key() + status.refused().silent() > 0 &&
               RefusedCount(status.server(1).refused()) > 0;
      });
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->refused().not_allowed(), 0);
  EXPECT_THAT(Tool("status", {"status", Path("run")}),
              AllOf(HasSubstr(kEndedWell), HasSubstr("\nrefused: "),
                    HasSubstr(" with another key")));
  ExpectUnchanged(&target);
  const nlohmann::json refused = ReadJson(Path("run/summary.json"))["refused"];
  EXPECT_GE(refused["other_key"], now->refused().other_key());
  EXPECT_EQ(refused["not_allowed"], 0);
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              AllOf(HasSubstr("coordinator: refused"), HasSubstr("127.0.0.1:"),
                    HasSubstr("key")));
}

// One whose key is a worker's says what it likes to everybody.
TEST_F(SecurityTest, AWorkersKeyOrdersNothing) {
  Target target = StartTarget();
  ASSERT_NE(target.run, nullptr);
  Attack(target.status, target.coordinator,
         WorkerKeyOf(Path("run/worker-0.key"), target.config.job(), 0));
  ExpectUnchanged(&target);
  EXPECT_GT(ReadJson(Path("run/summary.json"))["refused"]["not_allowed"], 0);
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              HasSubstr("who has the key of worker 0 may not"));
}

// It knows all that another worker is called by, and has a key of its own.
TEST_F(SecurityTest, AWorkersKeyIsOfNoOtherWorker) {
  Target target = StartTarget();
  ASSERT_NE(target.run, nullptr);
  const wire::WorkerMember& other = target.status.view().worker(2);
  Attack(target.status, target.coordinator,
         WorkerKeyOf(Path("run/worker-1.key"), target.config.job(), 1),
         other.rank(), other.incarnation());
  ExpectUnchanged(&target);
  // Each message from the six connections that are in the other's name, or in
  // that of a server.
  EXPECT_GE(ReadJson(Path("run/summary.json"))["refused"]["not_allowed"], 6);
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              HasSubstr("who has the key of worker 1 may not be "));
}

TEST_F(SecurityTest, EachKeyAllowsWhatItIsFor) {
  const std::string config =
      Write("job.textproto", SmallJob({.train = "seed: 1"}));
  const std::unique_ptr<Process> run =
      StartRun("run", config, {"--epochs=1000"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  std::set<std::string> secrets;
  for (const char* const name : kKeysOfRun) {
    secrets.insert(Must(ReadKeyFile(Path(name))).secret());
    struct stat about {};
    ASSERT_EQ(stat(Path(name).c_str(), &about), 0) << name;
    EXPECT_EQ(about.st_mode & 0777, 0600u) << name;
  }
  EXPECT_EQ(secrets.size(), 5u) << "each worker has a key of its own";
  EXPECT_EQ(Must(ReadKeyFile(Path("run/worker-3.key"))).rank(), 3);
  EXPECT_THAT(ReadText(Path("run/logs/worker-1.log")),
              HasSubstr("run/worker-1.key"));
  const std::string folder = Path("run");
  const std::string reader = Export(folder, "reader");
  const std::string worker = Export(folder, "worker");
  const std::string operates = Export(folder, "operator");
  const std::string other = Path("other.key");
  EXPECT_THAT(Tool("init", {"keys", "init", "--key", other}),
              AllOf(HasSubstr(kEndedWell), HasSubstr("other.key: made")));
  EXPECT_THAT(Tool("init-again", {"keys", "init", "--key", other}),
              AllOf(HasSubstr(kEndedWell), HasSubstr("is left as it is")));

  EXPECT_THAT(Tool("look", {"status", folder}), HasSubstr(kEndedWell));
  EXPECT_THAT(Tool("reader-looks", {"status", folder, "--key", reader}),
              HasSubstr(kEndedWell));
  EXPECT_THAT(
      Tool("reader-stops", {"stop", folder, "--key", reader, "--now"}),
      AllOf(HasSubstr(kFailed),
            HasSubstr("who has the key of a reader may not call 'stop'")));
  EXPECT_THAT(Tool("worker-looks", {"status", folder, "--key", worker}),
              AllOf(Not(HasSubstr(kEndedWell)),
                    HasSubstr("holds what a worker has of the job")));
  EXPECT_THAT(Tool("other-looks", {"status", folder, "--key", other}),
              AllOf(HasSubstr("exited with code 6"),
                    HasSubstr("has another key than this program")));
  fs::permissions(reader, fs::perms::owner_read | fs::perms::others_read);
  EXPECT_THAT(Tool("all-look", {"status", folder, "--key", reader}),
              AllOf(Not(HasSubstr(kEndedWell)),
                    HasSubstr(absl::StrCat("chmod 600 ", reader))));
  EXPECT_THAT(Tool("stop", {"stop", folder, "--key", operates}),
              HasSubstr(kEndedWell));
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  for (const char* const name : kKeysOfRun)
    EXPECT_FALSE(fs::exists(Path(name))) << "it is left in the folder";
}

// By hand, with keys that differ, or where one has none.
TEST_F(SecurityTest, WhoDoesNotFitIsToldWhy) {
  const std::string config = WriteWithPort("job.textproto", SmallJob());
  for (const char* const name : {"a.key", "b.key"})
    Tool(name, {"keys", "init", "--key", Path(name)});
  const std::string a = absl::StrCat("--key=", Path("a.key"));
  const std::string b = absl::StrCat("--key=", Path("b.key"));
  const std::unique_ptr<Process> server =
      StartMember("server", "slackline_server", 0, config, "out", {a});
  const struct {
    const char* name;
    const char* program;
    int index;
    std::string argument;
    const char* why;
  } others[] = {
      {"other-worker", "slackline_worker", 1, b,
       "ends each connection at once: it has another key"},
      {"other-server", "slackline_server", 1, b,
       "ends each connection at once: it has another key"},
      {"plain-worker", "slackline_worker", 2, "--set=insecure=true",
       "another key"},
  };
  std::vector<std::unique_ptr<Process>> processes;
  for (const auto& other : others) {
    processes.push_back(StartMember(other.name, other.program, other.index,
                                    config, "out", {other.argument}));
  }
  for (size_t i = 0; i < processes.size(); ++i) {
    Process& process = *processes[i];
    EXPECT_TRUE(WaitUntil(kPromptly, [&] {
      return process.Output().find(others[i].why) != std::string::npos;
    })) << process.Output();
    EXPECT_THAT(process.Output(), HasSubstr("need the same key"));
    // What may be a proxy without anybody behind it is waited for.
    process.Signal(SIGINT);
    EXPECT_EQ(process.WaitText(kPromptly), kFailed) << others[i].name;
  }
  EXPECT_THAT(server->Output(), HasSubstr("coordinator: refused"));
  EXPECT_TRUE(server->running());
  // With the right one it is taken, and the job may begin.
  const std::unique_ptr<Process> worker =
      StartMember("worker", "slackline_worker", 1, config, "out", {a});
  const std::string status = Path("a.key");
  EXPECT_TRUE(WaitUntil(kPromptly, [&] {
    return Tool("status", {"status", config, "--key", status})
               .find("1 of 4 workers") != std::string::npos;
  }));
  server->Signal(SIGINT);
  EXPECT_EQ(server->WaitText(kJobMax), kFailed);
  EXPECT_EQ(worker->WaitText(kJobMax), kFailed);
}

// Keys of their own, each with no more than it needs, or of any worker, as for
// one that joins later; and a job that ends as any other.
TEST_F(SecurityTest, WorkersTrainWithWhatAWorkerHolds) {
  const std::string config = WriteWithPort("job.textproto", OverTcp());
  Tool("init", {"keys", "init", "--key", Path("user.key")});
  const std::string user = absl::StrCat("--key=", Path("user.key"));
  const std::string worker =
      absl::StrCat("--key=", Export(config, "worker", {user}));
  const std::string all = absl::StrCat("--key=", Export(config, "all", {user}));
  std::vector<std::unique_ptr<Process>> members;
  {
    const std::unique_ptr<Process> server =
        StartMember("wrong", "slackline_server", 1, config, "out", {worker});
    EXPECT_EQ(server->WaitText(kPromptly), kFailed);
    EXPECT_THAT(server->Output(), HasSubstr("is to be a server"));
  }
  std::vector<std::string> own;
  for (const char* const rank : {"0", "1", "2"}) {
    own.push_back(
        absl::StrCat("--key=", Export(config, "worker", {user, "--index", rank},
                                      absl::StrCat("worker-", rank))));
  }
  {
    const std::unique_ptr<Process> other =
        StartMember("other", "slackline_worker", 3, config, "out", {own[2]});
    EXPECT_EQ(other->WaitText(kPromptly), kFailed);
    EXPECT_THAT(other->Output(),
                HasSubstr("holds what worker 2 has of the job, and this "
                          "process is to be worker 3"));
  }
  own.push_back(worker);
  for (int i = 0; i < 2; ++i) {
    members.push_back(StartMember(absl::StrCat("server-", i),
                                  "slackline_server", i, config, "out", {all}));
  }
  for (int i = 0; i < 4; ++i) {
    members.push_back(StartMember(absl::StrCat("worker-", i),
                                  "slackline_worker", i, config, "out",
                                  {own[i]}));
  }
  for (const auto& member : members)
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  Run("run", config);
  EXPECT_EQ(ReadText(Path("out/model.safetensors")),
            ReadText(Path("run/model.safetensors")));
}

// Under a job that runs: it ends as if nothing had been, and what was known of
// the old key opens nothing any more.
TEST_F(SecurityTest, AKeyIsExchangedWhileTheJobRuns) {
  Run("alone", Write("alone.textproto", OverTcp()));
  const std::string user = Path("user.key");
  Tool("init", {"keys", "init", "--key", user});
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", ForAWhile(/*step_ms=*/50)),
               {absl::StrCat("--key=", user)});
  const std::string cluster = Path("run/cluster.textproto");
  const auto status = AwaitProgress(cluster);
  ASSERT_TRUE(status.has_value()) << run->Output();
  const config::ClusterConfig job = Must(LoadJobConfig(cluster));
  const std::string reader = Export(Path("run"), "reader");
  const Credentials stolen =
      WorkerKeyOf(Path("run/worker-0.key"), job.job(), 0);
  EXPECT_THAT(Tool("rotate", {"keys", "rotate", "--key", user, "--in", "5s"}),
              AllOf(HasSubstr(kEndedWell), HasSubstr("a new key counts")));
  EXPECT_THAT(
      Tool("rotate-again", {"keys", "rotate", "--key", user, "--in", "5s"}),
      AllOf(HasSubstr(kFailed), HasSubstr("is exchanged already, at ")));
  EXPECT_THAT(Tool("early", {"status", Path("run"), "--key", reader}),
              HasSubstr(kEndedWell));
  AwaitExchange();
  EXPECT_THAT(Tool("late", {"status", Path("run"), "--key", reader}),
              AllOf(HasSubstr("exited with code 6"),
                    HasSubstr("has another key than this program")));
  EXPECT_THAT(Tool("run-key", {"status", Path("run")}), HasSubstr(kEndedWell));
  EXPECT_THAT(Tool("user-key", {"status", cluster, "--key", user}),
              HasSubstr(kEndedWell));
  Attack(*status, CoordinatorEndpoints(job).front(), stolen);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("the key of the job is exchanged"));
  EXPECT_EQ(ReadText(Path("run/model.safetensors")),
            ReadText(Path("alone/model.safetensors")));
  // Shard threads go on telling what they count.
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["pushes"],
            ReadJson(Path("alone/summary.json"))["pushes"]);
}

// A process that begins afterwards belongs to the job, and a group that forms
// then has what protects its sums.
TEST_F(SecurityTest, AJobWhoseKeyWasExchangedGoesOnAsAnyOther) {
  const std::string user = Path("user.key");
  Tool("init", {"keys", "init", "--key", user});
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", ForAWhile(/*step_ms=*/5)),
               {absl::StrCat("--key=", user), "--mode=ssp", "--epochs=100000",
                "--restart-workers=2"});
  const std::string cluster = Path("run/cluster.textproto");
  const auto status = AwaitProgress(cluster);
  ASSERT_TRUE(status.has_value()) << run->Output();
  Tool("rotate", {"keys", "rotate", "--key", user, "--in", "5s"});
  AwaitExchange();
  // A key that has nothing to do with this one is none of the job's.
  Tool("force", {"keys", "init", "--key", user, "--force"});
  EXPECT_TRUE(WaitUntil(kPromptly, [&] {
    return run->Output().find("does not say from when on it counts") !=
           std::string::npos;
  })) << run->Output();
  SignalProcess(WorkerPid(*status, 1), SIGKILL);
  EXPECT_TRUE(AwaitStatus(cluster, kJobMax,
                          [&](const auto& now) {
                            return absl::c_any_of(
                                now.worker(), [&](const auto& worker) {
                                  return worker.rank() == 1 &&
                                         worker.pid() != WorkerPid(*status, 1);
                                });
                          })
                  .has_value())
      << run->Output();
  EXPECT_THAT(Tool("mode", {"mode", "set", Path("run"), "allreduce"}),
              HasSubstr(kEndedWell));
  EXPECT_THAT(Tool("stop", {"stop", Path("run")}), HasSubstr(kEndedWell));
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
}

// For networks that nobody else uses: as before there were keys.
TEST_F(SecurityTest, WithoutKeysEachProcessSaysSo) {
  const std::string config =
      Write("job.textproto", absl::StrCat(SmallJob(), "insecure: true\n"));
  Run("run", config);
  for (const char* const log :
       {"run/logs/server-0.log", "run/logs/worker-0.log"})
    EXPECT_THAT(ReadText(Path(log)),
                HasSubstr("insecure: true: nothing on the wire is encrypted"));
  EXPECT_FALSE(fs::exists(Path("run/job.key")));
}

}  // namespace slackline::security_test
