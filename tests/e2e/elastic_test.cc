// Goal: with elastic sampling every example of each epoch is trained on, in all
// modes, while workers are slow, die and come.
// Method: jobs of `slackline run`; what is done is counted by the coordinator,
// and by the workers themselves. Which examples they were: python/tests.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::elastic_test {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kExamples = 8000;

int64_t ExamplesOfWorkers(const nlohmann::json& summary) {
  int64_t examples = 0;
  for (const nlohmann::json& worker : summary["worker"])
    examples += worker["examples"].get<int64_t>();
  return examples;
}

class ElasticModes : public JobTest,
                     public testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Modes, ElasticModes,
                         testing::Values("bsp", "ssp:3", "asp", "allreduce"),
                         [](const auto& test) {
                           return test.param.substr(0, 3);
                         });

TEST_P(ElasticModes, EveryExampleIsTrainedOnThoughNoStepIsLeftOver) {
  // 8000 examples are not whole steps of 4 workers with 30 each.
  Run("run", Write("job.textproto", SmallJob()),
      {absl::StrCat("--mode=", GetParam()), "--epochs=2",
       "--set=data.sampling=ELASTIC", "--set=data.batch_size=30"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["examples_done"], 2 * kExamples);
  EXPECT_EQ(summary["examples_given_again"], 0);
  EXPECT_EQ(ExamplesOfWorkers(summary), 2 * kExamples);
  EXPECT_GT(summary["test_accuracy"], 0.6);
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))), summary["model_sha256"]);
}

class Elastic : public JobTest {};

// Four workers: one is five times slower, one is killed, and one comes.
TEST_F(Elastic, WhatALostWorkerHadGoesToOthersAndTheFastDoMore) {
  std::string job = SmallJob();
  const std::string workers = "worker { host: \"127.0.0.1\" count: 4 }";
  job.replace(job.find(workers), workers.size(),
              "worker { host: \"127.0.0.1\" count: 3 }\n"
              "worker { host: \"127.0.0.1\" slowdown: 5 }");
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", job),
               {"--mode=asp", "--epochs=40", "--set=data.sampling=ELASTIC",
                "--set=limits.lease_ms=2000"});
  const std::string resolved = Path("run/cluster.textproto");
  const auto status = AwaitProgress(resolved);
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(WorkerPid(*status, 1), SIGKILL);
  const std::unique_ptr<Process> again =
      StartMember("again", "slackline_worker", 1, resolved, "run");
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();
  ExpectNoProcessLeft();

  EXPECT_THAT(again->Output(), HasSubstr("joining the running job"));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_EQ(summary["examples_done"], 40 * kExamples);
  // The dead one was at a step, and the gradients of the one before may have
  // been on their way.
  EXPECT_GT(summary["examples_given_again"], 0);
  EXPECT_LE(summary["examples_given_again"], 3 * 20);
  const auto examples = [&](int rank) {
    return summary["worker"][static_cast<size_t>(rank)]["examples"]
        .get<int64_t>();
  };
  // How many more depends on what else a step takes. Worker 0 evaluates, too.
  EXPECT_GT(examples(2), examples(3)) << "it is five times slower";
}

TEST_F(Elastic, AGroupThatLosesARankHasItsExamplesDoneByTheOthers) {
  const std::unique_ptr<Process> run =
      StartRun("run", Write("job.textproto", SmallJob()),
               {"--mode=allreduce", "--epochs=20",
                "--set=data.sampling=ELASTIC", "--set=limits.lease_ms=2000"});
  const auto status = AwaitProgress(Path("run/cluster.textproto"));
  ASSERT_TRUE(status.has_value()) << run->Output();
  SignalProcess(WorkerPid(*status, 2), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_THAT(summary["workers_lost"], SizeIs(1));
  EXPECT_EQ(summary["examples_done"], 20 * kExamples);
  EXPECT_GT(summary["examples_given_again"], 0);
  EXPECT_LE(summary["examples_given_again"], 3 * 20);
  // Three workers have more steps to do than four would have had.
  EXPECT_GT(summary["steps"], 20 * 100);
}

TEST_F(Elastic, AChangeOfTheModeKeepsTheCount) {
  const std::string phases =
      "sync { phase { until_epoch: 1 allreduce {} } phase { ssp { staleness: 2 "
      "} } }\n";
  Run("run", Write("job.textproto", SmallJob() + phases),
      {"--epochs=3", "--set=data.sampling=ELASTIC"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["mode_changes"], 1);
  EXPECT_EQ(summary["examples_done"], 3 * kExamples);
  EXPECT_EQ(ExamplesOfWorkers(summary), 3 * kExamples);
}

}  // namespace slackline::elastic_test
