// Goal: a job goes on from its checkpoints as if nothing had happened: after
// its processes were killed at any moment, with the same bits where a mode has
// them, on other numbers of servers, threads and workers, from the newest whole
// checkpoint, and from a model that came from elsewhere; what cannot be, is
// said by name. Method: the real programs, killed with SIGKILL, on a small job.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/ids.h"
#include "common/io/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/must.h"
#include "tests/support/run_files.h"

namespace slackline::checkpoint_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr char kWrongUsage[] = "exited with code 2";
constexpr int kWorkers = 2;
constexpr Clock kSteps = 300;
constexpr Clock kEvery = 20;
constexpr double kAccuracyFloor = 0.7;

// 2 servers and 2 workers, and a small net that learns in 300 steps, one epoch
// and a half. Heartbeats, by which checkpoints are due, come often.
std::string SomeJob() {
  return SmallJob({.workers = kWorkers,
                   .train = "epochs: 1.5 seed: 1 eval_every_epochs: 0.5",
                   .lease_ms = 2000});
}

class Checkpoints : public JobTest {
 protected:
  std::string Job() const {
    return Write("job.textproto",
                 absl::StrCat("checkpoint { every_steps: ", kEvery,
                              " keep: 100 }\n", SomeJob()));
  }
  std::string JobWithout() const { return Write("plain.textproto", SomeJob()); }
  // "delays=uniform:3" takes the place of a mode.
  static std::vector<std::string> Flags(const std::string& mode,
                                        std::vector<std::string> more = {}) {
    const bool given = absl::StartsWith(mode, "delays=");
    more.push_back(absl::StrCat(given ? "--" : "--mode=", mode));
    return more;
  }
  // Steps take some milliseconds, so that the job can be killed in its midst.
  static std::vector<std::string> Slowly(const std::string& mode) {
    return Flags(mode, {"--set=worker[0].conditions.step_ms=8"});
  }

  std::string RootOf(const std::string& run) const {
    return Path(absl::StrCat(run, "/checkpoints"));
  }
  // Those of a run, the oldest first; what has no name yet is none.
  std::vector<std::string> CheckpointsOf(const std::string& run) const {
    std::vector<std::string> folders;
    std::error_code error;
    for (fs::directory_iterator at(RootOf(run), error), end;
         !error && at != end; at.increment(error)) {
      if (absl::StartsWith(at->path().filename().string(), "step-"))
        folders.push_back(at->path().string());
    }
    std::sort(folders.begin(), folders.end());
    return folders;
  }
  std::string Newest(const std::string& run) const {
    const std::vector<std::string> all = CheckpointsOf(run);
    EXPECT_THAT(all, Not(IsEmpty())) << run;
    return all.empty() ? "" : all.back();
  }
  // Once all workers have come so far and there are so many checkpoints, kills
  // everything: `slackline run` takes its processes along.
  void KillAt(Process& run, const std::string& name, Clock clock,
              size_t checkpoints = 1) {
    ASSERT_TRUE(
        AwaitStatus(Path(absl::StrCat(name, "/cluster.textproto")), kJobMax,
                    [&](const wire::StatusReply& status) {
                      return status.worker_size() > 0 &&
                             std::all_of(status.worker().begin(),
                                         status.worker().end(),
                                         [&](const run::WorkerStats& worker) {
                                           return worker.clock() >= clock;
                                         });
                    })
            .has_value())
        << run.Output();
    ASSERT_TRUE(WaitUntil(kJobMax, [&] {
      return CheckpointsOf(name).size() >= checkpoints;
    })) << run.Output();
    ASSERT_TRUE(run.running()) << run.Output();
    run.Signal(SIGKILL);
    run.WaitText(kSoon);
    ExpectNoProcessLeft();
  }
  nlohmann::json SummaryOf(const std::string& run) const {
    return ReadJson(Path(absl::StrCat(run, "/summary.json")));
  }
  std::string HashOf(const std::string& run) const {
    return SummaryOf(run)["model_sha256"].get<std::string>();
  }
  // A run of the job that is killed at `clock`.
  void RunAndKill(const std::string& name, const std::string& mode, Clock clock,
                  size_t checkpoints = 1) {
    const std::unique_ptr<Process> run = StartRun(name, Job(), Slowly(mode));
    KillAt(*run, name, clock, checkpoints);
  }
  // Goes on from `from`, to the end, with its output in NAME.log.
  std::string Resume(const std::string& name, const std::string& from,
                     const std::vector<std::string>& flags) {
    std::vector<std::string> all = flags;
    all.push_back(absl::StrCat("--resume=", from));
    const std::unique_ptr<Process> run = StartRun(name, Job(), all);
    EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
    return run->Output();
  }
  std::string FailToResume(const std::string& name, const std::string& from,
                           std::vector<std::string> flags,
                           const char* how = kFailed) {
    flags.push_back(absl::StrCat("--resume=", from));
    const std::unique_ptr<Process> run = StartRun(name, JobWithout(), flags);
    EXPECT_EQ(run->WaitText(kJobMax), how) << run->Output();
    ExpectNoProcessLeft();
    return run->Output();
  }
  std::string Tool(const std::string& name,
                   const std::vector<std::string>& arguments,
                   const char* how = kEndedWell) {
    const std::unique_ptr<Process> tool = StartTool(name, arguments);
    EXPECT_EQ(tool->WaitText(kSoon), how) << tool->Output();
    return tool->Output();
  }
  // One bit of the last tensor of a part.
  static void Damage(const std::string& checkpoint) {
    for (const auto& entry : fs::directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-3, std::ios::end);
      const int byte = file.get();
      file.seekp(-3, std::ios::end);
      file.put(static_cast<char>(byte ^ 1));
      return;
    }
    FAIL() << checkpoint << " has no part";
  }
};

