// What an experiment tries before its runs, which values it chooses, and the
// runs that follow from them.
#include "tools/experiment/tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tests/unit/experiment_fixture.h"
#include "tools/experiment/ablation.h"
#include "tools/experiment/rate_factor.h"

namespace slackline::tune_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

using State = TryOutcome::State;

constexpr char kTwoRates[] =
    "tune { over { field: \"rate_factor\" value: \"0.5\" value: \"2\" } }\n";

class TuneTest : public ExperimentTest {
 protected:
  ExperimentSource Load(const std::string& text) {
    absl::StatusOr<ExperimentSource> source =
        LoadExperiment(folder_.Write("e.textproto", text));
    // What is no experiment at all is a mistake in the test.
    SL_CHECK(source.ok(), source.status().message());
    return *std::move(source);
  }
  ExperimentPlan TriesOrDie(const std::string& text) {
    absl::StatusOr<ExperimentPlan> plan = ExpandTries(Load(text));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : ExperimentPlan();
  }
  std::vector<std::string> TryErrors(const std::string& text) {
    return LinesOf(ExpandTries(Load(text)).status());
  }
};

double RateOf(const config::ClusterConfig& config) {
  return config.optimizer().momentum().learning_rate();
}

// ---- Tries ------------------------------------------------------------------

TEST_F(TuneTest, EveryVariantIsTriedWithEveryCombinationFromSeedsOfItsOwn) {
  const ExperimentPlan tries = TriesOrDie(
      Header() +
      "variant { mode: \"bsp\" } variant { mode: \"asp\" } seed: 1\n"
      "tune { over { field: \"rate_factor\" value: \"0.5\" value: \"2\" }\n"
      "over { field: \"train.epochs\" value: \"3\" } seed: 8 seed: 9 }");
  EXPECT_THAT(
      Runs(tries),
      ElementsAre(
          "bsp-rate_factor-0.5-epochs-3/8", "bsp-rate_factor-2-epochs-3/8",
          "asp-rate_factor-0.5-epochs-3/8", "asp-rate_factor-2-epochs-3/8",
          "bsp-rate_factor-0.5-epochs-3/9", "bsp-rate_factor-2-epochs-3/9",
          "asp-rate_factor-0.5-epochs-3/9", "asp-rate_factor-2-epochs-3/9"));
  const PlannedVariant& last = tries.variants[3];
  EXPECT_EQ(last.experiment_variant, 1);
  EXPECT_THAT(last.tuned,
              ElementsAre(Pair("rate_factor", "2"), Pair("train.epochs", "3")));
  EXPECT_THAT(last.axes, IsEmpty());
  EXPECT_TRUE(last.config.sync().has_asp());
  EXPECT_EQ(RateOf(last.config), 0.2);
  EXPECT_EQ(last.config.train().epochs(), 3);
}

TEST_F(TuneTest, TheSeedOfTriesIs1001UnlessGiven) {
  const ExperimentPlan tries =
      TriesOrDie(Header() + "variant { name: \"v\" } " + kTwoRates);
  EXPECT_THAT(Runs(tries),
              ElementsAre("v-rate_factor-0.5/1001", "v-rate_factor-2/1001"));
  EXPECT_THAT(tries.experiment.tune().seed(), ElementsAre(1001));
}

