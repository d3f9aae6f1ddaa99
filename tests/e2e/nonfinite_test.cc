// Goal: a gradient with a NaN never gets into the model of a job; SKIP goes on
// without it and counts it, STOP ends the job and says whose it was.
// Method: `slackline run` on a small job in which one worker's gradients of
// some steps have a NaN (worker { conditions { nonfinite_at_step } }).
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::nonfinite_test {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// SmallJob(), with worker 3 as the one with the NaNs, one step apart and the
// first step among them.
std::string JobWithNans() {
  return absl::StrReplaceAll(
      SmallJob(),
      {{"worker { host: \"127.0.0.1\" count: 4 }",
        "worker { host: \"127.0.0.1\" count: 3 }\n"
        "worker { host: \"127.0.0.1\" conditions { nonfinite_at_step: 0 "
        "nonfinite_at_step: 7 nonfinite_at_step: 40 } }"}});
}

class NonfiniteInMode : public JobTest,
                        public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Modes, NonfiniteInMode,
                         ::testing::Values("bsp", "ssp:2", "dssp:1:4", "asp",
                                           "allreduce"),
                         [](const auto& test) {
                           return std::string(test.param).substr(0, 3);
                         });

TEST_P(NonfiniteInMode, SkipGoesOnAndCounts) {
  Run("run", Write("job.textproto", JobWithNans()),
      {absl::StrCat("--mode=", GetParam()), "--epochs=2",
       "--set=train.nonfinite=SKIP"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], 200);
  EXPECT_GT(summary["test_accuracy"], 0.6);
  ASSERT_TRUE(summary["test_loss"].is_number()) << "the model is finite";
  ASSERT_TRUE(summary["train_loss"].is_number());
  // One float, so one shard, of each step.
  EXPECT_EQ(summary["nonfinite"], 3);
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(summary["worker"][rank]["nonfinite"], 0);
  EXPECT_EQ(summary["worker"][3]["nonfinite"], 3);
  EXPECT_EQ(summary["workers_lost"].size(), 0u);
  if (std::string(GetParam()) == "allreduce") {
    EXPECT_EQ(summary["pushes"], 0);
    return;
  }
  EXPECT_EQ(summary["pushes"].get<int64_t>(),
            summary["applied"].get<int64_t>() + 3);
}

void ExpectDiverged(const std::string& folder, int64_t step_max) {
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["state"], "FAILED");
  EXPECT_EQ(summary["cause"], "DIVERGED");
  EXPECT_EQ(summary["about"], nlohmann::json({"worker 3"}));
  EXPECT_LE(summary["diverged_at_step"], step_max);
}

class Nonfinite : public JobTest {};

TEST_F(Nonfinite, StopEndsAJobByAllReduceAndNamesTheWorker) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", JobWithNans()),
               {"--mode=allreduce", "--epochs=2"});
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  EXPECT_THAT(run->Output(),
              HasSubstr("all-reduce at step 0: a NaN or an infinity is in the "
                        "gradient of worker 3"));
  ExpectDiverged(Path("run"), 0);
}

TEST_F(Nonfinite, StopEndsAJobOverServersAndNamesWorkerTableAndClock) {
  for (const char* const mode : {"bsp", "ssp:2", "asp"}) {
    const std::string name = std::string(mode).substr(0, 3);
    const std::unique_ptr<Process> run =
        StartRun(name, Write("job.textproto", JobWithNans()),
                 {absl::StrCat("--mode=", mode), "--epochs=1000"});
    EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
    EXPECT_THAT(run->Output(),
                ContainsRegex("worker 3 has pushed a gradient with a NaN or an "
                              "infinity for .*\\[0, .*\\) at clock "));
    ExpectDiverged(Path(name), 40);
  }
}

}  // namespace slackline::nonfinite_test
