// Goal: a job whose shards have copies goes on when server 0 dies, which hosts
// the coordinator: another one knows what the first has told anybody, BSP and
// all-reduce end with the bits of a run that nobody disturbed, and no record is
// lost or there twice.
// Method: the real programs; server 0 is killed, alone and in the midst of what
// it does.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/replicated_job.h"

namespace slackline::coordinator_death_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class CoordinatorDeath : public ReplicatedJob {
 protected:
  // The process of server 0, whatever the coordinator says; 0: there is none.
  pid_t Server0() const {
    for (const std::string& process : ProcessesMentioning(Path("run"))) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(process, absl::MaxSplits(": ", 1));
      pid_t pid = 0;
      if (absl::StrContains(parts.second, "slackline_server") &&
          absl::StrContains(parts.second, "--index=0 ") &&
          absl::SimpleAtoi(parts.first, &pid)) {
        return pid;
      }
    }
    return 0;
  }
  // Returns once its process is gone.
  void KillServer0() {
    const pid_t pid = Server0();
    ASSERT_NE(pid, 0);
    SignalProcess(pid, SIGKILL);
    ASSERT_TRUE(WaitUntil(kJobMax, [&] { return Server0() != pid; }));
  }
  // Who, what and when of each record.
  using Record = std::tuple<std::string, int, int64_t>;
  std::multiset<Record> RecordsOf(const std::string& folder) const {
    std::multiset<Record> records;
    for (const nlohmann::json& record :
         ReadJsonLines(Path(absl::StrCat(folder, "/metrics.jsonl")))) {
      records.emplace(record["kind"].get<std::string>(),
                      record["rank"].get<int>(), record["step"].get<int64_t>());
    }
    return records;
  }
  void ExpectRecordsOnce(const std::string& folder) const {
    const std::multiset<Record> records = RecordsOf(folder);
    EXPECT_EQ(std::set<Record>(records.begin(), records.end()).size(),
              records.size());
    EXPECT_EQ(ReadJson(Path(
                  absl::StrCat(folder, "/summary.json")))["files_incomplete"],
              "");
  }
  std::string Sha256Of(const std::string& folder) const {
    return ReadJson(Path(absl::StrCat(folder, "/summary.json")))["model_sha256"]
        .get<std::string>();
  }
  // A run in the folder "still" that nobody disturbs.
  void RunStill(const std::string& mode) {
    Run("still", Write("still.textproto", JobText()), Arguments(mode, 0));
  }
};

TEST_F(CoordinatorDeath, BspKeepsItsBitsWhenServer0IsKilledAgainAndAgain) {
  RunStill("bsp");
  const std::unique_ptr<Process> run = StartJob("bsp");
  auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  ASSERT_TRUE(CopiesAreComplete(*status)) << "from the start";
  KillServer0();
  const auto before = status;
  status = AwaitReplaced(ResolvedConfig(), *before, 0);
  ASSERT_TRUE(status.has_value()) << run->Output();
  EXPECT_EQ(status->view().run(), before->view().run());
  // The next one, too, and the one after it before the old one's lease is over.
  KillServer0();
  ASSERT_TRUE(WaitUntil(kJobMax, [&] { return Server0() != 0; }));
  ASSERT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax, [](const auto&) {
                return true;
              }).has_value());
  KillServer0();
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 0).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(), AllOf(HasSubstr("started server 0 again"),
                                   Not(HasSubstr("restoring the job"))));
  ExpectWhole("run");
  EXPECT_EQ(Sha256Of("run"), Sha256Of("still"));
  EXPECT_EQ(RecordsOf("run"), RecordsOf("still"));
  ExpectRecordsOnce("run");
}

class CoordinatorDeathInMode : public CoordinatorDeath,
                               public testing::WithParamInterface<std::string> {
};

INSTANTIATE_TEST_SUITE_P(Modes, CoordinatorDeathInMode,
                         testing::Values("ssp:3", "asp", "allreduce"),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':'));
                         });

TEST_P(CoordinatorDeathInMode, TheJobEndsAsIfNothingHadBeen) {
  const std::unique_ptr<Process> run = StartJob(GetParam());
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  KillServer0();
  EXPECT_TRUE(AwaitReplaced(ResolvedConfig(), *status, 0).has_value())
      << run->Output();
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run");
  ExpectRecordsOnce("run");
  if (GetParam() != "allreduce") return;
  RunStill(GetParam());
  EXPECT_EQ(Sha256Of("run"), Sha256Of("still"));
}