TEST_F(TuneTest, ChangesForTriesGoOverThoseOfTheExperimentAndTheVariant) {
  const std::string text =
      Header() +
      "set: \"train.epochs=7\" variant { set: \"data.batch_size=10\" "
      "name: \"v\" } seed: 1\n"
      "tune { over { field: \"rate_factor\" value: \"1\" } set: "
      "\"train.epochs=1\" set: \"data.batch_size=5\" }";
  const ExperimentPlan tries = TriesOrDie(text);
  EXPECT_EQ(tries.runs[0].config.train().epochs(), 1);
  EXPECT_EQ(tries.runs[0].config.data().batch_size(), 5);
  EXPECT_EQ(tries.runs[0].config.train().seed(), 1001);
  const auto plan =
      ExpandExperiment(Load(text), {AxisValues{{"rate_factor", "1"}}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->runs[0].config.train().epochs(), 7);
  EXPECT_EQ(plan->runs[0].config.data().batch_size(), 10);
}

// ---- The runs that follow ---------------------------------------------------

TEST_F(TuneTest, AVariantHasRunsOnceItsValuesAreKnown) {
  const ExperimentSource source =
      Load(Header() +
           "variant { mode: \"bsp\" } variant { mode: \"asp\" } seed: 1 "
           "seed: 2 " +
           kTwoRates);
  const auto none = ExpandExperiment(source);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(Names(*none), ElementsAre("bsp", "asp"));
  EXPECT_THAT(none->runs, IsEmpty());
  const auto one = ExpandExperiment(
      source, {std::nullopt, AxisValues{{"rate_factor", "0.5"}}});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(Runs(*one), ElementsAre("asp/1", "asp/2"));
  EXPECT_EQ(RateOf(one->runs[0].config), 0.05);
  EXPECT_THAT(one->variants[1].tuned, ElementsAre(Pair("rate_factor", "0.5")));
  // What was tuned is no change by which the variants are compared.
  EXPECT_THAT(one->variants[1].sets, IsEmpty());
}

TEST_F(TuneTest, ATunedRunIsTheRunWithTheseValuesWrittenOut) {
  const auto tuned = ExpandExperiment(
      Load(Header() + "variant { name: \"v\" } seed: 1 " + kTwoRates),
      {AxisValues{{"rate_factor", "2"}}});
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  const ExperimentPlan written = ExpandOrDie(
      Header() +
      "variant { name: \"v\" set: \"optimizer.momentum.learning_rate=0.2\" } "
      "seed: 1");
  EXPECT_EQ(tuned->runs[0].name, written.runs[0].name);
}

// ---- Rate factors -----------------------------------------------------------

TEST_F(TuneTest, ARateFactorIsOfWhateverOptimizerTheVariantHas) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "over { field: \"optimizer\" value: \"{adam{learning_rate: 0.3}}\" "
      "value: \"{sgd{learning_rate: 1}}\" }\n"
      "over { field: \"rate_factor\" value: \"0.1\" value: \"3\" } seed: 1");
  EXPECT_THAT(Names(plan),
              ElementsAre("adam-rate_factor-0.1", "adam-rate_factor-3",
                          "sgd-rate_factor-0.1", "sgd-rate_factor-3"));
  // Not 0.03 and its rounding error.
  EXPECT_EQ(plan.variants[0].config.optimizer().adam().learning_rate(), 0.03);
  EXPECT_EQ(plan.variants[3].config.optimizer().sgd().learning_rate(), 3);
}

TEST_F(TuneTest, ARateFactorIsOfTheRateThatAVariantSets) {
  const ExperimentPlan plan = ExpandOrDie(
      Header() +
      "variant { name: \"v\" set: \"optimizer.momentum.learning_rate=0.4\" }\n"
      "over { field: \"rate_factor\" value: \"0.5\" } seed: 1");
  EXPECT_EQ(RateOf(plan.variants[0].config), 0.2);
}

TEST_F(TuneTest, ARateFactorIsANumberAboveZero) {
  for (const char* const wrong : {"0", "-1", "x", "", "inf", "nan"}) {
    EXPECT_THAT(Errors(Header() + "over { field: \"rate_factor\" value: \"" +
                       wrong + "\" } variant { name: \"v\" } seed: 1"),
                ::testing::Contains(HasSubstr(absl::StrCat(
                    "rate_factor: value is '", wrong, "'; a number above 0"))))
        << wrong;
  }
}

TEST_F(TuneTest, ProgramsThatSetTheirOwnRateHaveNoFactor) {
  const auto assignment = RateAssignment("2", config::ClusterConfig());
  EXPECT_THAT(std::string(assignment.status().message()),
              HasSubstr("rate_factor: the config has no optimizer"));
}

