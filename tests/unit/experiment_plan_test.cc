// Experiment files and flags, up to the list of runs and how long they take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "tests/unit/experiment_fixture.h"
#include "tools/experiment/ablation.h"
#include "tools/experiment/estimate.h"
#include "tools/experiment/experiment_file.h"
#include "tools/experiment/plan.h"
#include "tools/experiment/replay_spec.h"
#include "tools/experiment/variant_names.h"

namespace slackline::experiment_plan_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

// ---- Variants and runs ------------------------------------------------------

TEST_F(ExperimentTest, EveryVariantRunsOnceBeforeTheNextSeed) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "variant { mode: \"bsp\" } variant { mode: \"ssp:3\" } seed: 7 seed: 4");
  EXPECT_THAT(Runs(plan), ElementsAre("bsp/7", "ssp-3/7", "bsp/4", "ssp-3/4"));
  EXPECT_EQ(plan.runs[1].config.train().seed(), 7);
  EXPECT_EQ(plan.runs[3].config.train().seed(), 4);
  EXPECT_EQ(plan.runs[3].config.sync().ssp().staleness(), 3);
  EXPECT_EQ(plan.variants[1].mode, "ssp:3");
}

TEST_F(ExperimentTest, VariantsMeetEveryCombinationOfTheAxes) {
  const ExperimentPlan plan =
      ExpandOrDie(Header() +
                  "variant { name: \"a\" } variant { name: \"b\" set: "
                  "\"train.epochs=1\" }\n"
                  "over { field: \"workers\" value: \"2\" value: \"4\" }\n"
                  "over { field: \"mode\" value: \"bsp\" value: \"ssp:1\" }\n"
                  "seed: 1");
  EXPECT_THAT(Names(plan), ElementsAre("a-workers-2-bsp", "a-workers-2-ssp-1",
                                       "a-workers-4-bsp", "a-workers-4-ssp-1",
                                       "b-workers-2-bsp", "b-workers-2-ssp-1",
                                       "b-workers-4-bsp", "b-workers-4-ssp-1"));
  const PlannedVariant& last = plan.variants.back();
  EXPECT_THAT(last.axes, ElementsAre(Pair("variant", "b"), Pair("workers", "4"),
                                     Pair("mode", "ssp:1")));
  EXPECT_EQ(last.config.worker(0).count(), 1);
  EXPECT_EQ(last.config.worker(1).count(), 4);  // Of the last group.
  EXPECT_EQ(last.config.train().epochs(), 1);
  EXPECT_THAT(last.sets, ElementsAre("train.epochs=1", "worker[1].count=4"));
}

TEST_F(ExperimentTest, TheTrackersOfTheBaseAreThoseOfTheWhole) {
  folder_.Write("base.textproto",
                absl::StrCat(kBase, "track { tensorboard {} project: 'p' }\n"));
  const ExperimentPlan plan =
      ExpandOrDie(Header() + "variant { mode: \"asp\" } variant {}");
  EXPECT_TRUE(plan.track.has_tensorboard());
  EXPECT_EQ(plan.track.project(), "p");
  ASSERT_FALSE(plan.runs.empty());
  const std::string key = plan.runs[0].key;
  for (const PlannedRun& run : plan.runs) EXPECT_FALSE(run.config.has_track());
  EXPECT_FALSE(plan.variants[0].config.has_track());
  // Finished runs are kept when others are told of them.
  folder_.Write("base.textproto", kBase);
  const ExperimentPlan without =
      ExpandOrDie(Header() + "variant { mode: \"asp\" } variant {}");
  EXPECT_EQ(without.runs[0].key, key);
  EXPECT_FALSE(without.track.has_tensorboard());
}

TEST_F(ExperimentTest, TrackersOfOneVariantAloneAreRefused) {
  EXPECT_THAT(Errors(Header() + "variant { mode: \"asp\" } variant { set: "
                                "\"track.tensorboard={}\" name: \"b\" }"),
              ElementsAre(HasSubstr("variant 'b': track: it is another one")));
}

TEST_F(ExperimentTest, InfiniteStalenessIsAsp) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "over { field: \"sync.ssp.staleness\" value: \"0\" value: \"4\" "
      "value: \"inf\" } seed: 1");
  EXPECT_THAT(Names(plan), ElementsAre("ssp-0", "ssp-4", "asp"));
  EXPECT_EQ(plan.variants[1].config.sync().ssp().staleness(), 4);
  EXPECT_TRUE(plan.variants[2].config.sync().has_asp());
}