// ---- The same bits ----------------------------------------------------------

class SameBits : public Checkpoints,
                 public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Modes, SameBits,
                         ::testing::Values("bsp", "allreduce",
                                           "delays=uniform:3"),
                         [](const auto& test) {
                           return std::string(test.param)
                               .substr(0, std::string(test.param).find('='));
                         });

TEST_P(SameBits, WhateverMomentTheJobWasKilledIn) {
  const std::string mode = GetParam();
  Run("without", JobWithout(), Flags(mode));
  const std::string hash = HashOf("without");
  Run("with", Job(), Slowly(mode));
  EXPECT_EQ(HashOf("with"), hash) << "a checkpoint changes nothing";
  EXPECT_GE(SummaryOf("with")["checkpoints"], 3);
  EXPECT_EQ(SummaryOf("with")["checkpoints_failed"], 0);
  RunAndKill("first", mode, 40);
  std::vector<std::string> flags = Slowly(mode);
  flags.push_back(absl::StrCat("--resume=", Path("first")));
  const std::unique_ptr<Process> second = StartRun("second", Job(), flags);
  KillAt(*second, "second", 170);
  EXPECT_THAT(second->Output(), HasSubstr("goes on from step "));
  Resume("last", Path("second"), Flags(mode));
  EXPECT_EQ(HashOf("last"), hash);
  const nlohmann::json summary = SummaryOf("last");
  EXPECT_EQ(summary["steps"], kSteps);
  const Clock from = summary["resumed_from"]["clock"].get<Clock>();
  EXPECT_GT(from, 0);
  EXPECT_LT(from, kSteps);
  EXPECT_EQ(summary["resumed_from"]["folder"], Newest("second"));
  for (const nlohmann::json& line : ReadJsonLines(Path("last/metrics.jsonl")))
    EXPECT_GT(line["step"].get<Clock>(), from) << line;
}