// ---- Errors -----------------------------------------------------------------

TEST_F(TuneTest, WhatIsWrongInTheFileIsNamedWithItsPlace) {
  EXPECT_THAT(
      Errors(Header() + "variant { mode: \"bsp\" }\n"
                        "over { field: \"workers\" value: \"2\" }\n"
                        "tune { over { field: \"workers\" value: \"3\" }\n"
                        "  over { field: \"mode\" } seed: 5 seed: 5 }"),
      ElementsAre(
          StartsWith("e.textproto:2:11: variant[0].mode: the axis over 'mode'"),
          AllOf(HasSubstr("tune.over[0].field: 'workers' has an axis already")),
          StartsWith("e.textproto:5:3: tune.over[1].value: is required"),
          HasSubstr("tune.seed[1]: value is 5 for the second time")));
  EXPECT_THAT(Errors(Header() + "variant { }\ntune { }"),
              ElementsAre(StartsWith("e.textproto:3:1: tune.over: there is "
                                     "none; at least one axis")));
}

TEST_F(TuneTest, TriesHaveNoSeedOfTheRuns) {
  EXPECT_THAT(
      Errors(Header() + "variant { name: \"v\" } seed: 1001 " + kTwoRates),
      ElementsAre(HasSubstr("tune.seed[0]: value is 1001, which is a "
                            "seed of the runs")));
}

TEST_F(TuneTest, AValueOrAChangeThatDoesNotFitIsRefusedBeforeAnyTry) {
  EXPECT_THAT(
      TryErrors(Header() + "variant { name: \"v\" }\n"
                           "tune { over { field: \"train.epochs\" value: "
                           "\"1\" value: \"-1\" } }"),
      ElementsAre(HasSubstr("variant 'v-epochs-minus-1': --set "
                            "train.epochs=-1: train.epochs: ")));
  EXPECT_THAT(TryErrors(Header() + "variant { name: \"v\" }\n"
                                   "tune { over { field: \"rate_factor\" "
                                   "value: \"1\" } set: \"train.seed=4\" }"),
              ElementsAre(HasSubstr("--set train.seed=4: contradicts")));
}

TEST_F(TuneTest, ValuesThatFitOnlyTheTriesAreRefusedBeforeAnyTry) {
  // The tries are of 6 workers, the runs of 3.
  EXPECT_THAT(
      TryErrors(Header() +
                "variant { name: \"v\" }\n"
                "tune { over { field: \"mode\" value: \"backup:1\" value: "
                "\"backup:3\" } set: \"worker[1].count=5\" }"),
      ElementsAre(HasSubstr("variant 'v-backup-3': ")));
}

// ---- The choice -------------------------------------------------------------

class ChoiceTest : public TuneTest {
 protected:
  // One variant and three values, 1, 0.5 and 2, with two seeds each.
  ChoiceTest()
      : tries_(TriesOrDie(
            Header() +
            "variant { name: \"v\" } tune { over { field: \"rate_factor\" "
            "value: \"1\" value: \"0.5\" value: \"2\" } seed: 8 seed: 9 }")) {
    outcomes_.resize(tries_.runs.size());
  }
  // Of both seeds of the value with this index.
  void Finish(int value, double first, double second) {
    outcomes_[value] = {State::kFinished, first, 1 - first};
    outcomes_[value + 3] = {State::kFinished, second, 1 - second};
  }
  TunedVariant Choose() { return Tune(tries_, outcomes_, 1).variants[0]; }

  const ExperimentPlan tries_;
  std::vector<TryOutcome> outcomes_;  // By seed, then by value.
};

