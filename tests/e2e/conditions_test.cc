// Goal: workers and links are as slow as the config says, in real processes,
// and jobs end well all the same: by their steps, or by a stop rule in the
// midst of a pause.
// Method: `slackline run` on a small job whose last worker has conditions; the
// figures of each worker in its summary.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::conditions_test {

using ::testing::HasSubstr;
using ::testing::Not;

// SmallJob() with 3 even workers and one of these conditions.
std::string JobWith(const std::string& conditions) {
  return absl::StrReplaceAll(
      SmallJob(), {{"worker { host: \"127.0.0.1\" count: 4 }",
                    absl::StrCat("worker { host: \"127.0.0.1\" count: 3 }\n"
                                 "worker { host: \"127.0.0.1\" conditions { ",
                                 conditions, " } }")}});
}

class ConditionsInMode : public JobTest,
                         public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Modes, ConditionsInMode,
                         ::testing::Values("bsp", "ssp:2", "allreduce"),
                         [](const auto& test) {
                           return std::string(test.param).substr(0, 3);
                         });

TEST_P(ConditionsInMode, TheSlowWorkerTakesItsTimeAndTheJobEndsWell) {
  Run("run",
      Write("job.textproto",
            JobWith("step_ms: 4 "
                    "random { distribution: UNIFORM mean: 0.5 } "
                    "pause { step: 30 ms: 300 } pause { step: 31 ms: 200 } "
                    "link { latency_ms: 1 bandwidth_mbit: 100 }")),
      {absl::StrCat("--mode=", GetParam()), "--epochs=1"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], 100);
  EXPECT_GT(summary["test_accuracy"], 0.4);
  // 100 steps of at least 4 ms, and the pauses.
  EXPECT_GE(summary["worker"][3]["compute_seconds"], 0.9);
  for (const int rank : {0, 1, 2}) {
    EXPECT_LT(summary["worker"][rank]["compute_seconds"],
              summary["worker"][3]["compute_seconds"]);
  }
  // Over servers: a pull and its answer per step have 2 ms of latency, which
  // the slow worker waits for. In a ring of four, all wait for six.
  const bool ring = std::string(GetParam()) == "allreduce";
  EXPECT_GE(summary["worker"][3]["wait_seconds"], ring ? 0.3 : 0.18);
  EXPECT_EQ(summary["workers_lost"].size(), 0u);
  if (std::string(GetParam()) != "bsp") return;
  // What the link takes is no waiting for others; who waits for it does wait.
  const auto phase = [&](int rank, const char* name) {
    return summary["worker"][rank]["phase_seconds"][name].get<double>();
  };
  EXPECT_GE(phase(3, "pushing") + phase(3, "pulling"), 0.18);
  EXPECT_LT(phase(3, "waiting"), phase(0, "waiting") / 2);
  EXPECT_GE(phase(0, "waiting"), 0.9);
}

class Conditions : public JobTest {};

TEST_F(Conditions, ASlowLinkIsNoReasonToSendAgain) {
  // The round trip is longer than a client without a link would wait.
  Run("run", Write("job.textproto", JobWith("link { latency_ms: 200 }")),
      {"--mode=asp", "--epochs=1", "--set=train.max_steps=6"});
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["steps"], 6);
  // Else each of its 24 messages or more would go twice.
  EXPECT_LT(summary["retries"], 12);
  EXPECT_GE(summary["worker"][3]["wait_seconds"], 5 * 0.4);
}

TEST_F(Conditions, AStoppedJobDoesNotWaitForAPause) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Write("job.textproto", JobWith("pause { step: 0 ms: 100000 }")),
      {"--mode=asp", "--epochs=1000000", "--set=train.eval_every_epochs=0.5",
       "--set=train.stop.test_accuracy=0.7",
       "--set=limits.stall_timeout_ms=110000"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), Not(HasSubstr("SIGTERM")));
  const nlohmann::json summary = ReadJson(Path("run/summary.json"));
  EXPECT_EQ(summary["worker"][3]["steps"], 0);
  EXPECT_GT(summary["steps"], 0);
}

}  // namespace slackline::conditions_test