TEST_F(CoordinatorDeath, MovesThatWereUnderWayAreDone) {
  RunStill("bsp");
  const std::unique_ptr<Process> run = StartJob("bsp");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  // From server 2, so that those who have something to do live on.
  std::vector<int> shards;
  std::vector<std::string> arguments = {"move", Job(), "--to=1",
                                        "--timeout-ms=60000"};
  const auto& before = status->view().owner_server();
  for (int i = 0; i < before.size(); ++i) {
    if (before[i] != 2) continue;
    shards.push_back(i);
    arguments.push_back(absl::StrCat(i));
  }
  const std::unique_ptr<Process> move = StartTool("move", arguments);
  ASSERT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                          [&](const wire::StatusReply& now) {
                            return now.moves() > status->moves();
                          })
                  .has_value())
      << move->Output();
  KillServer0();
  EXPECT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                          [&](const wire::StatusReply& now) {
                            const auto& owners = now.view().owner_server();
                            return std::all_of(
                                shards.begin(), shards.end(),
                                [&](int shard) { return owners[shard] == 1; });
                          })
                  .has_value())
      << run->Output();
  move->WaitText(kJobMax);
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run");
  EXPECT_EQ(Sha256Of("run"), Sha256Of("still"));
  ExpectRecordsOnce("run");
}

TEST_F(CoordinatorDeath, AChangeOfTheModeThatWasUnderWayIsMadeOnce) {
  const std::unique_ptr<Process> run = StartJob("ssp:3");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const std::unique_ptr<Process> change = StartTool(
      "mode", {"mode", "set", Job(), "allreduce", "--timeout-ms", "60000"});
  ASSERT_TRUE(AwaitStatus(ResolvedConfig(), kJobMax,
                          [&](const wire::StatusReply& now) {
                            return now.view().has_change() ||
                                   now.view().phase_size() >
                                       status->view().phase_size();
                          })
                  .has_value())
      << change->Output();
  KillServer0();
  change->WaitText(kJobMax);
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectWhole("run");
  ExpectRecordsOnce("run");
  EXPECT_THAT(ReadJsonLines(Path("run/modes.jsonl")), SizeIs(1));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["mode_changes"], 1);
}

