// Goal: a stop rule ends a job as finished, in every kind of mode, from
// wherever its workers are: all exit with code 0 and say nothing of errors, and
// what is kept is of the evaluation that met the rule.
// Method: real processes; jobs that would go on for hours.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::stop_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class StopRule : public JobTest,
                 public ::testing::WithParamInterface<const char*> {
 protected:
  // The summary of a run of SmallJob() that never ends by itself.
  nlohmann::json RunUntil(const std::string& rule) {
    const std::unique_ptr<Process> run =
        StartRun("run", Write("job.textproto", SmallJob()),
                 {absl::StrCat("--mode=", GetParam()), "--epochs=1000000",
                  "--set=train.eval_every_epochs=0.5",
                  absl::StrCat("--set=train.stop.", rule)});
    EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
    EXPECT_THAT(run->Output(), HasSubstr("stopped small "));
    ExpectNoProcessLeft();
    for (int i = 0; i < 4; ++i) {
      EXPECT_THAT(ReadText(Path(absl::StrCat("run/logs/worker-", i, ".log"))),
                  AllOf(HasSubstr("done"), HasSubstr("the job has finished"),
                        Not(HasSubstr(" warning: ")), Not(HasSubstr("error"))));
    }
    return ReadJson(Path("run/summary.json"));
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, StopRule,
                         ::testing::Values("bsp", "asp", "allreduce"),
                         [](const auto& test) { return test.param; });

TEST_P(StopRule, AnAccuracyEndsTheJobAndItsModelIsKept) {
  const nlohmann::json summary = RunUntil("test_accuracy=0.75");
  EXPECT_THAT(
      summary["stopped"].get<std::string>(),
      AllOf(StartsWith("test accuracy "), HasSubstr("reached 0.75 at")));
  EXPECT_GE(summary["test_accuracy"], 0.75);
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))), summary["model_sha256"]);
  bool found = false;
  for (const nlohmann::json& record :
       ReadJsonLines(Path("run/metrics.jsonl"))) {
    if (record["kind"] != "eval" || record["step"] != summary["steps"])
      continue;
    found = true;
    EXPECT_EQ(record["accuracy"], summary["test_accuracy"]);
    EXPECT_EQ(record["seconds"], summary["wall_seconds"]);
  }
  EXPECT_TRUE(found) << summary;
}

TEST_P(StopRule, TheTimeEndsTheJobAndNoModelIsKept) {
  const nlohmann::json summary = RunUntil("wall_seconds=1.5");
  EXPECT_THAT(summary["stopped"].get<std::string>(),
              StartsWith("train.stop.wall_seconds 1.5 had passed"));
  EXPECT_GE(summary["wall_seconds"], 1.5);
  EXPECT_EQ(summary["model_sha256"], "");
  EXPECT_FALSE(std::filesystem::exists(Path("run/model.safetensors")));
}

}  // namespace slackline::stop_test
