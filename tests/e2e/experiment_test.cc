// Goal: a grid of runs comes to its end over interruptions, makes each run
// once, and starts none when one variant is wrong; so do the tries before it,
// and their best values are those of the runs. Method: `slackline compare`
// and `ablate` on small jobs, with SIGINT in the midst; the folder of the
// experiment says what was made.
#include <signal.h>

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::experiment_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kWrongUsage[] = "exited with code 2";
constexpr char kGrid[] = R"(
name: "grid"
base: "job.textproto"
set: "train.epochs=1"
variant { mode: "bsp" }
variant { mode: "ssp:2" }
seed: 1
seed: 2
)";

class Experiments : public JobTest {
 protected:
  Experiments() { Write("job.textproto", SmallJob()); }

  std::unique_ptr<Process> Start(
      const std::string& name, const std::string& file,
      const std::vector<std::string>& arguments = {}) {
    std::vector<std::string> all = {"compare", file, "--no-report",
                                    absl::StrCat("--out=", Path("out"))};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return StartTool(name, all);
  }
  // States by "VARIANT/SEED", as experiment.json says.
  std::map<std::string, std::string> States() const {
    std::map<std::string, std::string> states;
    const nlohmann::json experiment = ReadJson(Path("out/experiment.json"));
    for (const nlohmann::json& run :
         experiment.value("runs", nlohmann::json())) {
      states[absl::StrCat(run.value("variant", ""), "/",
                          run.value("seed", -1))] = run.value("state", "");
    }
    return states;
  }
  // Of the finished runs: when each was started, by its folder.
  std::map<std::string, std::string> Started() const {
    std::map<std::string, std::string> started;
    if (!fs::exists(Path("out/runs"))) return started;
    for (const auto& entry : fs::directory_iterator(Path("out/runs"))) {
      const std::string file = entry.path().string() + "/run.json";
      if (!fs::exists(file)) continue;
      started[entry.path().filename().string()] =
          ReadJson(file).value("started", "");
    }
    return started;
  }
};

TEST_F(Experiments, MakeEveryRunOnceAndKeepItWhenCalledAgain) {
  const std::string file = Write("grid.textproto", kGrid);
  const auto first = Start("first", file);
  EXPECT_EQ(first->WaitText(kJobMax), kEndedWell) << first->Output();
  EXPECT_THAT(States(), ElementsAre(testing::Pair("bsp/1", "finished"),
                                    testing::Pair("bsp/2", "finished"),
                                    testing::Pair("ssp-2/1", "finished"),
                                    testing::Pair("ssp-2/2", "finished")));
  EXPECT_THAT(first->Output(), HasSubstr("4 of 4 runs done"));
  const auto started = Started();
  ASSERT_THAT(started, SizeIs(4));
  for (const auto& [run, time] : started) {
    const nlohmann::json summary =
        ReadJson(Path(absl::StrCat("out/runs/", run, "/summary.json")));
    EXPECT_EQ(summary.value("steps", 0), 100) << run;
  }

  const auto again = Start("again", file);
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();
  EXPECT_THAT(again->Output(), HasSubstr("4 of 4 runs are done already"));
  EXPECT_EQ(Started(), started);

  // Another setting is another run; the old ones stay.
  const auto other = Start("other", file, {"--seeds=2-3", "--only=bsp"});
  EXPECT_EQ(other->WaitText(kJobMax), kEndedWell) << other->Output();
  EXPECT_THAT(other->Output(), HasSubstr("2 folders in"));
  EXPECT_THAT(Started(), SizeIs(5));
  EXPECT_EQ(States()["ssp-2/3"], "to do");
}