TEST_F(ChoiceTest, IsTheHighestMeanOfTheAccuracy) {
  Finish(0, 0.75, 0.5);
  Finish(1, 0.25, 1);
  Finish(2, 0.875, 0.125);
  const Tuning tuning = Tune(tries_, outcomes_, 1);
  EXPECT_TRUE(tuning.by_accuracy);
  const TunedVariant& variant = tuning.variants[0];
  EXPECT_EQ(variant.chosen, 0);
  EXPECT_FALSE(variant.at_edge);
  EXPECT_EQ(variant.tried[1].result, 0.625);
  EXPECT_THAT(variant.tried[1].runs, ElementsAre(1, 4));
  EXPECT_THAT(tuning.Chosen(), ElementsAre(AxisValues{{"rate_factor", "1"}}));
}

TEST_F(ChoiceTest, OfEqualOnesTheFirstIsTaken) {
  Finish(0, 0.5, 0.5);
  Finish(1, 0.75, 0.75);
  Finish(2, 0.75, 0.75);
  EXPECT_EQ(Choose().chosen, 1);
}

TEST_F(ChoiceTest, WithoutAnAccuracyTheLowestLossIsTheBest) {
  for (int value = 0; value < 3; ++value) Finish(value, 0.5, 0.5);
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    outcomes_[i].test_accuracy = std::nan("");
    outcomes_[i].test_loss = i % 3 == 1 ? 0.25 : 4;
  }
  EXPECT_FALSE(Tune(tries_, outcomes_, 1).by_accuracy);
  EXPECT_EQ(Choose().chosen, 1);
  EXPECT_EQ(Choose().tried[1].result, 0.25);
}

TEST_F(ChoiceTest, ARunThatDivergesIsWorseThanAnyOther) {
  Finish(0, 0.125, 0.125);
  Finish(1, 1, 1);
  Finish(2, 1, 1);
  outcomes_[1].state = State::kDiverged;
  outcomes_[5].state = State::kDiverged;
  const TunedVariant variant = Choose();
  EXPECT_EQ(variant.chosen, 0);
  EXPECT_EQ(variant.tried[1].diverged, 1);
  EXPECT_EQ(variant.tried[1].result, std::nullopt);
  EXPECT_EQ(variant.tried[2].result, std::nullopt);
}

TEST_F(ChoiceTest, WhereATryFailsOtherwiseNothingIsChosen) {
  Finish(0, 0.125, 0.125);
  Finish(1, 1, 1);
  Finish(2, 1, 1);
  outcomes_[5].state = State::kFailed;
  const TunedVariant variant = Choose();
  EXPECT_EQ(variant.chosen, std::nullopt) << "it might have been the best";
  EXPECT_EQ(variant.tried[2].failed, 1);
  EXPECT_EQ(variant.tried[2].result, std::nullopt);
  EXPECT_THAT(variant.left_out, HasSubstr("--retry-failed"));
}

TEST_F(ChoiceTest, WhereAllDivergeNothingIsChosenAndTheReasonIsSaid) {
  for (TryOutcome& outcome : outcomes_) outcome.state = State::kDiverged;
  EXPECT_EQ(Choose().chosen, std::nullopt);
  EXPECT_EQ(Choose().left_out,
            "it diverged with all 3 values that were tried; try smaller ones");
  outcomes_[0].state = State::kFailed;
  EXPECT_THAT(Choose().left_out, HasSubstr("with 1 of 3 values its tries "
                                           "failed, and not by diverging"));
  EXPECT_EQ(Tune(tries_, outcomes_, 1).Chosen()[0], std::nullopt);
}

TEST_F(ChoiceTest, WithoutAnyMeasureNothingIsChosen) {
  for (TryOutcome& outcome : outcomes_)
    outcome = {State::kFinished, std::nan(""), std::nan("")};
  EXPECT_EQ(Choose().chosen, std::nullopt);
  EXPECT_THAT(Choose().left_out, HasSubstr("neither test accuracy nor"));
}

TEST_F(ChoiceTest, WhileATryIsMissingNothingIsChosen) {
  Finish(0, 1, 1);
  Finish(1, 0.5, 0.5);
  Finish(2, 0.5, 0.5);
  outcomes_[5] = TryOutcome();
  EXPECT_EQ(Choose().chosen, std::nullopt);
  EXPECT_EQ(Choose().left_out, "");
}

