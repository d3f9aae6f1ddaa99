// Goal: a worker whose trainer stands still for ever, while its process lives
// and sends heartbeats, takes nobody along: it is named, it is removed, and the
// others complete their steps, in BSP with the model of a job in which that
// worker had died at that step.
// Method: real processes; conditions { stall_at_step } makes one worker stand
// still, and nothing wakes it up.
#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::stall_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kVictim = 3;
constexpr int64_t kStallAt = 30;

class Stall : public JobTest {
 protected:
  // The victim is in a group of its own. Steps take a while, so that in BACKUP
  // the others are not done before it gets there.
  std::string Config(const std::string& name) const {
    return Write(name, absl::StrReplaceAll(
                           SmallJob(),
                           {{R"(worker { host: "127.0.0.1" count: 4 })",
                             absl::StrCat(R"(worker { host: "127.0.0.1" count: 3
  conditions { step_ms: 10 } }
worker { host: "127.0.0.1" conditions { step_ms: 10 stall_at_step: )",
                                          kStallAt, " } }")},
                            {"lease_ms: 5000", "lease_ms: 1000"}}));
  }
  std::unique_ptr<Process> Start(const std::string& name,
                                 const std::string& mode, int stall_ms) {
    return StartRun(name, Config(name + ".textproto"),
                    {absl::StrCat("--mode=", mode), "--epochs=1",
                     absl::StrCat("--set=limits.stall_timeout_ms=", stall_ms)});
  }
  nlohmann::json Summary(const std::string& name) const {
    return ReadJson(Path(name + "/summary.json"));
  }
};

class StallInEveryMode : public Stall,
                         public testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Modes, StallInEveryMode,
                         testing::Values("bsp", "ssp:3", "backup:1",
                                         "allreduce"),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':'));
                         });

TEST_P(StallInEveryMode, TheOthersCompleteAndTheSummaryNamesIt) {
  const std::unique_ptr<Process> run = Start("run", GetParam(), 3000);
  const auto status = AwaitStatus(
      Path("run/cluster.textproto"), kJobMax,
      [](const wire::StatusReply& s) { return s.held_up_size() > 0; });
  EXPECT_TRUE(status.has_value()) << "nobody says who holds the others up";
  if (status.has_value()) {
    EXPECT_THAT(status->held_up(0),
                HasSubstr(absl::StrCat("worker ", kVictim)));
  }
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = Summary("run");
  EXPECT_EQ(summary["steps"], 100);
  ASSERT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_THAT(summary["workers_lost"][0].get<std::string>(),
              HasSubstr(absl::StrCat("worker ", kVictim)));
  // In BACKUP the others are done by then, and the job ends with its removal.
  if (GetParam() == "backup:1") return;
  EXPECT_THAT(
      ReadText(Path(absl::StrCat("run/logs/worker-", kVictim, ".log"))),
      HasSubstr("the coordinator gave this worker up: it was removed, and may "
                "join again, because it held up worker"));
}

TEST_F(Stall, InBspTheModelIsThatOfAJobInWhichTheWorkerDied) {
  const std::unique_ptr<Process> stalls = Start("stalls", "bsp", 2000);
  EXPECT_EQ(stalls->WaitText(kJobMax), kEndedWell) << stalls->Output();

  // Here it is killed where it stands still, before anybody removes it.
  const std::unique_ptr<Process> dies = Start("dies", "bsp", 60000);
  const auto status =
      AwaitStatus(Path("dies/cluster.textproto"), kJobMax, [](const auto& s) {
        for (const run::WorkerStats& worker : s.worker()) {
          const int64_t waits_at =
              worker.rank() == kVictim ? kStallAt : kStallAt + 1;
          if (worker.clock() != waits_at) return false;
        }
        return s.worker_size() == 4;
      });
  ASSERT_TRUE(status.has_value()) << dies->Output();
  SignalProcess(WorkerPid(*status, kVictim), SIGKILL);
  EXPECT_EQ(dies->WaitText(kJobMax), kEndedWell) << dies->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(Summary("stalls")["model_sha256"], Summary("dies")["model_sha256"]);
}

}  // namespace slackline::stall_test