TEST_F(ExperimentTest, AValueMayBeAWholeBlock) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "over { field: \"optimizer\" value: \"{adam{learning_rate: 0.01}}\" "
      "value: \"{sgd{learning_rate: 1}}\" } seed: 1");
  EXPECT_THAT(Names(plan), ElementsAre("adam", "sgd"));
  EXPECT_EQ(plan.variants[0].config.optimizer().adam().learning_rate(), 0.01);
  EXPECT_FALSE(plan.variants[1].config.optimizer().has_momentum());
}

TEST_F(ExperimentTest, DefaultsAreThreeSeedsAndTheFirstVariantAsBaseline) {
  const ExperimentPlan plan =
      ExpandOrDie(Header() + "variant { mode: \"asp\" } variant {}");
  EXPECT_THAT(Runs(plan), ElementsAre("asp/1", "base/1", "asp/2", "base/2",
                                      "asp/3", "base/3"));
  EXPECT_EQ(plan.experiment.baseline(), "asp");
  EXPECT_EQ(plan.experiment.title(), "e");
}

TEST_F(ExperimentTest, StopReplacesThatOfTheBaseAndIsTheTarget) {
  folder_.Write(
      "base.textproto",
      absl::StrReplaceAll(kBase, {{"epochs: 2", "stop { test_loss: 0.5 }"}}));
  const ExperimentPlan plan = ExpandOrDie(
      Header() + "variant {} stop { test_accuracy: 0.95 wall_seconds: 60 }");
  const config::Stop& stop = plan.runs[0].config.train().stop();
  EXPECT_EQ(stop.test_accuracy(), 0.95);
  EXPECT_EQ(stop.wall_seconds(), 60);
  EXPECT_FALSE(stop.has_test_loss());
  EXPECT_EQ(plan.experiment.target().test_accuracy(), 0.95);
  EXPECT_FALSE(plan.experiment.target().has_test_loss());
}

TEST_F(ExperimentTest, NoRunHasTheCoordinatorPortOfTheBase) {
  folder_.Write("base.textproto",
                absl::StrCat(kBase, "coordinator { port: 7701 }"));
  const ExperimentPlan plan = ExpandOrDie(Header() + "variant {}");
  EXPECT_FALSE(plan.runs[0].config.coordinator().has_port());
}

// ---- Keys -------------------------------------------------------------------

TEST_F(ExperimentTest, KeysDependOnWhatDeterminesARunAndOnNothingElse) {
  const std::string text = Header() + "variant { name: \"v\" } seed: 1 seed: 2";
  const ExperimentPlan plan = ExpandOrDie(text);
  EXPECT_NE(plan.runs[0].key, plan.runs[1].key);
  EXPECT_THAT(plan.runs[0].key, SizeIs(16));
  EXPECT_EQ(plan.runs[0].name,
            absl::StrCat("v-seed1-", plan.runs[0].key.substr(0, 8)));
  // What the report says, how the variant is called, and defaults written out.
  EXPECT_EQ(ExpandOrDie(Header() +
                        "variant { name: \"w\" set: \"train.eval_every_epochs=1"
                        "\" } title: \"t\" seed: 1")
                .runs[0]
                .key,
            plan.runs[0].key);
  EXPECT_NE(
      ExpandOrDie(Header() + "variant { set: \"train.epochs=3\" } seed: 1")
          .runs[0]
          .key,
      plan.runs[0].key);
  EXPECT_NE(ExpandOrDie(Header() + "variant { replay: \"uniform:3\" } seed: 1")
                .runs[0]
                .key,
            plan.runs[0].key);
}

TEST_F(ExperimentTest, KeysOfRecordedDelaysFollowTheRecording) {
  const std::string run = folder_.File("run");
  std::filesystem::create_directories(run);
  const std::string text = Header() + "variant { replay: \"run\" } seed: 1";
  folder_.Write("run/trace-server-0.jsonl", "one\n");
  const ExperimentPlan plan = ExpandOrDie(text);
  EXPECT_EQ(plan.variants[0].name, "run");
  EXPECT_EQ(plan.variants[0].replay, run);
  EXPECT_EQ(plan.experiment.variant(0).replay(), run);
  folder_.Write("run/trace-server-0.jsonl", "two\n");
  EXPECT_NE(ExpandOrDie(text).runs[0].key, plan.runs[0].key);
}

