// Goal: the mode changes while the job runs, by a schedule, by command and past
// dead workers, and loses nothing on the way.
// Method: jobs of real processes. What crosses between servers and workers is
// held against hashes that both sides take; models are held against those of
// jobs that never change.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::mode_change_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::SizeIs;

constexpr double kRoundingMax = 1e-5;
constexpr int kVictim = 2;
constexpr char kNothingCrossed[] = "0000000000000000";

class ModeChange : public JobTest {
 protected:
  std::string Job() const { return Path("run"); }
  std::string ResolvedConfig() const { return Path("run/cluster.textproto"); }
  std::vector<nlohmann::json> Changes(const std::string& name) const {
    return ReadJsonLines(absl::StrCat(Path(name), "/modes.jsonl"));
  }
  std::string Tool(const std::string& name,
                   const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> tool = StartTool(name, arguments);
    EXPECT_EQ(tool->WaitText(kJobMax), kEndedWell) << tool->Output();
    return tool->Output();
  }
  // Ends when the test says so.
  std::unique_ptr<Process> StartLongRun(const std::string& mode,
                                        int restarts = 0) {
    return StartRun("run", Write("job.textproto", SmallJob()),
                    {absl::StrCat("--mode=", mode), "--epochs=10000",
                     absl::StrCat("--restart-workers=", restarts)});
  }
  // Each with a log of this name, as "2.2" of worker 2 when it was started
  // again.
  void ExpectCompleted(const std::vector<std::string>& workers,
                       int64_t steps) const {
    EXPECT_GT(steps, 0);
    for (const std::string& worker : workers) {
      EXPECT_THAT(WorkerLog(worker),
                  HasSubstr(absl::StrCat("completed ", steps, " steps")))
          << worker;
    }
  }
  std::string WorkerLog(const std::string& name) const {
    return ReadText(Path(absl::StrCat("run/logs/worker-", name, ".log")));
  }
};

std::vector<std::string> Modes(const std::vector<nlohmann::json>& changes) {
  std::vector<std::string> modes;
  for (const nlohmann::json& change : changes) {
    modes.push_back(absl::StrCat(change["from"].get<std::string>(), " ",
                                 change["to"].get<std::string>()));
  }
  return modes;
}

struct OptimizerCase {
  std::string name;
  std::string text;
};

class ThereAndBack : public ModeChange,
                     public testing::WithParamInterface<OptimizerCase> {};

INSTANTIATE_TEST_SUITE_P(
    Optimizers, ThereAndBack,
    testing::Values(OptimizerCase{"momentum",
                                  "momentum { learning_rate: 0.1 }"},
                    OptimizerCase{"adam", "adam { learning_rate: 0.002 }"}),
    [](const auto& test) { return test.param.name; });

TEST_P(ThereAndBack, AllReduceInTheMidstOfBspCarriesTheStateBitForBit) {
  const std::string job = absl::StrReplaceAll(
      SmallJob(),
      {{"momentum { learning_rate: 0.1 momentum: 0.9 }", GetParam().text}});
  ASSERT_THAT(job, HasSubstr(GetParam().text));
  const std::string changing =
      Write("changing.textproto",
            absl::StrCat(job,
                         "sync { phase { bsp {} until_epoch: 0.3 } phase { "
                         "allreduce {} until_epoch: 0.7 } phase { bsp {} } }"));
  Run("changing", changing, {"--epochs=1"});
  Run("again", changing, {"--epochs=1"});
  Run("still", Write("still.textproto", job), {"--mode=bsp", "--epochs=1"});

  const std::vector<nlohmann::json> changes = Changes("changing");
  ASSERT_THAT(Modes(changes), ElementsAre("bsp allreduce", "allreduce bsp"));
  EXPECT_EQ(changes[0]["from_clock"], 30);
  EXPECT_EQ(changes[1]["from_clock"], 70);
  const std::vector<nlohmann::json> again = Changes("again");
  ASSERT_THAT(again, SizeIs(2));
  for (const int i : {0, 1}) {
    EXPECT_EQ(changes[i]["workers"], 4);
    // The servers refuse, and workers report, state whose hash differs; the
    // coordinator wants the same one of all workers.
    EXPECT_THAT(changes[i]["model_hash"].get<std::string>(),
                Ne(kNothingCrossed));
    EXPECT_EQ(changes[i]["model_hash"], again[i]["model_hash"]);
    EXPECT_GT(changes[i]["pause_micros"], 0);
    EXPECT_GT(changes[i]["bytes"], 0);
  }
  EXPECT_EQ(ReadJson(Path("changing/summary.json"))["model_sha256"],
            ReadJson(Path("again/summary.json"))["model_sha256"]);
  const std::vector<Tensor> changed = ReadModel(Path("changing"));
  const std::vector<Tensor> still = ReadModel(Path("still"));
  ASSERT_EQ(changed.size(), still.size());
  for (size_t t = 0; t < still.size(); ++t) {
    const double difference = RelativeDifference(changed[t], still[t]);
    EXPECT_LE(difference, kRoundingMax) << still[t].name;
    std::printf("%s: relative difference %.2g\n", still[t].name.c_str(),
                difference);
  }
}