TEST_F(ChoiceTest, AValueAtTheEdgeIsSaid) {
  Finish(0, 0.5, 0.5);
  Finish(1, 1, 1);
  Finish(2, 0.75, 0.75);
  EXPECT_TRUE(Choose().at_edge);
  EXPECT_THAT(EdgeTexts(Choose()),
              ElementsAre("rate_factor=0.5 is the smallest value that was "
                          "tried; try smaller ones"));
  Finish(2, 1, 1.5);
  EXPECT_THAT(EdgeTexts(Choose()), ElementsAre(HasSubstr("2 is the largest")));
}

TEST_F(ChoiceTest, OneValueAloneAndWordsHaveNoEdge) {
  const ExperimentPlan tries =
      TriesOrDie(Header() +
                 "variant { name: \"v\" } tune {\n"
                 "over { field: \"mode\" value: \"bsp\" value: \"asp\" }\n"
                 "over { field: \"rate_factor\" value: \"1\" } }");
  std::vector<TryOutcome> outcomes(2, {State::kFinished, 0.5, 1});
  const TunedVariant variant = Tune(tries, outcomes, 1).variants[0];
  EXPECT_EQ(variant.chosen, 0);
  EXPECT_FALSE(variant.at_edge);
}

TEST_F(ChoiceTest, IsOfEachVariantByItself) {
  const ExperimentPlan tries = TriesOrDie(
      Header() + "variant { mode: \"bsp\" } variant { mode: \"asp\" } " +
      kTwoRates);
  ASSERT_THAT(tries.runs, SizeIs(4));
  const std::vector<TryOutcome> outcomes = {{State::kFinished, 0.5, 1},
                                            {State::kFinished, 0.75, 1},
                                            {State::kFinished, 0.5, 1},
                                            {State::kFinished, 0.25, 1}};
  EXPECT_THAT(Tune(tries, outcomes, 2).Chosen(),
              ElementsAre(AxisValues{{"rate_factor", "2"}},
                          AxisValues{{"rate_factor", "0.5"}}));
}

// ---- Ablations --------------------------------------------------------------

TEST_F(TuneTest, AnAblationTunesByFlags) {
  AblationOptions options;
  options.base = folder_.File("base.textproto");
  options.over = {"mode=bsp,asp"};
  options.seeds = {1, 2};
  options.tune = {"rate_factor=0.5,1", "train.epochs=1,2"};
  options.tune_seeds = *ParseSeeds("--tune-seeds", "2", kFirstTuneSeed);
  options.tune_sets = {"data.batch_size=5"};
  const auto source = MakeAblation(options);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto tries = ExpandTries(*source);
  ASSERT_TRUE(tries.ok()) << tries.status();
  EXPECT_THAT(tries->runs, SizeIs(16));
  EXPECT_EQ(tries->runs.back().seed, 1002);
  EXPECT_EQ(tries->runs[0].config.data().batch_size(), 5);
}

TEST_F(TuneTest, ProblemsNameTheFlag) {
  AblationOptions options;
  options.base = folder_.File("base.textproto");
  options.over = {"mode=bsp"};
  options.seeds = {1};
  const auto error = [&] {
    return std::string(MakeAblation(options).status().message());
  };
  options.tune = {"rate_factor"};
  EXPECT_THAT(error(), StartsWith("--tune rate_factor: is not of the form"));
  options.tune = {"mode=asp"};
  EXPECT_THAT(error(),
              StartsWith("--tune mode=asp: tune.over[0].field: 'mode' has an "
                         "axis already"));
  options.tune = {};
  options.tune_seeds = {7};
  EXPECT_THAT(error(), StartsWith("--tune-seeds: is for --tune"));
  options.tune = {"rate_factor=1,2"};
  options.tune_seeds = {1};
  const auto source = MakeAblation(options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(std::string(ExpandTries(*source).status().message()),
              StartsWith("--tune-seeds: tune.seed[0]: value is 1"));
}

}  // namespace slackline::tune_test
