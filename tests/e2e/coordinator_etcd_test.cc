// Goal: a job whose coordinator keeps its state in etcd goes on in any server,
// on another host and with another disk, whoever has died. Of two coordinators
// the one that does not lead any more tells nobody anything.
// Method: the real programs and a real etcd; skipped aloud without one. Hosts
// are addresses of this one.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/etcd.h"
#include "tests/support/replicated_job.h"

namespace slackline::coordinator_etcd_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPrefix[] = "/slackline/small";  // As the config has it.
constexpr int kServers = 3;

class CoordinatorInEtcd : public ReplicatedJob {
 protected:
  void SetUp() override {
    const std::string program = EtcdProgram();
    if (program.empty()) GTEST_SKIP() << kNoEtcd;
    etcd_.emplace(program);
    etcd_->Start();
  }
  std::string EtcdBlock() const {
    const EtcdClient::Options client = etcd_->client();
    const auto file = [](const char* field, const std::string& path) {
      return path.empty() ? "" : absl::StrCat(" ", field, ": \"", path, "\"");
    };
    return absl::StrCat("etcd { endpoint: \"", etcd_->url(), "\"",
                        file("ca", client.ca),
                        file("certificate", client.certificate),
                        file("private_key", client.private_key), " }");
  }
  // The job by hand, each server on a host of its own, without server 0, which
  // has a folder of its own. Server 0 makes that one, and nobody makes the one
  // of the others.
  void StartOthers() {
    std::filesystem::create_directories(Path("others"));
    config_ = WriteWithPort("job.textproto", JobText());
    std::string hosts;
    for (int i = 1; i <= kServers; ++i)
      absl::StrAppend(&hosts, "server { host: \"127.0.0.", i, "\" }\n");
    Write("job.textproto",
          absl::StrReplaceAll(
              ReadText(config_),
              {{"coordinator {", absl::StrCat("coordinator { ", EtcdBlock())},
               {"server { host: \"127.0.0.1\" count: 3 }", hosts}}));
    for (int i = 1; i < kServers; ++i) {
      others_.push_back(
          Start(absl::StrCat("server-", i), "slackline_server", i, "others"));
    }
    for (int i = 0; i < 4; ++i) {
      others_.push_back(
          Start(absl::StrCat("worker-", i), "slackline_worker", i, "others"));
    }
  }
  std::unique_ptr<Process> Start(const std::string& name,
                                 const std::string& program, int index,
                                 const std::string& out,
                                 const std::string& flag = "") {
    std::vector<std::string> arguments = Arguments("bsp");
    if (!flag.empty()) arguments.push_back(flag);
    return StartMember(name, program, index, config_, out, arguments);
  }
  // The job by `slackline run`, on one host.
  std::unique_ptr<Process> StartRunWithEtcd() {
    const std::string text =
        JobText() + "coordinator { " + EtcdBlock() + " }\n";
    return StartRun("run", Write("job.textproto", text), Arguments("bsp"));
  }
  // Until a coordinator answers that is in another server, with the same run.
  std::optional<wire::StatusReply> AwaitTakenOver(
      const wire::StatusReply& before) {
    const auto now =
        AwaitStatus(config_, kJobMax, [&](const wire::StatusReply& status) {
          return status.coordinator_server() != before.coordinator_server();
        });
    EXPECT_EQ(now.has_value() ? now->view().run() : 0, before.view().run());
    return now;
  }
  void ExpectEndOfUndisturbed(const std::string& folder) {
    for (const std::unique_ptr<Process>& member : others_)
      EXPECT_EQ(member->WaitText(kEndMax), kEndedWell) << member->Output();
    const nlohmann::json summary = ReadJson(Path(folder + "/summary.json"));
    EXPECT_EQ(summary["state"], "FINISHED");
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_THAT(summary["workers_lost"], testing::IsEmpty());
    EXPECT_EQ(summary["model_sha256"], ModelOfBsp());
    EXPECT_EQ(ModelSha256(ReadModel(Path("others"))), summary["model_sha256"]);
  }

  std::optional<Etcd> etcd_;
  std::string config_;
  std::vector<std::unique_ptr<Process>> others_;
};

TEST_F(CoordinatorInEtcd, AnyServerTakesOver) {
  StartOthers();
  const std::unique_ptr<Process> server_0 =
      Start("server-0", "slackline_server", 0, "host-a");
  const auto status = AwaitProgress(config_);
  ASSERT_TRUE(status.has_value()) << server_0->Output();
  EXPECT_EQ(status->coordinator_server(), 0);
  EXPECT_THAT(server_0->Output(),
              HasSubstr("begins anew: no job is in etcd below "));
  server_0->Signal(SIGKILL);
  server_0->WaitText(kJobMax);

  const std::unique_ptr<Process> of_another_config =
      StartMember("of-another-config", "slackline_server", 0, config_, "host-b",
                  {"--mode=asp"});
  EXPECT_EQ(of_another_config->WaitText(kJobMax), kFailed);
  EXPECT_THAT(
      of_another_config->Output(),
      HasSubstr(absl::StrCat("etcd below ", kPrefix, " is of config ")));

  const auto now = AwaitTakenOver(*status);
  ASSERT_TRUE(now.has_value());
  const int host = now->coordinator_server();
  EXPECT_THAT(others_[static_cast<size_t>(host) - 1]->Output(),
              HasSubstr(absl::StrCat("server ", host,
                                     " goes on in its place, at tcp://127.0.0.",
                                     host + 1)));
  EXPECT_THAT(Tool("status", {"status", config_}),
              HasSubstr(absl::StrCat("coordinator: server ", host)));
  ExpectEndOfUndisturbed("others");
  EXPECT_THAT(ReadJson(Path("others/summary.json"))["files_incomplete"],
              HasSubstr("another folder"));
  EXPECT_FALSE(std::filesystem::exists(Path("host-a/summary.json")));
  for (const char* const folder : {"host-a", "others"}) {
    EXPECT_FALSE(std::filesystem::exists(
        Path(absl::StrCat(folder, "/coordinator.state"))));
  }

  // On a third one all that is left to say is how it has ended.
  const std::unique_ptr<Process> late =
      Start("late", "slackline_server", 0, "host-c");
  EXPECT_EQ(late->WaitText(kJobMax), kEndedWell) << late->Output();
  EXPECT_THAT(late->Output(), HasSubstr("has ended before this"));
  EXPECT_EQ(ReadJson(Path("host-c/summary.json"))["state"], "FINISHED");
  // So it is with any server, if the one that had the coordinator last was
  // killed before it had written the summary.
  const std::unique_ptr<Process> last =
      Start("last", "slackline_server", 2, "host-d", "--recover");
  EXPECT_EQ(last->WaitText(kJobMax), kEndedWell) << last->Output();
  EXPECT_EQ(ReadJson(Path("host-d/summary.json"))["model_sha256"],
            ReadJson(Path("others/summary.json"))["model_sha256"]);
}