TEST_P(SameBits, InTheFolderOfTheRunItsRecordsAreContinued) {
  const std::string mode = GetParam();
  RunAndKill("run", mode, 110);
  const std::string newest = Newest("run");
  const std::string output = Resume("run", Path("run"), Flags(mode));
  EXPECT_THAT(output, HasSubstr(absl::StrCat("goes on from step ",
                                             Must(ReadManifest(newest)).clock(),
                                             " of ", newest)));
  // Of each worker, and of the evaluations, every step at most once, in order.
  std::map<std::string, Clock> steps;
  for (const nlohmann::json& line : ReadJsonLines(Path("run/metrics.jsonl"))) {
    std::string of = line["kind"].get<std::string>();
    if (of == "train") absl::StrAppend(&of, line["rank"].get<int>());
    EXPECT_GT(line["step"].get<Clock>(), steps[of]) << line;
    steps[of] = line["step"].get<Clock>();
  }
  EXPECT_THAT(steps, UnorderedElementsAre(Pair("train0", kSteps),
                                          Pair("train1", kSteps),
                                          Pair("eval", kSteps)));
  // Nor are the first logs gone.
  EXPECT_THAT(ReadText(Path("run/logs/server-0.2.log")),
              HasSubstr("--resume="));
  EXPECT_THAT(ReadText(Path("run/logs/server-0.log")),
              Not(HasSubstr("--resume=")));
}

TEST_F(Checkpoints, ErrorFeedbackGoesOnWithWhatItHadKept) {
  const auto flags = [](std::vector<std::string> more) {
    more.emplace_back(
        "--set=sync.compression[0]={top_k{ratio:0.1} min_elements:1}");
    return Flags("bsp", std::move(more));
  };
  Run("without", JobWithout(), flags({}));
  const std::unique_ptr<Process> first =
      StartRun("first", Job(), flags({"--set=worker[0].conditions.step_ms=8"}));
  KillAt(*first, "first", 80, 2);
  const std::string file =
      absl::StrCat(Newest("first"), "/worker-1.residuals.safetensors");
  EXPECT_THAT(Must(ReadSafetensors(file)).tensors, Not(IsEmpty()));
  Resume("last", Path("first"), flags({}));
  EXPECT_EQ(HashOf("last"), HashOf("without"));
  EXPECT_THAT(ReadText(Path("last/logs/worker-1.log")),
              HasSubstr("error feedback goes on"));
  // Whatever becomes of it in another mode, with other workers, without it.
  Resume("ssp", Path("first"), flags({"--set=worker[0].count=3"}));
  Resume("whole", Path("first"), Flags("allreduce"));
}

// What counts is whose folder it is, not where checkpoints lie.
TEST_F(Checkpoints, ARunGoesOnInItsFolderWithCheckpointsElsewhere) {
  RunAndKill("run", "bsp", 110);
  const Clock clock = Must(ReadManifest(Newest("run"))).clock();
  std::vector<nlohmann::json> before;
  for (const nlohmann::json& line : ReadJsonLines(Path("run/metrics.jsonl"))) {
    if (line["step"].get<Clock>() <= clock) before.push_back(line);
  }
  ASSERT_THAT(before, Not(IsEmpty()));
  std::vector<std::string> flags = Slowly("bsp");
  flags.push_back(absl::StrCat("--set=checkpoint.folder=", Path("ck")));
  Resume("run", Path("run"), flags);
  const std::vector<nlohmann::json> after =
      ReadJsonLines(Path("run/metrics.jsonl"));
  ASSERT_GT(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], before[i]);
  // The newest one is elsewhere now, and of a run in the same folder.
  Resume("run", Path("ck"), flags);
  EXPECT_EQ(ReadJsonLines(Path("run/metrics.jsonl")).front(), before.front());
}

// ---- Other modes, other clusters --------------------------------------------

class EveryServerMode : public Checkpoints,
                        public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Modes, EveryServerMode,
                         ::testing::Values("ssp:3", "asp", "backup:1"),
                         [](const auto& test) {
                           return std::string(test.param)
                               .substr(0, std::string(test.param).find(':'));
                         });

TEST_P(EveryServerMode, AJobThatWasKilledGoesOnToItsEnd) {
  RunAndKill("run", GetParam(), 150);
  Resume("again", Path("run"), Flags(GetParam()));
  const nlohmann::json summary = SummaryOf("again");
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_GT(summary["resumed_from"]["clock"], 0);
  EXPECT_GT(summary["test_accuracy"], kAccuracyFloor);
}

