// Goal: the examples learn what is known to be learnable from real data.
// Method: `slackline run` on the example configs. MNIST is held against an
// accuracy that one epoch of a two-layer net reaches. Logistic regression on
// a9a is convex, so each mode is held against the one optimum, which an
// independent solver (a9a_optimum.py) computes from the same files. Skipped
// without the data: configure with SLACKLINE_TEST_DATA_DIR, or use
// tools/test.sh --data-dir DIR.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::real_data_test {

using ::testing::HasSubstr;

constexpr char kDataDir[] = SLACKLINE_TEST_DATA_DIR;
constexpr char kPython[] = SLACKLINE_TEST_PYTHON;
constexpr char kSourceDir[] = SLACKLINE_SOURCE_DIR;
// Python starts slowly on a busy machine.
constexpr absl::Duration kSolverMax = absl::Seconds(120);

std::string Example(const std::string& name) {
  return absl::StrCat(kSourceDir, "/examples/", name);
}

// The arguments of the first command of a page that begins so, the example's
// file first.
std::vector<std::string> CommandOf(const std::string& page,
                                   const std::string& begin) {
  const std::string text = ReadText(absl::StrCat(kSourceDir, "/", page));
  const size_t at = text.find(begin);
  if (at == std::string::npos) {
    ADD_FAILURE() << page << " has no command '" << begin << "'";
    return {};
  }
  const size_t from = at + begin.size();
  const std::string line = text.substr(from, text.find('\n', from) - from);
  std::vector<std::string> words = absl::StrSplit(
      line.substr(0, line.find('#')), ' ', absl::SkipWhitespace());
  words.front() = absl::StrCat(kSourceDir, "/", words.front());
  return words;
}

class RealData : public JobTest {
 protected:
  void SetUp() override {
    if (kDataDir[0] == '\0') {
      GTEST_SKIP() << "no real data: run tools/test.sh --data-dir DIR, with "
                      "mnist/ and a9a/ in DIR";
    }
  }

  nlohmann::json Train(const std::string& name, const std::string& config,
                       std::vector<std::string> arguments) {
    arguments.push_back(absl::StrCat("--data-dir=", kDataDir));
    Run(name, config, arguments);
    return ReadJson(Path(name) + "/summary.json");
  }
};

TEST_F(RealData, OneEpochOfTheMnistExampleReaches96Percent) {
  const nlohmann::json summary = Train("mnist", Example("mnist_mlp.textproto"),
                                       {"--mode=bsp", "--epochs=1"});
  EXPECT_GE(summary["test_accuracy"], 0.96);
  EXPECT_EQ(summary["steps"], 60000 / 256);
}

// Of docs/manual/sampling.md, as it stands there.
TEST_F(RealData, TheCommandOfThePageOnSamplingTrainsOnEveryExample) {
  std::vector<std::string> words =
      CommandOf("docs/manual/sampling.md", "build/release/bin/slackline run ");
  ASSERT_FALSE(words.empty());
  const std::string example = words.front();
  words.erase(words.begin());
  const nlohmann::json summary = Train("elastic", example, words);
  EXPECT_EQ(summary["examples_done"], 2 * 60000);
  EXPECT_EQ(summary["examples_given_again"], 0);
  EXPECT_GE(summary["test_accuracy"], 0.95);
}

// Of README, as they stand there: the delays must be short enough for the rate
// of the example.
TEST_F(RealData, TheCommandsOfReadmeWithGivenDelaysLearnTheSame) {
  std::vector<std::string> replay = CommandOf("README.md", "slackline replay ");
  ASSERT_EQ(replay.size(), 3);  // CONFIG --delays DELAYS
  const std::string text = ReadText(absl::StrCat(kSourceDir, "/README.md"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat(
                        "slackline run examples/mnist_mlp.textproto --delays ",
                        replay.back(), " ")));
  const nlohmann::json job =
      Train("job", replay.front(), {replay[1], replay[2]});
  replay.insert(replay.begin(), "replay");
  replay.insert(replay.end(), {absl::StrCat("--data-dir=", kDataDir),
                               absl::StrCat("--out=", Path("replay"))});
  const std::unique_ptr<Process> alone = StartTool("alone", replay);
  EXPECT_EQ(alone->WaitText(kJobMax), kEndedWell) << alone->Output();
  const nlohmann::json summary = ReadJson(Path("replay/summary.json"));
  ASSERT_NE(job["model_sha256"], "");
  EXPECT_EQ(summary["model_sha256"], job["model_sha256"]);
  EXPECT_GE(summary["test_accuracy"], 0.97);
}

