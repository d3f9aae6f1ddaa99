// Goal: each rule for stale gradients is its published formula.
// Method: small cases written out by hand; the numbers are chosen to be exact
// in float where that is possible.
#include "common/optim/stale/stale_rule.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace slackline::stale_rule_test {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

StaleRule Rule(const std::string& text) {
  config::StaleGradients config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  absl::StatusOr<StaleRule> rule = StaleRule::Create(config);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return *rule;
}

std::string ErrorOf(const std::string& text) {
  config::StaleGradients config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return std::string(StaleRule::Create(config).status().message());
}

class StaleRuleTest : public ::testing::Test {
 protected:
  StaleRule::Verdict Judge(const StaleRule& rule, int64_t missed,
                           bool base_known = true) {
    return rule.Judge(
        {.gradient = reinterpret_cast<const std::byte*>(gradient_.data()),
         .elements = gradient_.size(),
         .now = now_.data(),
         .then = base_known ? then_.data() : nullptr,
         .missed_updates = missed,
         .workers = 4,
         .maximize = maximize_},
        &memory_);
  }
  static std::vector<float> Floats(const StaleRule::Verdict& verdict) {
    const auto* const data =
        reinterpret_cast<const float*>(verdict.gradient.data());
    return {data, data + verdict.gradient.size() / sizeof(float)};
  }

  std::vector<float> gradient_ = {2, -1, 4};
  std::vector<float> now_ = {1, 2, 3};
  std::vector<float> then_ = {0.5, 2, 3.25};  // Moved by 0.5, 0, -0.25.
  bool maximize_ = false;
  StaleRule::Memory memory_;
};

TEST_F(StaleRuleTest, WithoutARuleTheGradientStaysAsItIs) {
  const StaleRule::Verdict verdict = Judge(StaleRule(), 100);
  EXPECT_FALSE(verdict.drop);
  EXPECT_TRUE(verdict.gradient.empty());
  EXPECT_EQ(verdict.rate_factor, 1);
}

TEST_F(StaleRuleTest, ScaleDividesByOnePlusTheDelayInClocks) {
  // tau / W = 12 / 4 = 3, so a quarter.
  EXPECT_THAT(Floats(Judge(Rule("scale {}"), 12)), ElementsAre(0.5, -0.25, 1));
  EXPECT_TRUE(Judge(Rule("scale {}"), 0).gradient.empty());
}

TEST_F(StaleRuleTest, StalenessAwareRateDividesByTauInPlaceOfTheWorkers) {
  const StaleRule rule = Rule("staleness_aware_rate {}");
  EXPECT_EQ(Judge(rule, 8).rate_factor, 0.5);  // r / 4 * 0.5 = r / 8.
  EXPECT_EQ(Judge(rule, 2).rate_factor, 2);
  EXPECT_EQ(Judge(rule, 0).rate_factor, 4);  // At most the whole rate.
  EXPECT_TRUE(Judge(rule, 8).gradient.empty());
}

TEST_F(StaleRuleTest, GapAwareDividesByTheGapInUsualSteps) {
  const StaleRule rule = Rule("gap_aware { decay: 0.75 }");
  // Before any update has shown how far one goes.
  EXPECT_TRUE(Judge(rule, 4).gradient.empty());
  const std::vector<float> before = {0, 0, 0};
  const std::vector<float> first = {0.5, 0, -0.25};
  rule.Updated(before.data(), first.data(), 3, &memory_);
  EXPECT_THAT(memory_.mean, ElementsAre(0.5, 0, 0.25));
  // 0.75 * 0.5 + 0.25 * 0.5, 0, 0.75 * 0.25 + 0.25 * 0.25.
  rule.Updated(before.data(), first.data(), 3, &memory_);
  EXPECT_THAT(memory_.mean, ElementsAre(0.5, 0, 0.25));
  // 2 / (1 + 0.5 / 0.5), -1 as nothing has moved it, 4 / (1 + 0.25 / 0.25).
  EXPECT_THAT(Floats(Judge(rule, 4)), ElementsAre(1, -1, 2));
  const std::vector<float> second = {1.5, 0, 0};
  rule.Updated(first.data(), second.data(), 3, &memory_);
  // 0.75 * 0.5 + 0.25 * 1 = 0.625: 2 / (1 + 0.8).
  EXPECT_THAT(Floats(Judge(rule, 4))[0], FloatNear(2 / 1.8F, 1e-6));
}

