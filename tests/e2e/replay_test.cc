// Goal: the replay of a run's delays is that run, bit for bit, and two replays
// are the same. Method: real jobs write their traces; slackline_replay computes
// every gradient and every update again in one process, and the models must
// have the same hash.
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::replay_test {

using ::testing::HasSubstr;

class Replay : public JobTest {
 protected:
  std::string Summary(const std::string& run) const {
    return Path(absl::StrCat(run, "/summary.json"));
  }
  std::string Sha(const std::string& run) const {
    return ReadJson(Summary(run)).value("model_sha256", "");
  }
  void RunReplay(const std::string& name, const std::string& cluster_file,
                 const std::string& delays,
                 const std::vector<std::string>& arguments = {}) {
    const std::unique_ptr<Process> replay =
        StartReplay(name, cluster_file, delays, arguments);
    EXPECT_EQ(replay->WaitText(kJobMax), kEndedWell) << replay->Output();
  }
  // Why it was refused.
  std::string RunRefused(const std::string& name,
                         const std::string& cluster_file,
                         const std::string& delays,
                         const std::vector<std::string>& arguments = {}) {
    const std::unique_ptr<Process> replay =
        StartReplay(name, cluster_file, delays, arguments);
    EXPECT_NE(replay->WaitText(kJobMax), kEndedWell);
    return replay->Output();
  }
};

TEST_F(Replay, OfARecordedRunIsThatRunToTheBit) {
  const std::string job = Write("job.textproto", SmallJob());
  for (const char* const mode :
       {"asp", "ssp:2", "bsp", "dssp:1:4", "backup:1"}) {
    SCOPED_TRACE(mode);
    const std::string run = absl::StrReplaceAll(mode, {{":", "-"}});
    Run(run, job, {absl::StrCat("--mode=", mode), "--set=train.trace=true"});
    RunReplay(run + "-again", Path(run + "/cluster.textproto"), Path(run));
    EXPECT_NE(Sha(run), "");
    EXPECT_EQ(Sha(run + "-again"), Sha(run));
    const nlohmann::json recorded = ReadJson(Summary(run));
    const nlohmann::json replayed = ReadJson(Summary(run + "-again"));
    EXPECT_EQ(replayed["test_loss"], recorded["test_loss"]);
    ExpectSameStaleness(recorded, replayed);
  }
}

TEST_F(Replay, OfARunWithRulesForStaleGradientsIsThatRunToTheBit) {
  for (const char* const rule :
       {"scale{}", "staleness_aware_rate{}", "gap_aware{}",
        "delay_compensation{lambda:0.5}", "adaptive_delay_compensation{}",
        "drop{beyond_clocks:0.5}"}) {
    SCOPED_TRACE(rule);
    const std::string run =
        std::string(rule).substr(0, std::string(rule).find('{'));
    const std::string job =
        Write(run + ".textproto",
              absl::StrCat(SmallJob(), "sync { asp {} stale { ", rule, " } }"));
    Run(run, job, {"--set=train.trace=true", "--set=train.epochs=1"});
    RunReplay(run + "-again", Path(run + "/cluster.textproto"), Path(run));
    EXPECT_NE(Sha(run), "");
    EXPECT_EQ(Sha(run + "-again"), Sha(run));
    ExpectSameStaleness(ReadJson(Summary(run)),
                        ReadJson(Summary(run + "-again")));
  }
}

// The delays of the run name no gradient that was discarded.
TEST_F(Replay, OfARunWithABoundOfGradientsIsThatRunToTheBit) {
  const std::string job =
      Write("job.textproto",
            absl::StrReplaceAll(
                SmallJob(),
                {{"worker { host: \"127.0.0.1\" count: 4 }",
                  "worker { host: \"127.0.0.1\" count: 3 }\n"
                  "worker { host: \"127.0.0.1\" conditions { scaled_by: 10000 "
                  "scaled_at_step: 40 scaled_at_step: 60 } }"}}));
  for (const char* const mode : {"asp", "bsp"}) {
    SCOPED_TRACE(mode);
    Run(mode, job,
        {absl::StrCat("--mode=", mode), "--epochs=1", "--set=train.trace=true",
         "--set=train.gradient_bound.times_running_rms=20",
         "--set=train.gradient_bound.policy=SKIP"});
    const std::string again = absl::StrCat(mode, "-again");
    RunReplay(again, Path(absl::StrCat(mode, "/cluster.textproto")),
              Path(mode));
    EXPECT_GT(ReadJson(Summary(mode))["oversized"], 0);
    EXPECT_EQ(ReadJson(Summary(again))["oversized"], 0);
    EXPECT_NE(Sha(mode), "");
    EXPECT_EQ(Sha(again), Sha(mode));
  }
}

TEST_F(Replay, OfARunWithCompressedGradientsIsThatRunToTheBit) {
  uint64_t whole = 0;  // Bytes, of a run without compression.
  for (const char* const method :
       {"none", "bfloat16", "float16", "int8", "sign", "top_k", "random_k"}) {
    SCOPED_TRACE(method);
    const std::string ratio =
        absl::StrContains(method, "_k") ? "ratio: 0.1" : "";
    const std::string job =
        Write(absl::StrCat(method, ".textproto"),
              absl::StrCat(SmallJob(), "sync { asp {} compression { ", method,
                           " { ", ratio, " } min_elements: 1 } }"));
    Run(method, job, {"--set=train.trace=true", "--set=train.epochs=1"});
    const std::string again = absl::StrCat(method, "-again");
    RunReplay(again, Path(absl::StrCat(method, "/cluster.textproto")),
              Path(method));
    EXPECT_NE(Sha(method), "");
    EXPECT_EQ(Sha(again), Sha(method));
    const auto pushed =
        ReadJson(Summary(method))["bytes_pushed"].get<uint64_t>();
    if (whole == 0) {
      whole = pushed;
    } else {
      EXPECT_LT(pushed, whole * 0.6);
    }
    EXPECT_EQ(absl::StrContains(
                  ReadText(Path(absl::StrCat(method, "/logs/worker-0.log"))),
                  "a step over servers pushes "),
              std::string(method) != "none");
  }
}

TEST_F(Replay, OfARunWithRoundedParametersIsThatRunToTheBit) {
  uint64_t whole = 0;  // Bytes, of a run without rounding.
  for (const char* const parameters : {"FLOAT32", "BFLOAT16", "FLOAT16"}) {
    SCOPED_TRACE(parameters);
    const std::string job = Write(
        absl::StrCat(parameters, ".textproto"),
        absl::StrCat(SmallJob({.train = "epochs: 1 seed: 1 "
                                        "eval_every_epochs: 0.25"}),
                     "sync { asp {} compression { parameters: ", parameters,
                     " min_elements: 1 } }"));
    Run(parameters, job, {"--set=train.trace=true"});
    const std::string again = absl::StrCat(parameters, "-again");
    RunReplay(again, Path(absl::StrCat(parameters, "/cluster.textproto")),
              Path(parameters));
    EXPECT_NE(Sha(parameters), "");
    EXPECT_EQ(Sha(again), Sha(parameters));
    const auto pulled =
        ReadJson(Summary(parameters))["bytes_pulled"].get<uint64_t>();
    if (whole == 0) {
      whole = pulled;
    } else {
      EXPECT_NE(Sha(parameters), Sha("FLOAT32"));
      // All but the trained model.
      EXPECT_LT(pulled, whole * 0.55);
      EXPECT_GT(pulled, whole * 0.5);
    }
  }
}

TEST_F(Replay, OfDroppedGradientsIsRefusedWhereLaterOnesDependOnThem) {
  const std::string job = Write(
      "job.textproto",
      absl::StrCat(SmallJob(),
                   "sync { backup { workers: 1 } compression { top_k { ratio: "
                   "0.1 } min_elements: 1 } } "));
  Run("run", job,
      {"--set=train.trace=true", "--set=train.epochs=1",
       "--set=worker[0].slowdown=8"});
  if (ReadJson(Summary("run"))["dropped"] == 0)
    GTEST_SKIP() << "no gradient came too late";
  EXPECT_THAT(RunRefused("again", Path("run/cluster.textproto"), Path("run")),
              HasSubstr("the delays leave out step "));
}

TEST_F(Replay, OfTheSameDelaysWithAnotherOptimizerMeetsTheSameDelays) {
  const std::string job = Write("job.textproto", SmallJob());
  Run("run", job, {"--mode=asp", "--set=train.trace=true"});
  RunReplay("adam", Path("run/cluster.textproto"), Path("run"),
            {"--set=optimizer.adam.learning_rate=0.002"});
  const nlohmann::json run = ReadJson(Summary("run"));
  const nlohmann::json adam = ReadJson(Summary("adam"));
  ExpectSameStaleness(run, adam);
  EXPECT_NE(adam["model_sha256"], run["model_sha256"]);
  EXPECT_GT(adam["test_accuracy"], 0.7);
}

TEST_F(Replay, OfDelaysByNameGivesTheSameBitsTwice) {
  const std::string job = Write("job.textproto", SmallJob());
  // More workers than this machine has cores for.
  const std::vector<std::string> many = {
      "--set=worker[0].count=64", "--set=data.batch_size=2",
      "--set=optimizer.sgd.learning_rate=0.1"};
  for (const char* const name : {"first", "second"})
    RunReplay(name, job, "uniform:8", many);
  RunReplay("others", job, "geometric:8", many);
  EXPECT_NE(Sha("first"), "");
  EXPECT_EQ(Sha("first"), Sha("second"));
  EXPECT_NE(Sha("first"), Sha("others"));
  const nlohmann::json summary = ReadJson(Summary("first"));
  EXPECT_EQ(summary["workers"], 64);
  // Eight clocks and the other workers of its own.
  EXPECT_EQ(summary["missed_updates"]["max"], 8 * 64 + 63);
  EXPECT_GT(summary["test_accuracy"], 0.5);
}

TEST_F(Replay, TakesSeedAndEpochsAsRunDoes) {
  const std::unique_ptr<Process> replay = StartTool(
      "tool", {"replay", Write("job.textproto", SmallJob()),
               "--delays=uniform:2", "--seed=9", "--set=data.batch_size=40",
               "--epochs=2", absl::StrCat("--out=", Path("replay"))});
  EXPECT_EQ(replay->WaitText(kJobMax), kEndedWell) << replay->Output();
  const nlohmann::json summary = ReadJson(Summary("replay"));
  EXPECT_EQ(summary["seed"], 9);
  EXPECT_EQ(summary["steps"], 100);  // Of 8000 examples, two times.
}

TEST_F(Replay, OfNoDelaysIsBspButForRounding) {
  const std::string job = Write("job.textproto", SmallJob());
  const std::vector<std::string> sgd = {"--set=optimizer.sgd.learning_rate=0.1",
                                        "--set=train.max_steps=100"};
  Run("bsp", job, sgd);
  RunReplay("replay", job, "constant:0", sgd);
  const std::vector<Tensor> expected = ReadModel(Path("bsp"));
  const std::vector<Tensor> actual = ReadModel(Path("replay"));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(RelativeDifference(actual[i], expected[i]), 1e-5);
}

TEST_F(Replay, WhatDoesNotFitIsRefusedWithTheReason) {
  const std::string job = Write("job.textproto", SmallJob());
  Run("run", job,
      {"--mode=asp", "--set=train.trace=true", "--set=train.max_steps=5"});
  EXPECT_THAT(
      RunRefused("workers", job, Path("run"), {"--set=worker[0].count=3"}),
      HasSubstr("the delays are those of 4 workers, the config has 3"));
  EXPECT_THAT(
      RunRefused("shards", job, Path("run"), {"--set=limits.shard_kib=2"}),
      HasSubstr("shards, and the config's model has"));
  EXPECT_THAT(RunRefused("nothing", job, Path("nowhere")),
              HasSubstr("has no trace-server-0.jsonl"));
  EXPECT_THAT(RunRefused("name", job, "normal:3"),
              HasSubstr("constant:S, uniform:S"));
}

TEST_F(Replay, EndsWithAnInterrupt) {
  const std::string job = Write("job.textproto", SmallJob());
  const std::unique_ptr<Process> replay =
      StartReplay("replay", job, "constant:1", {"--set=train.epochs=1000"});
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    return replay->Output().find("data:") != std::string::npos;
  }));
  replay->Signal(SIGINT);
  EXPECT_EQ(replay->WaitText(kJobMax), kFailed);
  EXPECT_THAT(replay->Output(), HasSubstr("interrupted"));
}

}  // namespace slackline::replay_test