TEST_F(Checkpoints, OtherNumbersOfServersThreadsAndWorkers) {
  Run("without", JobWithout(), {"--mode=bsp"});
  RunAndKill("run", "bsp", 150);
  const Clock clock = Must(ReadManifest(Newest("run"))).clock();
  const struct {
    const char* name;
    int servers, threads, workers;
  } cases[] = {{"same", 4, 2, 2}, {"half", 1, 1, 1}, {"double", 4, 2, 4}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Resume(c.name, Path("run"),
           Flags("bsp", {absl::StrCat("--set=server[0].count=", c.servers),
                         absl::StrCat("--set=server[0].threads=", c.threads),
                         absl::StrCat("--set=worker[0].count=", c.workers)}));
    const nlohmann::json summary = SummaryOf(c.name);
    EXPECT_EQ(summary["steps"], kSteps * kWorkers / c.workers);
    EXPECT_GT(summary["test_accuracy"], kAccuracyFloor);
    // At the same part of the epoch.
    EXPECT_THAT(ReadText(Path(absl::StrCat(c.name, "/logs/worker-0.log"))),
                HasSubstr(absl::StrCat(
                    "goes on at clock ",
                    (clock * kWorkers + c.workers / 2) / c.workers, "\n")));
  }
  EXPECT_EQ(HashOf("same"), HashOf("without"))
      << "what the servers are has no part in the bits";
}

TEST_F(Checkpoints, AnotherModeThanBefore) {
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"asp", "allreduce"},
        {"allreduce", "asp"}}) {
    RunAndKill(from, from, 100);
    Resume(absl::StrCat("then-", to), Path(from), Flags(to));
    const nlohmann::json summary = SummaryOf(absl::StrCat("then-", to));
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_GT(summary["test_accuracy"], kAccuracyFloor) << to;
  }
}

TEST_F(Checkpoints, AJobThatIsDoneHasNothingLeftToDo) {
  RunAndKill("run", "bsp", 60);
  const std::string newest = Newest("run");
  const Clock clock = Must(ReadManifest(newest)).clock();
  for (const std::string mode : {"bsp", "allreduce"}) {
    Resume(mode, newest,
           Flags(mode, {absl::StrCat("--set=train.max_steps=", clock)}));
    EXPECT_EQ(SummaryOf(mode)["steps"], clock);
  }
  EXPECT_EQ(HashOf("bsp"), HashOf("allreduce"));
}

TEST_F(Checkpoints, ARunThatWasKilledBeforeItsFirstOneSaysSo) {
  const std::string job =
      Write("seldom.textproto",
            absl::StrCat("checkpoint { every_steps: 1000000 }\n", SomeJob()));
  const std::unique_ptr<Process> run = StartRun("run", job, Slowly("bsp"));
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  run->Signal(SIGKILL);
  run->WaitText(kSoon);
  ExpectNoProcessLeft();
  for (const std::string& given : {Path("run"), RootOf("run")}) {
    const std::unique_ptr<Process> next =
        StartRun("next", job, Flags("bsp", {"--resume=" + given}));
    EXPECT_EQ(next->WaitText(kSoon), kFailed);
    EXPECT_THAT(
        next->Output(),
        AllOf(HasSubstr("--resume: "),
              HasSubstr(absl::StrCat("the run in ", Path("run"),
                                     " was killed, or runs still")),
              HasSubstr("before a checkpoint was complete"),
              HasSubstr(absl::StrCat("to begin it anew: slackline run ",
                                     Path("run/cluster.textproto"), " --out ",
                                     Path("run"), " --new-run"))));
  }
}

// ---- The best one -----------------------------------------------------------

