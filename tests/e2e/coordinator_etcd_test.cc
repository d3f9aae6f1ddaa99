// Goal: a job whose coordinator keeps its state in etcd goes on with a server 0
// that has nothing but the config: on another host, with another disk. Of two
// coordinators the one that does not lead any more tells nobody anything.
// Method: the real programs and a real etcd; skipped aloud without one.
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
#include "server/coordinator/state/etcd_state_store.h"
#include "tests/support/etcd.h"
#include "tests/support/replicated_job.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPrefix[] = "/slackline/small";  // As the config has it.

class CoordinatorInEtcd : public ReplicatedJob {
 protected:
  void SetUp() override {
    const std::string program = EtcdProgram();
    if (program.empty()) GTEST_SKIP() << kNoEtcd;
    etcd_.emplace(program);
    etcd_->Start();
  }
  std::string EtcdBlock() const {
    return absl::StrCat("etcd { endpoint: \"", etcd_->url(), "\" }");
  }
  // The job by hand, without server 0, which has a folder of its own. Server 0
  // makes that one, and nobody makes the one of the others.
  void StartOthers() {
    std::filesystem::create_directories(Path("others"));
    config_ = WriteWithPort("job.textproto", JobText());
    Write("job.textproto",
          absl::StrReplaceAll(ReadText(config_),
                              {{"coordinator {",
                                absl::StrCat("coordinator { ", EtcdBlock())}}));
    for (int i = 1; i < 3; ++i) {
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
  // They have noticed that nobody says anything, and wait.
  void AwaitThatOthersWait() {
    for (const std::unique_ptr<Process>& member : others_) {
      EXPECT_TRUE(WaitUntil(kJobMax, [&] {
        return absl::StrContains(member->Output(), "has been silent for");
      })) << member->Output();
      EXPECT_TRUE(member->running()) << member->Output();
    }
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

TEST_F(CoordinatorInEtcd, AnotherDiskGoesOnWithTheJob) {
  StartOthers();
  // As a supervisor has it that gives the flag always.
  std::unique_ptr<Process> server_0 =
      Start("server-0", "slackline_server", 0, "host-a", "--recover");
  const auto status = AwaitProgress(config_);
  ASSERT_TRUE(status.has_value()) << server_0->Output();
  EXPECT_THAT(server_0->Output(),
              HasSubstr("begins anew: no job is in etcd below "));
  server_0->Signal(SIGKILL);
  server_0->WaitText(kJobMax);

  const std::unique_ptr<Process> of_another_config =
      StartMember("of-another-config", "slackline_server", 0, config_, "host-b",
                  {"--recover", "--mode=asp"});
  EXPECT_EQ(of_another_config->WaitText(kJobMax), kFailed);
  EXPECT_THAT(
      of_another_config->Output(),
      AllOf(HasSubstr("the end of its lease is waited for"),
            HasSubstr(absl::StrCat("etcd below ", kPrefix, " is of config "))));

  AwaitThatOthersWait();
  server_0 = Start("next", "slackline_server", 0, "host-b", "--recover");
  const auto now = AwaitReplaced(config_, *status, 0);
  ASSERT_TRUE(now.has_value()) << server_0->Output();
  EXPECT_EQ(now->view().run(), status->view().run());
  EXPECT_EQ(server_0->WaitText(kEndMax), kEndedWell) << server_0->Output();
  EXPECT_THAT(server_0->Output(),
              AllOf(HasSubstr("goes on with the job that is in etcd"),
                    HasSubstr("metrics.jsonl lacks 1 record")));
  ExpectEndOfUndisturbed("host-b");
  const std::string missing =
      ReadJson(Path("host-b/summary.json"))["files_incomplete"];
  EXPECT_THAT(missing, AllOf(HasSubstr("host-b/metrics.jsonl lacks 1 record"),
                             HasSubstr("another folder")));
  for (const char* const host : {"host-a", "host-b"}) {
    EXPECT_FALSE(std::filesystem::exists(
        Path(absl::StrCat(host, "/coordinator.state"))));
  }

  // On a third one all that is left to say is how it has ended.
  const std::unique_ptr<Process> late =
      Start("late", "slackline_server", 0, "host-c", "--recover");
  EXPECT_EQ(late->WaitText(kJobMax), kEndedWell) << late->Output();
  EXPECT_THAT(late->Output(), HasSubstr("has ended before this"));
  EXPECT_EQ(ReadJson(Path("host-c/summary.json"))["state"], "FINISHED");
}

// The test itself is the coordinator that takes over, so that the address of
// the first one stays its own: whatever it still says would reach the members.
TEST_F(CoordinatorInEtcd, WhoDoesNotLeadAnyMoreTellsNobodyAnything) {
  StartOthers();
  std::unique_ptr<Process> server_0 =
      Start("server-0", "slackline_server", 0, "host-a");
  const auto status = AwaitProgress(config_);
  ASSERT_TRUE(status.has_value()) << server_0->Output();

  server_0->Signal(SIGSTOP);
  EtcdStateStore::Options options;
  options.etcd.endpoints = {etcd_->url()};
  options.prefix = kPrefix;
  options.endpoint = "tcp://10.1.2.3:7700";
  options.lease = absl::Minutes(2);
  options.wait_max = kJobMax;
  auto other = Must(EtcdStateStore::Open(options));
  const CoordinatorState state = other->state();
  const std::string files = ReadText(Path("host-a/metrics.jsonl"));
  server_0->Signal(SIGCONT);
  EXPECT_EQ(server_0->WaitText(kJobMax), kFailed);
  EXPECT_THAT(server_0->Output(),
              AllOf(HasSubstr("does not lead any more"),
                    HasSubstr(absl::StrCat("the coordinator at ",
                                           "tcp://10.1.2.3:7700 in process ",
                                           getpid(), " of host "))));
  EXPECT_FALSE(std::filesystem::exists(Path("host-a/summary.json")));
  EXPECT_EQ(ReadText(Path("host-a/metrics.jsonl")), files);
  AwaitThatOthersWait();

  other.reset();
  other = Must(EtcdStateStore::Open(options));
  EXPECT_EQ(other->state(), state);
  other.reset();
  server_0 = Start("next", "slackline_server", 0, "host-a", "--recover");
  EXPECT_TRUE(AwaitReplaced(config_, *status, 0).has_value())
      << server_0->Output();
  EXPECT_EQ(server_0->WaitText(kEndMax), kEndedWell) << server_0->Output();
  ExpectEndOfUndisturbed("host-a");
  EXPECT_EQ(ReadJson(Path("host-a/summary.json"))["files_incomplete"], "");
}

TEST_F(CoordinatorInEtcd, AnEtcdThatIsStartedAgainIsNotNoticed) {
  const std::string text = JobText() + "coordinator { " + EtcdBlock() + " }\n";
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", text), Arguments("bsp"));
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

}  // namespace
}  // namespace slackline