TEST_F(ExperimentTest, GivenDelaysAreJobsAndTheirKeysFollowTheRecording) {
  std::filesystem::create_directories(folder_.File("run"));
  folder_.Write("run/trace-server-0.jsonl", "one\n");
  const std::string text =
      Header() +
      "over { field: \"delays\" value: \"uniform:8\" value: \"run\" } "
      "seed: 1";
  const ExperimentPlan plan = ExpandOrDie(text);
  ASSERT_THAT(plan.variants, SizeIs(2));
  EXPECT_EQ(plan.variants[0].name, "delays-uniform-8");
  EXPECT_EQ(plan.variants[0].mode, "delays:uniform:8");
  EXPECT_EQ(plan.variants[0].replay, "");
  EXPECT_EQ(plan.variants[1].name, "delays-run");
  EXPECT_EQ(plan.runs[1].config.sync().delays().given(), folder_.File("run"));
  EXPECT_EQ(plan.experiment.over(0).value(1), folder_.File("run"));
  folder_.Write("run/trace-server-0.jsonl", "two\n");
  const ExperimentPlan other = ExpandOrDie(text);
  EXPECT_EQ(other.runs[0].key, plan.runs[0].key);
  EXPECT_NE(other.runs[1].key, plan.runs[1].key);
}

// ---- Errors -----------------------------------------------------------------

TEST_F(ExperimentTest, AllProblemsOfTheFileAreNamedWithTheirPlace) {
  EXPECT_THAT(
      Errors("name: \"no name\"\n"
             "seed: 2 seed: 2\n"
             "parallel: 0\n"
             "over { field: \"mode\" }\n"
             "target { test_accuracy: 97 }\n"),
      ElementsAre(
          AllOf(StartsWith("e.textproto:1:1: name: value is 'no name'"),
                HasSubstr("letters, digits")),
          StartsWith("e.textproto:1:1: base: is required"),
          StartsWith("e.textproto:2:9: seed[1]: value is 2"),
          StartsWith("e.textproto:3:1: parallel: value is 0; 1 to 64"),
          StartsWith("e.textproto:4:1: over[0].value: is required"),
          StartsWith("e.textproto:5:10: target.test_accuracy: value is 97")));
}

TEST_F(ExperimentTest, UnknownFieldsHaveASuggestion) {
  EXPECT_THAT(Errors(Header() + "varaint { }"),
              ElementsAre(AllOf(StartsWith("e.textproto:2:1: varaint:"),
                                HasSubstr("did you mean 'variant'?"))));
}

TEST_F(ExperimentTest, AProblemOfOneVariantNamesItAndTheField) {
  EXPECT_THAT(
      Errors(Header() + "variant { name: \"good\" }\n"
                        "variant { name: \"typo\" set: \"train.epoch=3\" }\n"
                        "variant { name: \"range\" set: \"train.epochs=-1\" }\n"
                        "variant { mode: \"sps:3\" }"),
      testing::UnorderedElementsAre(
          AllOf(StartsWith("e.textproto:3:1: variant 'typo': --set "
                           "train.epoch=3: "),
                HasSubstr("did you mean 'epochs'?")),
          StartsWith("e.textproto:4:1: variant 'range': --set "
                     "train.epochs=-1: train.epochs: "),
          StartsWith("e.textproto:5:1: variant 'sps-3': --mode sps:3: ")));
}

TEST_F(ExperimentTest, AProblemThatAllVariantsShareIsNamedOnce) {
  folder_.Write("base.textproto", absl::StrCat(kBase, "limits { lease: 1 }"));
  EXPECT_THAT(Errors(Header() + "variant { mode: \"bsp\" } variant {}"),
              ElementsAre(StartsWith("e.textproto:1:11: in every variant: "
                                     "base.textproto:9:10: limits.lease: ")));
}

TEST_F(ExperimentTest, ABaseThatIsMissingIsNamed) {
  EXPECT_THAT(Errors("name: \"e\"\nbase: \"nowhere.textproto\" variant {}"),
              ElementsAre(AllOf(StartsWith("e.textproto:2:1: base: "),
                                HasSubstr("'nowhere.textproto' cannot be "
                                          "opened: No such file"))));
}