TEST_F(RealData, ChangingThroughAllModesCostsHardlyAnyAccuracyOnMnist) {
  const std::string example = Example("mnist_mlp.textproto");
  const auto config = LoadJobConfig(example, {.mode = "bsp", .sets = {}});
  ASSERT_TRUE(config.ok()) << config.status();
  config::ClusterConfig changing = *config;
  changing.mutable_sync()->clear_bsp();
  const auto add = [&](double until_epoch) {
    config::Phase& phase = *changing.mutable_sync()->add_phase();
    if (until_epoch > 0) phase.set_until_epoch(until_epoch);
    return &phase;
  };
  add(1)->mutable_bsp();
  add(2)->mutable_ssp()->set_staleness(3);
  add(3)->mutable_allreduce();
  add(4)->mutable_asp();
  add(0)->mutable_bsp();
  const std::string phases = Write("changing.textproto", ToText(changing));
  // Means over three seeds. What stale gradients cost depends on how busy the
  // machine is, so a job that goes through all modes is held against the same
  // job in the most and in the least synchronous of them.
  constexpr double kSeeds = 3;
  double bsp = 0, asp = 0, changed = 0;
  for (const std::string seed : {"1", "2", "3"}) {
    const auto train = [&](const std::string& name, const std::string& file,
                           std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--epochs=5", "--seed=" + seed});
      return Train(name + seed, file, arguments);
    };
    const auto accuracy = [](const nlohmann::json& summary) {
      return summary["test_accuracy"].get<double>() / kSeeds;
    };
    bsp += accuracy(train("bsp", example, {"--mode=bsp"}));
    asp += accuracy(train("asp", example, {"--mode=asp"}));
    const nlohmann::json summary = train("changing", phases, {});
    EXPECT_EQ(summary["mode_changes"], 4);
    changed += accuracy(summary);
  }
  std::printf("BSP %.4f, ASP %.4f, through all modes %.4f\n", bsp, asp,
              changed);
  EXPECT_GE(bsp, 0.98);
  EXPECT_GE(asp, 0.97);
  EXPECT_GE(changed, std::min(bsp, asp) - 0.003);
  EXPECT_LE(changed, std::max(bsp, asp) + 0.003);
}

TEST_F(RealData, EveryModeComesNearTheOptimumOfA9a) {
  if (kPython[0] == '\0') {
    GTEST_SKIP() << "no python3 with numpy and scipy, which compute the "
                    "optimum: apt-get install python3-scipy";
  }
  const std::string example = Example("a9a_logistic.textproto");
  const auto config = LoadJobConfig(example);
  ASSERT_TRUE(config.ok()) << config.status();
  Process solver(
      {kPython, absl::StrCat(kSourceDir, "/tests/e2e/a9a_optimum.py"), kDataDir,
       absl::StrCat(config->model().logistic().l2())},
      Path("solver.log"));
  ASSERT_EQ(solver.WaitText(kSolverMax), kEndedWell) << solver.Output();
  const double optimum = ReadJson(Path("solver.log"))["train_loss"];

  struct ModeCase {
    std::string mode;
    double excess_max;  // Of the loss, relative to the optimum.
  };
  for (const ModeCase& test :
       {ModeCase{"bsp", 1e-3}, ModeCase{"allreduce", 1e-3},
        ModeCase{"ssp:3", 1e-2}, ModeCase{"asp", 1e-2}}) {
    const nlohmann::json summary =
        Train(absl::StrCat("a9a-", test.mode), example,
              {absl::StrCat("--mode=", test.mode)});
    const double excess = summary["train_loss"].get<double>() / optimum - 1;
    std::printf("%s: loss %.3g above the optimum %.6f, accuracy %.4f\n",
                test.mode.c_str(), excess, optimum,
                summary["test_accuracy"].get<double>());
    EXPECT_LE(excess, test.excess_max) << test.mode;
    // Float sums aside, nothing is below an optimum.
    EXPECT_GE(excess, -1e-6) << test.mode;
    EXPECT_GE(summary["test_accuracy"], 0.848) << test.mode;
  }
}

}  // namespace slackline::real_data_test
