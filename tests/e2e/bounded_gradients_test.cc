// Goal: a worker that pushes huge gradients cannot ruin the model of a job with
// train { gradient_bound }: SKIP goes on without them and counts them, STOP
// ends the job and says whose they were. Without a bound the same worker ruins
// it. Method: `slackline run` on a small job in which the gradients of one
// worker are ten thousand times too large in some steps (worker { conditions {
// scaled_at_step } }).
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::bounded_gradients_test {

using ::testing::ContainsRegex;

constexpr int kScaledSteps = 3;

// SmallJob(), with worker 3 as the one that is broken now and then.
std::string JobWithABrokenWorker() {
  return absl::StrReplaceAll(
      SmallJob(),
      {{"worker { host: \"127.0.0.1\" count: 4 }",
        "worker { host: \"127.0.0.1\" count: 3 }\n"
        "worker { host: \"127.0.0.1\" conditions { scaled_by: -10000 "
        "scaled_at_step: 40 scaled_at_step: 41 scaled_at_step: 120 } }"}});
}

const char kRunning[] = "--set=train.gradient_bound.times_running_rms=20";

class GradientBound : public JobTest {};

class GradientBoundInMode : public GradientBound,
                            public ::testing::WithParamInterface<const char*> {
};

INSTANTIATE_TEST_SUITE_P(Modes, GradientBoundInMode,
                         ::testing::Values("bsp", "ssp:2", "dssp:1:4", "asp",
                                           "backup:1"),
                         [](const auto& test) {
                           return std::string(test.param).substr(0, 3);
                         });

TEST_P(GradientBoundInMode, SkipGoesOnAndCounts) {
  Run("run", Write("job.textproto", JobWithABrokenWorker()),
      {absl::StrCat("--mode=", GetParam()), "--epochs=2", kRunning,
       "--set=train.gradient_bound.policy=SKIP"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], 200);
  EXPECT_GT(summary["test_accuracy"], 0.6);
  EXPECT_EQ(summary["nonfinite"], 0);
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(summary["worker"][rank]["oversized"], 0) << rank;
  const auto oversized = summary["oversized"].get<int64_t>();
  EXPECT_EQ(summary["worker"][3]["oversized"], oversized);
  if (std::string(GetParam()) == "backup:1") return;  // It leaves steps out.
  // Each step, of all shards.
  EXPECT_GT(oversized, 0);
  EXPECT_EQ(oversized % kScaledSteps, 0);
  EXPECT_EQ(summary["pushes"].get<int64_t>(),
            summary["applied"].get<int64_t>() + oversized);
}

TEST_F(GradientBound, WithoutOneTheModelIsRuinedAndWithOneItIsNot) {
  const auto loss = [&](const char* name, const std::string& text,
                        const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--mode=bsp", "--epochs=2",
                                          "--set=train.nonfinite=SKIP"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Run(name, Write(absl::StrCat(name, ".textproto"), text), arguments);
    const nlohmann::json summary =
        ReadJson(Path(absl::StrCat(name, "/summary.json")));
    // No number: not finite.
    return summary["test_loss"].is_number() ? summary["test_loss"].get<double>()
                                            : HUGE_VAL;
  };
  const double undisturbed = loss("undisturbed", SmallJob(), {});
  const double ruined = loss("ruined", JobWithABrokenWorker(), {});
  const double bounded =
      loss("bounded", JobWithABrokenWorker(),
           {kRunning, "--set=train.gradient_bound.policy=SKIP"});
  EXPECT_GT(ruined, 3 * undisturbed);
  EXPECT_LT(bounded, 1.1 * undisturbed);
}

TEST_F(GradientBound, StopEndsTheJobAndNamesWorkerSizeBoundTableAndClock) {
  for (const char* const mode : {"bsp", "asp"}) {
    const std::unique_ptr<Process> run =
        StartRun(mode, Write("job.textproto", JobWithABrokenWorker()),
                 {absl::StrCat("--mode=", mode), "--epochs=1000", kRunning});
    EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
    EXPECT_THAT(
        run->Output(),
        ContainsRegex(
            "worker 3 has pushed a gradient whose root mean square "
            "is [0-9.e+]+, above train.gradient_bound."
            "times_running_rms \\(20\\) times [0-9.e-]+, that of the "
            "shard's gradients before it, for .*\\[[0-9]+, .*\\) at clock "
            "4[01]; it is not in the model"));
    const nlohmann::json summary =
        ReadJson(Path(std::string(mode) + "/summary.json"));
    EXPECT_EQ(summary["state"], "FAILED");
    EXPECT_EQ(summary["cause"], "DIVERGED");
    EXPECT_EQ(summary["about"], nlohmann::json({"worker 3"}));
    EXPECT_GE(summary["diverged_at_step"], 40);
    EXPECT_LE(summary["diverged_at_step"], 41);
  }
}

}  // namespace slackline::bounded_gradients_test