TEST_F(Checkpoints, TheBestStaysAndIsGoneOnFrom) {
  // No schedule: the evaluations make them due.
  const std::string job =
      Write("best.textproto",
            absl::StrCat("checkpoint { best_by: ACCURACY keep: 1 }\n",
                         SmallJob({.workers = kWorkers,
                                   .train = "epochs: 3 seed: 1 "
                                            "eval_every_epochs: 0.25",
                                   .lease_ms = 2000})));
  const std::unique_ptr<Process> run = StartRun("run", job, Slowly("bsp"));
  const std::optional<wire::StatusReply> status =
      AwaitStatus(Path("run/cluster.textproto"), kJobMax,
                  [](const wire::StatusReply& reply) {
                    return reply.best_checkpoint().value() > kAccuracyFloor;
                  });
  ASSERT_TRUE(status.has_value()) << run->Output();
  EXPECT_THAT(Tool("status", {"status", Path("run")}),
              HasSubstr("best checkpoint: step "));
  run->Signal(SIGKILL);
  run->WaitText(kSoon);
  ExpectNoProcessLeft();
  const nlohmann::json best = ReadJson(RootOf("run") + "/best.json");
  const std::string folder =
      absl::StrCat(RootOf("run"), "/", best["checkpoint"].get<std::string>());
  EXPECT_EQ(Must(ReadManifest(folder)).clock(), best["clock"]);

  // In its folder, by a rate that ruins the model: the best stays what it was.
  std::vector<std::string> flags = Slowly("bsp");
  flags.insert(flags.end(), {absl::StrCat("--resume=", Path("run")), "--best",
                             "--set=optimizer.momentum.learning_rate=20",
                             "--set=train.nonfinite=SKIP",
                             "--set=checkpoint.every_steps=20"});
  const std::unique_ptr<Process> ruined = StartRun("run", job, flags);
  EXPECT_EQ(ruined->WaitText(kJobMax), kEndedWell) << ruined->Output();
  EXPECT_THAT(ruined->Output(),
              HasSubstr(absl::StrCat("goes on from step ",
                                     best["clock"].get<Clock>(), " of ")));
  EXPECT_THAT(CheckpointsOf("run"), ElementsAre(folder, Newest("run")));
  EXPECT_GT(Must(ReadManifest(Newest("run"))).clock(), best["clock"]);
  EXPECT_EQ(ReadJson(RootOf("run") + "/best.json"), best);
  EXPECT_EQ(SummaryOf("run")["best_checkpoint"]["value"], best["value"]);

  const std::string model = Path("best.safetensors");
  const std::string text =
      Tool("export", {"export", Path("run"), model, "--best"});
  EXPECT_THAT(text, HasSubstr(folder));
  EXPECT_THAT(Tool("plain", {"export", Newest("run"), Path("x"), "--best"},
                   kWrongUsage),
              HasSubstr("is one checkpoint"));
  EXPECT_THAT(Tool("alone", {"run", job, "--best"}, kWrongUsage),
              HasSubstr("--resume"));
}

// ---- What a checkpoint has --------------------------------------------------

TEST_F(Checkpoints, AUserAsksForOneAndTakesTheModelAlong) {
  const std::unique_ptr<Process> run = StartRun(
      "run", JobWithout(),
      Flags("bsp", {"--epochs=1000", "--set=worker[0].conditions.step_ms=8"}));
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value());
  EXPECT_THAT(CheckpointsOf("run"), IsEmpty());
  const std::string text = Tool("ask", {"checkpoint", Path("run")});
  const std::string folder = Newest("run");
  EXPECT_THAT(text, HasSubstr(fs::path(folder).filename().string()));
  run->Signal(SIGTERM);
  run->WaitText(kSoon);
  const Clock clock = Must(ReadManifest(folder)).clock();
  // A job that ends where the checkpoint is has the same model.
  Run("short", JobWithout(),
      {"--mode=bsp", "--epochs=1000",
       absl::StrCat("--set=train.max_steps=", clock)});
  const std::string model = Path("model.safetensors");
  Tool("export", {"export", folder, model});
  const SafetensorsFile exported = Must(ReadSafetensors(model));
  EXPECT_EQ(ModelSha256(exported.tensors), HashOf("short"));
  const std::vector<Tensor> tensors = ReadModel(Path("short"));
  ASSERT_EQ(exported.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(exported.tensors[i].name, tensors[i].name);
    EXPECT_EQ(exported.tensors[i].shape, tensors[i].shape);
  }
  // And a job begins with a model that came from elsewhere.
  Tool("import", {"import", model, absl::StrCat("--out=", Path("imported"))});
  for (const char* const mode : {"bsp", "allreduce"}) {
    Resume(absl::StrCat("from-", mode), Path("imported"), Flags(mode));
    const nlohmann::json summary = SummaryOf(absl::StrCat("from-", mode));
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_EQ(summary["resumed_from"]["clock"], 0);
    EXPECT_GT(summary["test_accuracy"], kAccuracyFloor);
  }
}