// What is maximized is minus a loss with minus its gradients: the compensated
// gradient is minus that of the loss.
TEST_F(StaleRuleTest, DelayCompensationOfWhatIsMaximizedHasTheOtherSign) {
  for (const char* const rule :
       {"delay_compensation { lambda: 0.5 }",
        "adaptive_delay_compensation { lambda: 0.5 decay: 0.75 }"}) {
    maximize_ = false;
    memory_ = {};
    gradient_ = {2, -1, 4};
    std::vector<float> of_loss = Floats(Judge(Rule(rule), 1));
    for (float& value : of_loss) value = -value;
    maximize_ = true;
    memory_ = {};
    gradient_ = {-2, 1, -4};
    EXPECT_EQ(Floats(Judge(Rule(rule), 1)), of_loss) << rule;
  }
}

TEST_F(StaleRuleTest, DelayCompensationAddsTheFirstOrderTerm) {
  // 2 + 0.5 * 4 * 0.5; -1 + 0; 4 + 0.5 * 16 * -0.25.
  EXPECT_THAT(Floats(Judge(Rule("delay_compensation { lambda: 0.5 }"), 1)),
              ElementsAre(3, -1, 2));
}

TEST_F(StaleRuleTest, AdaptiveCompensationDividesLambdaByTheRootMeanSquare) {
  const StaleRule rule =
      Rule("adaptive_delay_compensation { lambda: 0.5 decay: 0.75 }");
  // The mean square begins with g g, so its root is |g|:
  // 2 + 0.5 / 2 * 4 * 0.5; -1; 4 + 0.5 / 4 * 16 * -0.25.
  const std::vector<float> first = Floats(Judge(rule, 1));
  EXPECT_THAT(first, ElementsAre(FloatNear(2.5, 1e-6), FloatNear(-1, 1e-6),
                                 FloatNear(3.5, 1e-6)));
  gradient_ = {4, 0, 4};
  // m = 0.75 * 4 + 0.25 * 16 = 7; 0.75 * 1 = 0.75; 16.
  const std::vector<float> second = Floats(Judge(rule, 1));
  EXPECT_THAT(second,
              ElementsAre(FloatNear(4 + 0.5F / std::sqrt(7.F) * 8, 1e-5),
                          FloatNear(0, 1e-6), FloatNear(3.5, 1e-5)));
}

TEST_F(StaleRuleTest, WithoutTheBaseNothingIsCompensated) {
  EXPECT_TRUE(Judge(Rule("delay_compensation {}"), 3, false).gradient.empty());
  EXPECT_THAT(Floats(Judge(Rule("adaptive_delay_compensation {}"), 3, false)),
              ElementsAre(2, -1, 4));
}

TEST_F(StaleRuleTest, DropsOnlyBeyondTheLimit) {
  const StaleRule rule = Rule("drop { beyond_clocks: 2 }");
  EXPECT_FALSE(Judge(rule, 8).drop);
  EXPECT_TRUE(Judge(rule, 9).drop);
}

TEST_F(StaleRuleTest, TheFirstEntryThatNamesATableCounts) {
  config::Sync sync;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "stale { table: 'mlp.0.*' drop { beyond_clocks: 0 } } "
      "stale { scale {} }",
      &sync));
  const absl::StatusOr<StaleRules> rules = StaleRules::Create(sync);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_TRUE(Judge(rules->For("mlp.0.weight"), 4).drop);
  EXPECT_THAT(Floats(Judge(rules->For("mlp.1.weight"), 4)),
              ElementsAre(1, -0.5, 2));
  EXPECT_TRUE(rules->CheckTables({"mlp.0.weight", "mlp.0.bias"}).ok());
  EXPECT_THAT(std::string(rules->CheckTables({"fc.weight"}).message()),
              HasSubstr("sync.stale[0].table: \"mlp.0.*\" fits no table of the "
                        "model; they are fc.weight"));
}

TEST_F(StaleRuleTest, WrongNumbersAreRefusedByName) {
  EXPECT_THAT(ErrorOf("gap_aware { decay: 1 }"),
              HasSubstr("gap_aware.decay: value is 1; at least 0 and below 1"));
  EXPECT_THAT(ErrorOf("delay_compensation { lambda: -1 }"),
              HasSubstr("delay_compensation.lambda: value is -1; at least 0"));
  EXPECT_THAT(ErrorOf("drop {}"), HasSubstr("drop.beyond_clocks: is missing"));
  EXPECT_THAT(ErrorOf("table: 'a'"), HasSubstr("has no rule; one of scale"));
}

}  // namespace slackline::stale_rule_test