TEST_F(CoordinatorInEtcd, WhoDoesNotLeadAnyMoreTellsNobodyAnything) {
  StartOthers();
  std::unique_ptr<Process> server_0 =
      Start("server-0", "slackline_server", 0, "host-a");
  const auto status = AwaitProgress(config_);
  ASSERT_TRUE(status.has_value()) << server_0->Output();

  // Its process holds its address, and its connections.
  server_0->Signal(SIGSTOP);
  ASSERT_TRUE(AwaitTakenOver(*status).has_value());
  ASSERT_TRUE(AwaitGone(config_, 0).has_value());
  const std::string files = ReadText(Path("host-a/metrics.jsonl"));
  server_0->Signal(SIGCONT);
  // The other one has given its server up, which finds that out.
  EXPECT_EQ(server_0->WaitText(kJobMax), "exited with code 69");
  EXPECT_THAT(server_0->Output(),
              AllOf(HasSubstr("does not lead any more"),
                    HasSubstr("the coordinator gave this server up")));
  EXPECT_FALSE(std::filesystem::exists(Path("host-a/summary.json")));
  EXPECT_EQ(ReadText(Path("host-a/metrics.jsonl")), files);

  // Started again, it is a server as any other.
  server_0 = Start("next", "slackline_server", 0, "host-a");
  EXPECT_TRUE(AwaitReplaced(config_, *status, 0).has_value())
      << server_0->Output();
  ExpectEndOfUndisturbed("others");
  EXPECT_EQ(server_0->WaitText(kEndMax), kEndedWell) << server_0->Output();
  EXPECT_THAT(server_0->Output(), HasSubstr("this server joins it"));
}

TEST_F(CoordinatorInEtcd, AnEtcdThatIsAwayForLongEndsNobody) {
  const std::unique_ptr<Process> run = StartRunWithEtcd();
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  etcd_->Kill();
  const std::string log = Path("run/logs/server-0.log");
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(ReadText(log), "it ends, this server goes on");
  })) << ReadText(log);
  etcd_->Start();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), Not(HasSubstr("again; it")));
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], ModelOfBsp());
}

TEST_F(CoordinatorInEtcd, ByHttpsTheStateIsThereToo) {
  if (!HasOpenSsl()) GTEST_SKIP() << kNoOpenSsl;
  const Certificates certificates;
  const auto etcd = certificates.Sign("etcd", "IP:127.0.0.1");
  const auto server = certificates.Sign("server", "DNS:any");
  etcd_.emplace(EtcdProgram(),
                Etcd::Tls{.certificate = etcd.certificate,
                          .private_key = etcd.private_key,
                          .client_ca = certificates.ca()},
                EtcdClient::Options{.endpoints = {},
                                    .ca = certificates.ca(),
                                    .certificate = server.certificate,
                                    .private_key = server.private_key});
  etcd_->Start();
  const std::unique_ptr<Process> run = StartRunWithEtcd();
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(ServerPid(*status, 0), SIGKILL);
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 0).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], ModelOfBsp());
  EXPECT_FALSE(std::filesystem::exists(Path("run/coordinator.state")));
}

TEST_F(CoordinatorInEtcd, AnEtcdThatIsStartedAgainIsNotNoticed) {
  const std::unique_ptr<Process> run = StartRunWithEtcd();
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  etcd_->Kill();
  // What has to be kept meanwhile waits, and so does what is told. The time is
  // a lease of the members, who bear that the coordinator is silent.
  const std::unique_ptr<Process> move =
      StartTool("move", {"move", Job(), "0-3", "--to=1", "--timeout-ms=60000"});
  absl::SleepFor(kLease);
  etcd_->Start();
  EXPECT_EQ(move->WaitText(kJobMax), kEndedWell) << move->Output();
  const uint64_t life = LifeOf(*status, 0);
  status =
      AwaitStatus(ResolvedConfig(), kJobMax, [](const auto&) { return true; });
  ASSERT_TRUE(status.has_value()) << run->Output();
  EXPECT_EQ(LifeOf(*status, 0), life);
  EXPECT_THAT(run->Output(), Not(HasSubstr("started server 0 again")));

  SignalProcess(ServerPid(*status, 0), SIGKILL);
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 0).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), HasSubstr("started server 0 again"));
  ExpectWhole("run");
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["model_sha256"], ModelOfBsp());
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["files_incomplete"], "");
}

}  // namespace slackline::coordinator_etcd_test