TEST_F(ExperimentTest, TwoVariantsOfOneNameAreRefused) {
  EXPECT_THAT(
      Errors(Header() + "variant { mode: \"bsp\" }\nvariant { name: \"bsp\" }"),
      ElementsAre(StartsWith("e.textproto:3:1: variant 'bsp': another "
                             "one has this name")));
}

TEST_F(ExperimentTest, ABaselineMustBeAVariant) {
  EXPECT_THAT(
      Errors(Header() + "variant { mode: \"bsp\" }\nbaseline: \"ssp\""),
      ElementsAre("e.textproto:3:1: baseline: value is 'ssp', which is no "
                  "variant; one of bsp is required"));
}

TEST_F(ExperimentTest, TheModeIsSetInOnePlace) {
  EXPECT_THAT(Errors(Header() + "variant { mode: \"bsp\" }\n"
                                "over { field: \"mode\" value: \"asp\" }"),
              ElementsAre(HasSubstr("the axis over 'mode' sets it too")));
  EXPECT_THAT(Errors(Header() +
                     "variant { mode: \"ssp:1\" }\n"
                     "over { field: \"sync.ssp.staleness\" value: \"inf\" }"),
              ElementsAre(HasSubstr("means mode asp, but the mode is set to "
                                    "ssp:1")));
}

TEST_F(ExperimentTest, AJobOfProgramsOfItsOwnCannotBeReplayed) {
  folder_.Write(
      "base.textproto",
      absl::StrReplaceAll(
          kBase, {{"model { mlp { hidden: 8 } }", ""},
                  {"data { teacher_student {} batch_size: 20 }", ""}}));
  const char kVariants[] =
      "name: \"x\" base: \"base.textproto\" variant { mode: \"bsp\" } ";
  EXPECT_THAT(Errors(kVariants), IsEmpty());
  EXPECT_THAT(
      Errors(absl::StrCat(kVariants, "variant { replay: \"uniform:8\" }")),
      ElementsAre(HasSubstr("variant 'uniform-8': job test has no model and "
                            "data: its workers are programs of their own")));
}

TEST_F(ExperimentTest, TheWorkersProgramIsPartOfTheKey) {
  const std::string path = folder_.Write(
      "e.textproto",
      "name: \"x\" base: \"base.textproto\" variant { mode: \"bsp\" }");
  std::set<std::string> keys;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{}, {"train", "1"}, {"train", "2"}}) {
    absl::StatusOr<ExperimentSource> source = LoadExperiment(path);
    ASSERT_TRUE(source.ok()) << source.status();
    source->worker_command = command;
    const absl::StatusOr<ExperimentPlan> plan = ExpandExperiment(*source);
    ASSERT_TRUE(plan.ok()) << plan.status();
    keys.insert(plan->runs[0].key);
  }
  EXPECT_THAT(keys, SizeIs(3));
}

TEST_F(ExperimentTest, ASeedAmongTheChangesIsRefused) {
  EXPECT_THAT(Errors(Header() + "variant { set: \"train.seed=9\" } seed: 1"),
              ElementsAre(HasSubstr("--set train.seed=9: contradicts")));
}

TEST_F(ExperimentTest, AHugeGridIsRefused) {
  std::string values;
  for (int i = 0; i < 101; ++i) absl::StrAppend(&values, " value: \"", i, "\"");
  EXPECT_THAT(Errors(Header() + "over { field: \"train.max_steps\"" + values +
                     " }\nover { field: \"workers\"" + values + " } seed: 1"),
              testing::Contains(HasSubstr("more than 10000 runs")));
}

// ---- Replay -----------------------------------------------------------------

TEST_F(ExperimentTest, DelaysAreANameWithANumberOrAFolderWithTraces) {
  const auto text = [&](const std::string& spec) {
    const auto parsed = ParseReplaySpec(spec, folder_.path());
    return parsed.ok() ? parsed->text : std::string(parsed.status().message());
  };
  EXPECT_EQ(text("uniform:8"), "uniform:8");
  EXPECT_EQ(text("straggler:0"), "straggler:0");
  for (const char* const wrong :
       {"uniform", "uniform:", "uniform:-1", "uniform:x", "normal:3", ""}) {
    EXPECT_THAT(text(wrong),
                HasSubstr(absl::StrCat("\"", wrong, "\" is not understood")));
  }
  std::filesystem::create_directories(folder_.File("run"));
  EXPECT_THAT(text("run"), HasSubstr("has no trace-server-*.jsonl"));
}