// ---- What cannot be ---------------------------------------------------------

TEST_F(Checkpoints, ADamagedOneIsPassedOverByName) {
  RunAndKill("run", "bsp", 60, /*checkpoints=*/2);
  const std::vector<std::string> all = CheckpointsOf("run");
  ASSERT_GE(all.size(), 2u);
  Damage(all.back());
  const std::string output = Resume("again", Path("run"), Flags("bsp"));
  EXPECT_THAT(output,
              AllOf(HasSubstr("passed over"), HasSubstr(all.back()),
                    HasSubstr(absl::StrCat("of ", all[all.size() - 2]))));
  // Its own folder, and one without anything whole: an error, at once.
  EXPECT_THAT(FailToResume("itself", all.back(), Flags("bsp")),
              HasSubstr(all.back()));
  for (const std::string& folder : all)
    if (folder != all.back()) Damage(folder);
  EXPECT_THAT(FailToResume("none", Path("run"), Flags("bsp")),
              AllOf(HasSubstr("--resume: "), HasSubstr(all.front())));
  EXPECT_FALSE(fs::exists(Path("none"))) << "nothing was started";
  EXPECT_THAT(FailToResume("nowhere", Path("no-such-run"), Flags("bsp")),
              HasSubstr(Path("no-such-run")));
}

TEST_F(Checkpoints, WhatDoesNotFitIsNamed) {
  RunAndKill("run", "bsp", 60);
  const struct {
    const char* name;
    std::vector<std::string> flags;
    std::vector<const char*> words;
    const char* how;
  } cases[] = {
      {"model",
       {"--set=model.mlp.hidden=48"},
       {"mlp.0.weight[48, 16]", "mlp.0.weight[32, 16]"},
       kFailed},
      {"optimizer",
       {"--set=optimizer.adam.learning_rate=0.01"},
       {"mlp.0.weight", "momentum", "adam"},
       kFailed},
      {"delays",
       {"--delays=uniform:2"},
       {"delays are given for a whole job", "it is of a job without"},
       kFailed},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string output =
        FailToResume(c.name, Path("run"), c.flags, c.how);
    for (const char* const word : c.words) EXPECT_THAT(output, HasSubstr(word));
  }
  // Somebody else's folder.
  Run("other", JobWithout(), {"--epochs=0.1"});
  EXPECT_THAT(FailToResume("other", Path("run"), Flags("bsp")),
              HasSubstr("has not written"));
}