TEST_F(Experiments, GoOnAfterAnInterruptWhereTheyWere) {
  // One variant is soon done, the other one would take very long.
  const std::string text = R"(
name: "grid"
base: "job.textproto"
variant { name: "short" set: "train.epochs=1" }
variant { name: "long" set: "train.epochs=1000" }
seed: 1
)";
  const std::string file = Write("grid.textproto", text);
  const auto first = Start("first", file);
  std::string long_run;
  ASSERT_TRUE(WaitUntil(kJobMax, [&] {
    if (!fs::exists(Path("out/runs"))) return false;
    for (const auto& entry : fs::directory_iterator(Path("out/runs"))) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("long", 0) == 0) long_run = name;
    }
    return !long_run.empty();
  })) << first->Output();
  ASSERT_TRUE(AwaitProgress(Path(absl::StrCat("out/runs/", long_run,
                                              "/cluster.textproto")))
                  .has_value())
      << first->Output();

  const auto second = Start("second", file);
  EXPECT_EQ(second->WaitText(kJobMax), kFailed);
  EXPECT_THAT(second->Output(), HasSubstr("another slackline is at work in"));

  first->Signal(SIGINT);
  EXPECT_EQ(first->WaitText(kJobMax), kFailed) << first->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(
      first->Output(),
      AllOf(HasSubstr("1 of 2 runs are finished, and slackline compare"),
            HasSubstr("goes on from here")));
  const auto started = Started();
  EXPECT_THAT(started, SizeIs(1));
  EXPECT_EQ(States()["long/1"], "to do");

  const auto look = Start("look", file, {"--dry-run"});
  EXPECT_EQ(look->WaitText(kJobMax), kEndedWell) << look->Output();
  EXPECT_THAT(look->Output(),
              AllOf(HasSubstr("done in"), HasSubstr("cut off, to do again"),
                    HasSubstr("1 of 2 runs to do")));
  EXPECT_TRUE(fs::exists(Path(absl::StrCat("out/runs/", long_run))));

  // What was cut off is made from the start; what was done is kept. The file is
  // taken away so that the new one is waited for.
  fs::remove(Path(absl::StrCat("out/runs/", long_run, "/cluster.textproto")));
  const auto rest = Start("rest", file, {"--only=long"});
  ASSERT_TRUE(AwaitProgress(Path(absl::StrCat("out/runs/", long_run,
                                              "/cluster.textproto")))
                  .has_value())
      << rest->Output();
  rest->Signal(SIGINT);
  EXPECT_EQ(rest->WaitText(kJobMax), kFailed) << rest->Output();
  EXPECT_EQ(Started(), started);
}

TEST_F(Experiments, AWrongVariantIsRefusedBeforeAnythingRuns) {
  const std::string file =
      Write("grid.textproto",
            absl::StrCat(
                kGrid, "variant { name: \"typo\" set: \"train.epohcs=2\" }\n",
                "variant { name: \"range\" set: \"data.batch_size=0\" }\n"));
  const auto compare = Start("compare", file);
  EXPECT_EQ(compare->WaitText(kJobMax), kWrongUsage);
  EXPECT_THAT(compare->Output(),
              AllOf(HasSubstr("grid.textproto:9:1: variant 'typo': "),
                    HasSubstr("grid.textproto:10:1: variant 'range': "),
                    HasSubstr("data.batch_size")));
  EXPECT_FALSE(fs::exists(Path("out")));
}

// The folder of the first try does not stand in the way of the next.
TEST_F(Experiments, AMissingProgramIsNamedAndTheSameCommandGoesOn) {
  const std::string file = Write("grid.textproto", kGrid);
  const auto first = Start("first", file, {"--bin-dir", Path("nowhere")});
  EXPECT_NE(first->WaitText(kJobMax), kEndedWell);
  EXPECT_THAT(first->Output(), HasSubstr("nowhere/slackline_server"));
  EXPECT_TRUE(Started().empty());
  const auto second = Start("second", file, {"--seeds=1"});
  EXPECT_EQ(second->WaitText(kJobMax), kEndedWell) << second->Output();
  EXPECT_THAT(second->Output(), HasSubstr("2 of 2 runs done"));
}

TEST_F(Experiments, ARunThatFailsIsKeptAsFailedAndTheOthersGoOn) {
  const std::string file = Write("grid.textproto", R"(
name: "grid"
base: "job.textproto"
set: "train.epochs=1"
variant { name: "wild" mode: "asp" set: "optimizer.momentum.learning_rate=1e9" }
variant { name: "tame" }
seed: 1
)");
  const auto first = Start("first", file);
  EXPECT_EQ(first->WaitText(kJobMax), kFailed) << first->Output();
  EXPECT_THAT(States(), ElementsAre(testing::Pair("tame/1", "finished"),
                                    testing::Pair("wild/1", "failed")));
  // A worker sees its loss, or a shard its gradient: whichever is first.
  EXPECT_THAT(first->Output(),
              AnyOf(HasSubstr("diverged"),
                    HasSubstr("has pushed a gradient with a NaN")));
  EXPECT_THAT(first->Output(), HasSubstr("1 of 2 runs have failed"));
  const auto started = Started();
  EXPECT_THAT(started, SizeIs(2));
  const auto again = Start("again", file);
  EXPECT_EQ(again->WaitText(kJobMax), kFailed) << again->Output();
  EXPECT_EQ(Started(), started);
}