// ---- Names ------------------------------------------------------------------

TEST(VariantNamesTest, SayWhatChanges) {
  EXPECT_EQ(AssignmentName("sync.ssp.staleness=4"), "ssp-4");
  EXPECT_EQ(AssignmentName("sync.asp={}"), "asp");
  EXPECT_EQ(AssignmentName("optimizer.momentum.learning_rate=0.05"),
            "learning_rate-0.05");
  EXPECT_EQ(AssignmentName("worker[1].slowdown=3"), "slowdown-3");
  EXPECT_EQ(AssignmentName("model.mlp.hidden=[256, 128]"), "hidden-256-128");
  EXPECT_EQ(AssignmentName("optimizer={adam{learning_rate: 1e-3}}"),
            "adam-learning_rate-1e-3");
}

TEST(VariantNamesTest, OfAnAxisDiffer) {
  EXPECT_THAT(AxisValueNames("optimizer", {"{adam{learning_rate:1}}",
                                           "{adam{learning_rate:2}}"}),
              ElementsAre("adam-learning_rate-1", "adam-learning_rate-2"));
  EXPECT_THAT(AxisValueNames("delays", {"uniform:8", "constant:0"}),
              ElementsAre("uniform-8", "constant-0"));
  EXPECT_THAT(AxisValueNames("replay", {"uniform:8", "constant:0"}),
              ElementsAre("uniform-8", "constant-0"));
  EXPECT_THAT(AxisValueNames("train.x", {"-1", "1"}),
              ElementsAre("x-minus-1", "x-1"));
}

// ---- Ablations --------------------------------------------------------------

TEST(SplitValuesTest, CommasInBracketsDoNotSeparate) {
  EXPECT_THAT(SplitValues("0, 1,inf"), ElementsAre("0", "1", "inf"));
  EXPECT_THAT(SplitValues("{adam{a: 1, b: 2}},[3,4]"),
              ElementsAre("{adam{a: 1, b: 2}}", "[3,4]"));
}

TEST(ParseSeedsTest, ACountAListOrRanges) {
  EXPECT_THAT(*ParseSeeds("--seeds", "3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*ParseSeeds("--seeds", "8,4"), ElementsAre(8, 4));
  EXPECT_THAT(*ParseSeeds("--seeds", "7-9,12"), ElementsAre(7, 8, 9, 12));
  EXPECT_THAT(*ParseSeeds("--seeds", "7-7"), ElementsAre(7));
  for (const char* const wrong :
       {"", "0", "-1", "3-1", "1,,2", "x", "0-5000", "1-99999999999"}) {
    EXPECT_FALSE(ParseSeeds("--seeds", wrong).ok()) << wrong;
  }
}

TEST_F(ExperimentTest, AnAblationIsAnExperiment) {
  AblationOptions options;
  options.base = folder_.File("base.textproto");
  options.over = {"sync.ssp.staleness=0,inf", "workers=2,4"};
  options.sets = {"train.epochs=5"};
  options.seeds = {1, 2};
  options.stop_accuracy = 0.9;
  const auto source = MakeAblation(options);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto plan = ExpandExperiment(*source);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->experiment.name(), "base-staleness-workers");
  EXPECT_THAT(Names(*plan), ElementsAre("ssp-0-workers-2", "ssp-0-workers-4",
                                        "asp-workers-2", "asp-workers-4"));
  EXPECT_THAT(plan->runs, SizeIs(8));
  EXPECT_EQ(plan->runs[0].config.train().epochs(), 5);
  EXPECT_EQ(plan->experiment.target().test_accuracy(), 0.9);
}

TEST_F(ExperimentTest, ProblemsOfAnAblationNameTheFlag) {
  AblationOptions options;
  options.base = folder_.File("base.textproto");
  options.seeds = {1};
  const auto error = [&] {
    const auto source = MakeAblation(options);
    if (!source.ok()) return std::string(source.status().message());
    return std::string(ExpandExperiment(*source).status().message());
  };
  options.over = {"staleness"};
  EXPECT_THAT(error(), StartsWith("--over staleness: is not of the form"));
  options.over = {"train.epochs=1,x"};
  EXPECT_THAT(error(),
              AllOf(StartsWith("--over train.epochs=1,x: variant 'epochs-x': "),
                    HasSubstr("a number is required")));
  options.over = {"mode=bsp"};
  options.mode = "asp";
  EXPECT_THAT(error(), HasSubstr("keep one of them"));
}

// ---- Estimates --------------------------------------------------------------

TEST_F(ExperimentTest, TimeIsUnknownWithoutARunOfTheKind) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "variant { name: \"job\" } variant { replay: \"uniform:2\" } seed: 1");
  EXPECT_EQ(EstimateSeconds(plan, {0}, {}), std::nullopt);
  EXPECT_EQ(EstimateSeconds(plan, {1}, {{0, 10}}), std::nullopt);
  EXPECT_EQ(EstimateSeconds(plan, {}, {}), 0);
  EXPECT_THAT(EstimateText(std::nullopt), HasSubstr("unknown"));
}