// By hand, with copies, so that the job outlives its servers: the checkpoint of
// the command line is removed when others have followed it.
TEST_F(Checkpoints, TheSameCommandStartsAServerAgainWhenItsCheckpointIsGone) {
  RunAndKill("first", "bsp", 40);
  const std::string begun_with = Newest("first");
  const std::string cluster = WriteWithPort(
      "by_hand.textproto",
      absl::StrCat("checkpoint { every_steps: 20 keep: 1 folder: \"",
                   RootOf("first"), "\" }\nreplicas: 1\n",
                   SmallJob({.workers = 2,
                             .train = "epochs: 1000 seed: 1",
                             .lease_ms = 2000})));
  const auto server = [&](int index, const std::string& name) {
    return StartMember(name, "slackline_server", index, cluster, "out",
                       {"--resume=" + begun_with});
  };
  std::vector<std::unique_ptr<Process>> servers;
  servers.push_back(server(0, "server-0"));
  servers.push_back(server(1, "server-1"));
  const auto worker_0 =
      StartMember("worker-0", "slackline_worker", 0, cluster, "out");
  const auto worker_1 =
      StartMember("worker-1", "slackline_worker", 1, cluster, "out");
  ASSERT_TRUE(WaitUntil(kJobMax, [&] { return !fs::exists(begun_with); }))
      << servers[0]->Output();
  for (const int index : {1, 0}) {
    // With copies of all shards on the other one.
    ASSERT_TRUE(
        AwaitStatus(cluster, kJobMax, [](const wire::StatusReply& status) {
          return status.server_size() == 2 && status.copies().empty();
        }).has_value());
    const pid_t before = servers[index]->pid();
    servers[index]->Signal(SIGKILL);
    servers[index]->WaitText(kSoon);
    servers[index] = server(index, absl::StrCat("server-", index, "-again"));
    ASSERT_TRUE(AwaitStatus(cluster, kJobMax,
                            [&](const wire::StatusReply& status) {
                              return status.server_size() == 2 &&
                                     ServerPid(status, index) != before &&
                                     status.worker_size() == 2;
                            })
                    .has_value())
        << servers[index]->Output();
  }
  // The servers may be gone before it hears how the job has ended.
  const std::unique_ptr<Process> stop = StartTool("stop", {"stop", cluster});
  for (const auto& member : servers)
    EXPECT_EQ(member->WaitText(kJobMax), kEndedWell) << member->Output();
  stop->WaitText(kSoon);
  EXPECT_THAT(stop->Output(), HasSubstr("small"));
}

TEST_F(Checkpoints, AServerThatCannotReadItIsNamed) {
  RunAndKill("run", "bsp", 150);
  const std::string folder = Newest("run");
  const std::string config = WriteWithPort("port.textproto", SomeJob());
  const std::unique_ptr<Process> first =
      StartMember("first", "slackline_server", 0, config, "out",
                  {absl::StrCat("--resume=", folder)});
  const std::unique_ptr<Process> blind =
      StartMember("blind", "slackline_server", 1, config, "out",
                  {absl::StrCat("--resume=", Path("elsewhere"))});
  EXPECT_EQ(blind->WaitText(kSoon), kFailed);
  EXPECT_THAT(blind->Output(),
              AllOf(HasSubstr("--resume"), HasSubstr(Path("elsewhere"))));
  // Nor may it have another checkpoint, or none.
  const std::vector<std::string> all = CheckpointsOf("run");
  ASSERT_GE(all.size(), 2u);
  const std::unique_ptr<Process> other =
      StartMember("other", "slackline_server", 1, config, "out",
                  {absl::StrCat("--resume=", all.front())});
  EXPECT_EQ(other->WaitText(kSoon), kFailed);
  EXPECT_THAT(other->Output(), HasSubstr("checkpoint"));
  const std::unique_ptr<Process> without =
      StartMember("without", "slackline_server", 1, config, "out");
  EXPECT_EQ(without->WaitText(kSoon), kFailed);
  EXPECT_THAT(without->Output(), HasSubstr("checkpoint"));
  first->Signal(SIGTERM);
  first->WaitText(kSoon);
}

TEST_F(Checkpoints, WhereNoneCanBeWrittenTrainingGoesOn) {
  for (const std::string mode : {"bsp", "allreduce"}) {
    std::vector<std::string> flags = Slowly(mode);
    flags.push_back("--set=checkpoint.folder=/proc/no-such-folder");
    Run(mode, Job(), flags);
    const nlohmann::json summary = SummaryOf(mode);
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_EQ(summary["checkpoints"], 0);
    EXPECT_GE(summary["checkpoints_failed"], 1);
    EXPECT_THAT(ReadText(Path(mode + "/logs/server-0.log")),
                HasSubstr("/proc/no-such-folder"));
  }
}

// Of docs/manual/checkpoints.md, as they stand there.
TEST_F(Checkpoints, CommandsOfThePageWork) {
  EXPECT_GE(RunCommandsOfPage("checkpoints.md"), 5);
}

}  // namespace slackline::checkpoint_test