TEST_F(CoordinatorDeath, ByHandTheSameCommandStartsServer0Again) {
  const std::string config = WriteWithPort("job.textproto", JobText());
  const auto start = [&](const std::string& name, const std::string& program,
                         int index, const std::string& flag = "") {
    std::vector<std::string> arguments = Arguments("bsp");
    if (!flag.empty()) arguments.push_back(flag);
    return StartMember(name, program, index, config, "by-hand", arguments);
  };
  std::unique_ptr<Process> server_0 = start("server-0", "slackline_server", 0);
  std::vector<std::unique_ptr<Process>> others;
  for (int i = 1; i < 3; ++i) {
    others.push_back(start(absl::StrCat("server-", i), "slackline_server", i));
  }
  for (int i = 0; i < 4; ++i) {
    others.push_back(start(absl::StrCat("worker-", i), "slackline_worker", i));
  }
  const auto status = AwaitProgress(config);
  ASSERT_TRUE(status.has_value()) << server_0->Output();
  EXPECT_THAT(server_0->Output(), HasSubstr("begins anew: no job is in "));

  const std::unique_ptr<Process> second =
      start("second", "slackline_server", 0);
  EXPECT_EQ(second->WaitText(kJobMax), kFailed);
  EXPECT_THAT(second->Output(),
              HasSubstr(absl::StrCat("process ", server_0->pid(), " of host")));

  server_0->Signal(SIGKILL);
  server_0->WaitText(kJobMax);
  const std::unique_ptr<Process> of_another_job = StartMember(
      "of-another-job", "slackline_server", 0,
      Write("other.textproto",
            absl::StrReplaceAll(ReadText(config), {{"\"small\"", "\"tiny\""}})),
      "by-hand");
  EXPECT_EQ(of_another_job->WaitText(kJobMax), kFailed);
  EXPECT_THAT(of_another_job->Output(),
              AllOf(HasSubstr("coordinator.state is of job small"),
                    HasSubstr("this is tiny")));
  EXPECT_EQ(StartTool("status", {"status", config})->WaitText(kJobMax),
            "exited with code 6");

  for (const std::unique_ptr<Process>& member : others) {
    EXPECT_TRUE(WaitUntil(kJobMax, [&] {
      return absl::StrContains(member->Output(), "waits for another one");
    })) << member->Output();
  }
  const std::string records = ReadText(Path("by-hand/metrics.jsonl"));
  server_0 = start("next", "slackline_server", 0);
  EXPECT_TRUE(AwaitReplaced(config, *status, 0).has_value())
      << server_0->Output();
  for (const std::unique_ptr<Process>& member : others) {
    EXPECT_EQ(member->WaitText(kEndMax), kEndedWell) << member->Output();
    EXPECT_THAT(member->Output(), HasSubstr("is heard again"));
  }
  EXPECT_EQ(server_0->WaitText(kEndMax), kEndedWell) << server_0->Output();
  ExpectWhole("by-hand");
  ExpectRecordsOnce("by-hand");
  EXPECT_TRUE(
      absl::StartsWith(ReadText(Path("by-hand/metrics.jsonl")), records));

  const std::string summary = ReadText(Path("by-hand/summary.json"));
  const std::string all_records = ReadText(Path("by-hand/metrics.jsonl"));
  // Also with the flag of those who start whole jobs again; and where no state
  // of a coordinator is kept.
  for (const std::string flag : {"", "--restore", "--recover"}) {
    if (flag == "--recover")
      std::filesystem::remove(Path("by-hand/coordinator.state"));
    const std::unique_ptr<Process> late =
        start(absl::StrCat("late", flag), "slackline_server", 0, flag);
    EXPECT_EQ(late->WaitText(kJobMax), kEndedWell);
    EXPECT_THAT(late->Output(), AllOf(HasSubstr("has ended before this"),
                                      HasSubstr("--new-run")));
    EXPECT_EQ(ReadText(Path("by-hand/summary.json")), summary);
    EXPECT_EQ(ReadText(Path("by-hand/metrics.jsonl")), all_records);
  }
  // Who wants another run says so, and loses nothing.
  const std::unique_ptr<Process> anew =
      start("anew", "slackline_server", 0, "--new-run");
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return std::filesystem::exists(Path("by-hand/replaced-1/metrics.jsonl"));
  })) << anew->Output();
  EXPECT_EQ(ReadText(Path("by-hand/replaced-1/metrics.jsonl")), all_records);
  EXPECT_EQ(ReadText(Path("by-hand/replaced-1/summary.json")), summary);
}

// Its server has still to wait for the lease of the one before, and the workers
// do not need it.
TEST_F(CoordinatorDeath, AJobThatIsOverBeforeServer0HasItsPlaceHasFinished) {
  std::vector<std::string> arguments = Arguments("allreduce");
  arguments.push_back("--set=limits.lease_ms=5000");
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", JobText()), arguments);
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  KillServer0();
  ASSERT_TRUE(WaitUntil(kJobMax, [&] { return Server0() != 0; }));
  Tool("stop", {"stop", Job(), "--reason=enough for today"});
  EXPECT_EQ(run->WaitText(kEndMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(ReadText(Path("run/logs/server-0.2.log")),
              HasSubstr("the job had ended when this server came"));
  EXPECT_EQ(ReadJson(Path("run/summary.json"))["cause"], "FINISHED_EARLY");
}

TEST_F(CoordinatorDeath, WhoMayNotRecoverIsTold) {
  const std::string config = WriteWithPort("job.textproto", JobText());
  const auto refused = [&](int index, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {absl::StrCat(SLACKLINE_BIN_DIR, "/slackline_server"),
                      absl::StrCat("--cluster=", config),
                      absl::StrCat("--index=", index), "--recover"});
    Process server(arguments, Path("refused.log"));
    EXPECT_EQ(server.WaitText(kJobMax), "exited with code 2");
    return server.Output();
  };
  EXPECT_THAT(
      refused(1, {absl::StrCat("--out=", Path("run"))}),
      HasSubstr("server 1 never has the coordinator, which server 0 has"));
  EXPECT_THAT(refused(0, {}), HasSubstr("--out"));
}

TEST_F(CoordinatorDeath, TheCommandsOfThePageWorkAsPrinted) {
  EXPECT_EQ(RunCommandsOfPage("coordinator.md"), 2);
}

}  // namespace slackline::coordinator_death_test