TEST_F(ExperimentTest, ARunTakesAsLongAsItsVariantElseAsTheOthers) {
  const ExperimentPlan plan =
      ExpandOrDie(Header() +
                  "variant { name: \"a\" } variant { name: \"b\" } seed: 1 "
                  "seed: 2 seed: 3");
  // Done: a/1 in 10 s, a/2 in 20 s.
  EXPECT_EQ(EstimateSeconds(plan, {4}, {{0, 10}, {2, 20}}), 15);
  EXPECT_EQ(EstimateSeconds(plan, {1, 3}, {{0, 10}, {2, 20}}), 30);
  // Done: b/1 in 40 s, too.
  EXPECT_EQ(EstimateSeconds(plan, {4, 3}, {{0, 10}, {2, 20}, {1, 40}}), 55);
}

TEST_F(ExperimentTest, RunsAtTheSameTimeShareTheTime) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() + "variant { name: \"a\" } parallel: 4 seed: 1 seed: 2 seed: 3");
  EXPECT_EQ(EstimateSeconds(plan, {1, 2}, {{0, 10}}), 10);  // Not 5.
}

TEST_F(ExperimentTest, StepTimesGiveAnEstimateUnlessTheRunMayStopEarly) {
  const std::string steps =
      "variant { set: \"worker[0].conditions={step_ms: 10}\" set: "
      "\"worker[0].slowdown=2\" } seed: 1";
  const ExperimentPlan plan = ExpandOrDie(Header() + steps);
  // 60000 examples, 2 epochs, 3 workers with 20 at a time: 2000 steps.
  EXPECT_EQ(EstimateSeconds(plan, {0}, {}), 40);
  const ExperimentPlan stops =
      ExpandOrDie(Header() + steps + " stop { test_accuracy: 0.9 }");
  EXPECT_EQ(EstimateSeconds(stops, {0}, {}), std::nullopt);
}

TEST(EstimateTextTest, IsRound) {
  EXPECT_EQ(EstimateText(17.2), "about 17 s");
  EXPECT_EQ(EstimateText(840), "about 14 min");
  EXPECT_EQ(EstimateText(9000), "about 2.5 h");
}

TEST(ExampleExperimentsTest, AllCanBeRun) {
  int experiments = 0;
  for (const auto& file : std::filesystem::directory_iterator(
           absl::StrCat(SLACKLINE_SOURCE_DIR, "/examples/experiments"))) {
    const std::string path = file.path().string();
    // What experiments start from.
    if (absl::StartsWith(file.path().filename().string(), "base_")) continue;
    SCOPED_TRACE(path);
    ++experiments;
    const absl::StatusOr<ExperimentSource> source = LoadExperiment(path);
    ASSERT_TRUE(source.ok()) << source.status();
    const absl::StatusOr<ExperimentPlan> plan = ExpandExperiment(*source);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!source->experiment.has_tune()) continue;
    const absl::StatusOr<ExperimentPlan> tries = ExpandTries(*source);
    EXPECT_TRUE(tries.ok()) << tries.status();
  }
  EXPECT_GE(experiments, 11);
}

}  // namespace slackline::experiment_plan_test