TEST_F(ModeChange, AScheduleThroughAllModesTrainsAsWell) {
  Run("run",
      Write("job.textproto",
            absl::StrCat(SmallJob(),
                         "sync { phase { bsp {} until_epoch: 0.5 }"
                         " phase { ssp { staleness: 3 } until_epoch: 0.9 }"
                         " phase { backup { workers: 1 } until_epoch: 1.3 }"
                         " phase { allreduce {} until_epoch: 1.7 }"
                         " phase { dssp { min_staleness: 1 max_staleness: 4 }"
                         "         until_epoch: 2.1 }"
                         " phase { asp {} until_epoch: 2.5 }"
                         " phase { bsp {} } }")));
  EXPECT_THAT(Modes(Changes("run")),
              ElementsAre("bsp ssp:3", "ssp:3 backup:1", "backup:1 allreduce",
                          "allreduce dssp:1:4", "dssp:1:4 asp", "asp bsp"));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], 300);
  EXPECT_EQ(summary["mode_changes"], 6);
  EXPECT_GT(summary["test_accuracy"], 0.7);
}

TEST_F(ModeChange, CommandsChangeTheModeOfARunningJob) {
  const std::unique_ptr<Process> run = StartLongRun("bsp");
  ASSERT_TRUE(AwaitProgress(ResolvedConfig()).has_value()) << run->Output();
  Tool("to-ring", {"mode", "set", Job(), "allreduce"});
  Tool("to-ssp", {"mode", "set", Job(), "ssp:2"});
  Tool("to-ring-again", {"mode", "set", Job(), "allreduce"});
  Tool("to-backup", {"mode", "set", Job(), "backup:1"});
  Tool("to-dssp", {"mode", "set", Job(), "dssp:1:4"});
  ExpectCompleted({"0", "1", "2", "3"}, EndEarly("run", run.get()));
  EXPECT_THAT(Modes(Changes("run")),
              ElementsAre("bsp allreduce", "allreduce ssp:2", "ssp:2 allreduce",
                          "allreduce backup:1", "backup:1 dssp:1:4"));
}

TEST_F(ModeChange, AWorkerThatDiesInTheMidstDoesNotBlockIt) {
  const std::unique_ptr<Process> run = StartLongRun("ssp:3");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  // Its lease still runs when it is asked for a promise.
  SignalProcess(WorkerPid(*status, kVictim), SIGKILL);
  Tool("to-ring", {"mode", "set", Job(), "allreduce"});
  Tool("to-bsp", {"mode", "set", Job(), "bsp"});
  ExpectCompleted({"0", "1", "3"}, EndEarly("run", run.get()));
  const std::vector<nlohmann::json> changes = Changes("run");
  ASSERT_THAT(Modes(changes), ElementsAre("ssp:3 allreduce", "allreduce bsp"));
  EXPECT_EQ(changes[0]["workers"], 3);
  EXPECT_THAT(ReadJson(Path("run/summary.json"))["workers_lost"], SizeIs(1));
}

TEST_F(ModeChange, AllReduceGoesOnWithoutAWorkerThatDied) {
  const std::unique_ptr<Process> run = StartLongRun("allreduce");
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  // For so many steps more.
  int64_t there = 0;
  const auto without =
      AwaitStatus(ResolvedConfig(), kJobMax, [&](const wire::StatusReply& now) {
        if (now.worker_size() != 3) return false;
        if (there == 0) there = now.worker(0).clock();
        return now.worker(0).clock() >= there + 300;
      });
  ASSERT_TRUE(without.has_value()) << run->Output();
  ExpectCompleted({"0", "1", "3"}, EndEarly("run", run.get()));
  for (const char* const rank : {"0", "1", "3"})
    EXPECT_THAT(WorkerLog(rank), HasSubstr("connected to 2 other workers"));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  ASSERT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_THAT(summary["workers_lost"][0].get<std::string>(),
              HasSubstr(absl::StrCat("worker ", kVictim, " (pid ", pid, " ")));
  EXPECT_GT(summary["test_accuracy"], 0.7);
}

TEST_F(ModeChange, AWorkerThatIsStartedAgainJoinsTheAllReduce) {
  const std::unique_ptr<Process> run =
      StartLongRun("allreduce", /*restarts=*/1);
  const auto status = AwaitProgress(ResolvedConfig());
  ASSERT_TRUE(status.has_value()) << run->Output();
  const pid_t pid = WorkerPid(*status, kVictim);
  SignalProcess(pid, SIGKILL);
  ASSERT_TRUE(AwaitNewWorker(ResolvedConfig(), kVictim, pid).has_value())
      << run->Output();
  const std::string again = absl::StrCat(kVictim, ".2");
  ExpectCompleted({"0", "1", "3", again}, EndEarly("run", run.get()));
  EXPECT_THAT(WorkerLog(again), HasSubstr("took the state of clock"));
}

}  // namespace slackline::mode_change_test