// Replays of one delay, so that equal tries have equal results.
constexpr char kTuned[] = R"(
name: "tuned"
base: "job.textproto"
set: "train.epochs=2"
variant { name: "some" replay: "uniform:2" }
seed: 1
seed: 2
tune {
  over { field: "rate_factor" value: "0.0001" value: "1" value: "1e30" }
  set: "train.epochs=1"
}
)";

TEST_F(Experiments, TheBestOfTheTriesGivesTheValuesOfTheRuns) {
  const std::string file = Write("tuned.textproto", kTuned);
  const auto look = Start("look", file, {"--dry-run"});
  EXPECT_EQ(look->WaitText(kJobMax), kEndedWell) << look->Output();
  EXPECT_THAT(
      look->Output(),
      AllOf(HasSubstr("some-rate_factor-0.0001"), HasSubstr("3 of 3 tries to"),
            HasSubstr("then the runs with the values that the tries give: "
                      "some; seeds: 1, 2")));
  EXPECT_FALSE(fs::exists(Path("out")));

  const auto first = Start("first", file);
  EXPECT_EQ(first->WaitText(kJobMax), kEndedWell) << first->Output();
  EXPECT_THAT(first->Output(), AllOf(HasSubstr("3 of 3 tries done"),
                                     HasSubstr("tuned: some: rate_factor=1 ("),
                                     HasSubstr("2 of 2 runs done")));
  EXPECT_THAT(States(), ElementsAre(testing::Pair("some/1", "finished"),
                                    testing::Pair("some/2", "finished")));
  const nlohmann::json tune = ReadJson(Path("out/experiment.json"))["tune"];
  EXPECT_EQ(tune["fields"], nlohmann::json({"rate_factor"}));
  EXPECT_EQ(tune["seeds"], nlohmann::json({1001}));
  EXPECT_EQ(tune["measure"], "test_accuracy");
  const nlohmann::json& some = tune["variants"][0];
  EXPECT_EQ(some["variant"], "some");
  EXPECT_EQ(some["chosen"], nlohmann::json({{"rate_factor", "1"}}));
  EXPECT_EQ(some["at_edge"], false);
  ASSERT_THAT(some["tried"], SizeIs(3));
  EXPECT_LT(some["tried"][0]["result"], some["tried"][1]["result"]);
  EXPECT_TRUE(some["tried"][2]["result"].is_null());
  EXPECT_EQ(some["tried"][2]["diverged"], 1);
  const std::string best = some["tried"][1]["runs"][0];
  EXPECT_EQ(ReadJson(Path(absl::StrCat("out/runs/", best,
                                       "/summary.json")))["test_accuracy"],
            some["tried"][1]["result"]);

  const auto started = Started();
  EXPECT_THAT(started, SizeIs(5));
  const auto again = Start("again", file);
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();
  EXPECT_THAT(again->Output(),
              AllOf(HasSubstr("3 of 3 tries are done already"),
                    HasSubstr("2 of 2 runs are done already")));
  EXPECT_EQ(Started(), started);
}

