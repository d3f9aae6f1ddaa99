// Goal: the factor at each clock is the one that proto/cluster.proto describes.
// Method: jobs short enough to write every factor out.
#include "common/optim/schedule.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace slackline::schedule_test {

using ::testing::HasSubstr;
using ::testing::Pointwise;

config::LearningRateSchedule Parse(const std::string& text) {
  config::LearningRateSchedule config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config))
      << text;
  return config;
}

// The factors of clocks 0, 1, ... clocks - 1.
std::vector<double> Factors(const std::string& text,
                            const LearningRateSchedule::JobLength& length,
                            Clock clocks) {
  const auto schedule = LearningRateSchedule::Create(Parse(text), length);
  SL_CHECK(schedule.ok(), schedule.status().ToString());
  std::vector<double> factors;
  for (Clock clock = 0; clock < clocks; ++clock) {
    factors.push_back(schedule->FactorAt(clock));
  }
  return factors;
}

MATCHER(SameFactor, "") {
  return std::fabs(std::get<0>(arg) - std::get<1>(arg)) <= 1e-15;
}

void ExpectFactors(const std::vector<double>& actual,
                   const std::vector<double>& expected) {
  EXPECT_THAT(actual, Pointwise(SameFactor(), expected));
}

TEST(LearningRateScheduleTest, IsConstantWhenNothingIsSet) {
  ExpectFactors(Factors("", {.steps_total = 3, .steps_per_epoch = 2}, 4),
                {1, 1, 1, 1});
  ExpectFactors(
      Factors("constant {}", {.steps_total = 3, .steps_per_epoch = 2}, 4),
      {1, 1, 1, 1});
}

TEST(LearningRateScheduleTest, WarmUpRisesLinearlyToOne) {
  ExpectFactors(
      Factors("warmup_steps: 4", {.steps_total = 6, .steps_per_epoch = 2}, 6),
      {0.25, 0.5, 0.75, 1, 1, 1});
}

TEST(LearningRateScheduleTest, WarmUpMayBeLongerThanTheJob) {
  ExpectFactors(Factors("warmup_steps: 4 cosine {}",
                        {.steps_total = 2, .steps_per_epoch = 2}, 5),
                {0.25, 0.5, 0.75, 1, 1});
}

TEST(LearningRateScheduleTest, StepMultipliesAfterEachPeriod) {
  ExpectFactors(Factors("step { every_epochs: 1 factor: 0.5 }",
                        {.steps_total = 6, .steps_per_epoch = 2}, 7),
                {1, 1, 0.5, 0.5, 0.25, 0.25, 0.125});
}

TEST(LearningRateScheduleTest, StepTakesPartsOfEpochs) {
  // Periods of 1.5 steps: they end at 1.5, 3, 4.5 and 6.
  ExpectFactors(Factors("step { every_epochs: 0.5 factor: 0.5 }",
                        {.steps_total = 6, .steps_per_epoch = 3}, 7),
                {1, 1, 0.5, 0.25, 0.25, 0.125, 0.0625});
}

TEST(LearningRateScheduleTest, StepPeriodIsNotLengthenedByRounding) {
  // 0.55 * 100 is 55.000000000000007 in double.
  const std::vector<double> factors =
      Factors("step { every_epochs: 0.55 factor: 0.5 }",
              {.steps_total = 100, .steps_per_epoch = 100}, 56);
  EXPECT_EQ(factors[54], 1);
  EXPECT_EQ(factors[55], 0.5);
}

TEST(LearningRateScheduleTest, StepCountsFromTheEndOfTheWarmUp) {
  ExpectFactors(Factors("warmup_steps: 2 step { every_epochs: 1 factor: 0.5 }",
                        {.steps_total = 6, .steps_per_epoch = 2}, 6),
                {0.5, 1, 1, 1, 0.5, 0.5});
}

TEST(LearningRateScheduleTest, CosineFallsToItsFinalFactorAtTheLastStep) {
  ExpectFactors(
      Factors("cosine {}", {.steps_total = 5, .steps_per_epoch = 5}, 5),
      {1, (1 + std::sqrt(0.5)) / 2, 0.5, (1 - std::sqrt(0.5)) / 2, 0});
  ExpectFactors(Factors("cosine { final_factor: 0.2 }",
                        {.steps_total = 3, .steps_per_epoch = 5}, 3),
                {1, 0.6, 0.2});
}

TEST(LearningRateScheduleTest, CosineBeginsAfterTheWarmUp) {
  ExpectFactors(Factors("warmup_steps: 2 cosine {}",
                        {.steps_total = 5, .steps_per_epoch = 5}, 5),
                {0.5, 1, 1, 0.5, 0});
}

TEST(LearningRateScheduleTest, CosineStaysAtItsEndBeyondTheJob) {
  ExpectFactors(Factors("cosine { final_factor: 0.2 }",
                        {.steps_total = 2, .steps_per_epoch = 5}, 4),
                {1, 0.2, 0.2, 0.2});
}

TEST(LearningRateScheduleTest, CosineOfOneStepIsOne) {
  ExpectFactors(
      Factors("cosine {}", {.steps_total = 1, .steps_per_epoch = 1}, 1), {1});
}

TEST(LearningRateScheduleTest, ImpossibleValuesAreRefusedByName) {
  struct Case {
    std::string text;
    LearningRateSchedule::JobLength length;
    std::string message;
  };
  const LearningRateSchedule::JobLength length = {.steps_total = 10,
                                                  .steps_per_epoch = 5};
  const std::vector<Case> cases = {
      {"", {.steps_total = 0, .steps_per_epoch = 5}, "steps_total: value is 0"},
      {"",
       {.steps_total = 1, .steps_per_epoch = 0},
       "steps_per_epoch: value is 0"},
      {"warmup_steps: -1", length, "schedule.warmup_steps: value is -1"},
      {"step {}", length, "schedule.step.every_epochs: is missing"},
      {"step { every_epochs: 0 }", length,
       "schedule.step.every_epochs: value is 0"},
      {"step { every_epochs: 1 factor: -0.1 }", length,
       "schedule.step.factor: value is -0.1"},
      {"step { every_epochs: 1 factor: inf }", length,
       "schedule.step.factor: value is inf"},
      {"cosine { final_factor: 1.5 }", length,
       "schedule.cosine.final_factor: value is 1.5"},
  };
  for (const Case& c : cases) {
    const absl::Status status =
        LearningRateSchedule::Create(Parse(c.text), c.length).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.text;
  }
}

}  // namespace slackline::schedule_test