TEST_F(Experiments, AVariantWhoseTriesAllDivergeIsLeftOut) {
  const std::string file = Write("grid.textproto", R"(
name: "grid"
base: "job.textproto"
set: "train.epochs=1"
variant {
  name: "wild" replay: "uniform:2" set: "optimizer.momentum.learning_rate=1e20"
}
variant { name: "tame" replay: "uniform:2" }
seed: 1
tune { over { field: "rate_factor" value: "0.5" value: "1" } }
)");
  const auto first = Start("first", file);
  EXPECT_EQ(first->WaitText(kJobMax), kFailed) << first->Output();
  EXPECT_THAT(
      first->Output(),
      AllOf(HasSubstr("not tuned: wild has no runs: it diverged with all 2"),
            HasSubstr("value that was tried; try"),
            HasSubstr("1 of 2 runs were not made")));
  EXPECT_THAT(States(), ElementsAre(testing::Pair("tame/1", "finished"),
                                    testing::Pair("wild/1", "not tuned")));
  const nlohmann::json tune = ReadJson(Path("out/experiment.json"))["tune"];
  EXPECT_TRUE(tune["variants"][0]["chosen"].empty());
  EXPECT_EQ(tune["variants"][1]["at_edge"], true);

  const auto look = Start("look", file, {"--dry-run"});
  EXPECT_EQ(look->WaitText(kJobMax), kEndedWell) << look->Output();
  EXPECT_THAT(look->Output(), AllOf(HasSubstr("0 of 4 tries to do"),
                                    HasSubstr("not tuned: wild has no runs"),
                                    Not(HasSubstr("then the runs"))));

  const auto only = Start("only", file, {"--only=tame"});
  EXPECT_EQ(only->WaitText(kJobMax), kEndedWell) << only->Output();
  EXPECT_THAT(only->Output(), AllOf(HasSubstr("2 of 2 tries are done already"),
                                    Not(HasSubstr("wild"))));
}

TEST_F(Experiments, TriesGoOnAfterAnInterruptWhereTheyWere) {
  // One try is soon done, the other one would take very long.
  const std::string text = R"(
name: "tuned"
base: "job.textproto"
variant { name: "some" }
seed: 1
tune { over { field: "train.epochs" value: "1" value: "1000" } }
)";
  const auto first = Start("first", Write("tuned.textproto", text));
  ASSERT_TRUE(WaitUntil(kJobMax, [&] { return Started().size() == 1; }))
      << first->Output();
  first->Signal(SIGINT);
  EXPECT_EQ(first->WaitText(kJobMax), kFailed) << first->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(first->Output(),
              HasSubstr("1 of 2 tries and 0 of 1 runs are finished, and "
                        "slackline compare"));
  const auto started = Started();
  EXPECT_EQ(States()["some/1"], "to do");

  // The same try is kept with another one beside it.
  const auto rest = Start(
      "rest",
      Write("tuned.textproto", absl::StrReplaceAll(text, {{"1000", "2"}})));
  EXPECT_EQ(rest->WaitText(kJobMax), kEndedWell) << rest->Output();
  EXPECT_THAT(rest->Output(), HasSubstr("1 of 2 tries are done already"));
  EXPECT_EQ(States()["some/1"], "finished");
  auto now = Started();
  EXPECT_THAT(now, SizeIs(3));
  for (const auto& [run, time] : started) EXPECT_EQ(now[run], time) << run;
}

TEST_F(Experiments, AnAblationListsItsRunsWithoutMakingAny) {
  const auto ablate =
      StartTool("ablate", {"ablate", Path("job.textproto"),
                           "--over=sync.ssp.staleness=0,2,inf",
                           "--over=workers=2,4", "--seeds=2", "--dry-run",
                           absl::StrCat("--out=", Path("out"))});
  EXPECT_EQ(ablate->WaitText(kJobMax), kEndedWell) << ablate->Output();
  EXPECT_THAT(ablate->Output(), AllOf(HasSubstr("asp-workers-4"),
                                      HasSubstr("12 of 12 runs to do"),
                                      HasSubstr("unknown until a run")));
  const auto tuned = StartTool(
      "tuned", {"ablate", Path("job.textproto"), "--over=mode=bsp,asp",
                "--tune=rate_factor=0.5,1", "--tune-seeds=2",
                "--tune-set=train.epochs=1", "--seeds=2", "--dry-run",
                absl::StrCat("--out=", Path("out"))});
  EXPECT_EQ(tuned->WaitText(kJobMax), kEndedWell) << tuned->Output();
  EXPECT_THAT(tuned->Output(), AllOf(HasSubstr("asp-rate_factor-0.5"),
                                     HasSubstr("8 of 8 tries to do"),
                                     HasSubstr("bsp, asp; seeds: 1, 2")));
  EXPECT_FALSE(fs::exists(Path("out")));
}

}  // namespace slackline::experiment_test
