// Goal: a mode keeps its parameters on its way through config and text, and one
// that cannot be is named.
// Method: each mode with values of its own.
#include "common/sync/modes/mode.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/sync_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cluster.pb.h"
#include "tests/support/modes.h"

namespace slackline::mode_test {

using ::testing::HasSubstr;

const std::vector<std::string> kTexts = {"bsp",       "ssp:3",    "asp",
                                         "allreduce", "dssp:2:9", "backup:4"};

TEST(ModeTest, TextIsWhatTheModeFlagTakes) {
  for (const std::string& text : kTexts)
    EXPECT_EQ(ModeText(ModeOf(text)), text);
  EXPECT_EQ(ModeText(ModeOf("ssp")), "ssp:3");
  EXPECT_EQ(ModeText(ModeOf("dssp")), "dssp:3:15");
  EXPECT_EQ(ModeText(ModeOf("backup")), "backup:1");
  EXPECT_EQ(ModeText(sync::Mode()), "unknown");
  for (const char* text : {"", "auto", "ssp:", "ssp:-1", "dssp:3", "dssp:4:3",
                           "ssp:99999999999", "bsp:1"}) {
    EXPECT_FALSE(ModeFromText(text).has_value()) << text;
  }
}

TEST(ModeTest, OnlyBoundsMakeTheOthersWaitForTheSlowest) {
  for (const char* const text : {"bsp", "ssp:3", "dssp:2:9", "allreduce"})
    EXPECT_TRUE(RuleOf(ModeOf(text)).waits_for_slowest()) << text;
  for (const char* const text : {"asp", "backup:4"})
    EXPECT_FALSE(RuleOf(ModeOf(text)).waits_for_slowest()) << text;
  EXPECT_FALSE(DelaysRule().waits_for_slowest());
}

TEST(ModeTest, ADefaultThatIsWrittenOutMakesNoDifference) {
  sync::Mode left_out;
  left_out.mutable_ssp();
  EXPECT_TRUE(SameMode(left_out, ModeOf("ssp:3")));
  EXPECT_FALSE(SameMode(left_out, ModeOf("ssp:2")));
  EXPECT_FALSE(SameMode(ModeOf("bsp"), ModeOf("asp")));
}

TEST(ModeTest, AConfigNamesItsMode) {
  config::Sync sync;
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "bsp");
  sync.mutable_ssp()->set_staleness(5);
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "ssp:5");
  sync.mutable_dssp();
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "dssp:3:15");
  sync.mutable_backup();
  EXPECT_EQ(ModeText(ConfiguredMode(sync)), "backup:1");
  config::Phase phase;
  phase.mutable_asp();
  EXPECT_EQ(ModeText(ConfiguredMode(phase)), "asp");
  phase.mutable_allreduce();
  EXPECT_EQ(ModeText(ConfiguredMode(phase)), "allreduce");
}

TEST(ModeTest, EveryModeHasARuleABlockInTheConfigAndAText) {
  const google::protobuf::OneofDescriptor& kinds =
      *sync::Mode::descriptor()->FindOneofByName("kind");
  ASSERT_EQ(kinds.field_count(), static_cast<int>(AllRules().size()));
  for (int i = 0; i < kinds.field_count(); ++i) {
    const ModeRule* const rule = FindRule(kinds.field(i)->name());
    ASSERT_NE(rule, nullptr) << kinds.field(i)->name();
    SCOPED_TRACE(rule->name());
    ASSERT_EQ(static_cast<int>(rule->kind()), kinds.field(i)->number());
    if (rule->is_of_whole_job()) continue;  // Below: --mode has no such text.
    EXPECT_EQ(kinds.field(i)->message_type()->field_count(),
              static_cast<int>(rule->parameters().size()))
        << "each parameter is in the text";
    std::string text = rule->name();
    for (size_t value = 4; value < 4 + rule->parameters().size(); ++value)
      absl::StrAppend(&text, ":", value);
    const sync::Mode mode = ModeOf(text);
    EXPECT_EQ(ModeText(mode), text);
    EXPECT_EQ(&RuleOf(mode), rule);
    config::Sync sync;
    PutConfiguredMode(mode, &sync);
    EXPECT_TRUE(SameMode(ConfiguredMode(sync), mode));
    config::Phase phase;
    PutConfiguredMode(mode, &phase);
    EXPECT_TRUE(SameMode(ConfiguredMode(phase), mode));
  }
}

// Somebody has the model at each clock, and gradients go where it is.
TEST(ModeTest, OnlyAllReduceLeavesTheServersOut) {
  for (const ModeRule* const rule : AllRules()) {
    SCOPED_TRACE(rule->name());
    const StepKind step = rule->StepOf(7);
    EXPECT_EQ(step == StepKind::kAllReduce,
              rule->kind() == sync::Mode::kAllreduce);
    EXPECT_EQ(PushesGradients(step), !WorkersHaveModel(step));
    EXPECT_EQ(IsDoneTogether(step), WorkersHaveModel(step));
  }
}

TEST(ModeTest, OnlyGivenDelaysAreOfAWholeJobAndGiveAPullItsTurn) {
  for (const ModeRule* const rule : AllRules()) {
    SCOPED_TRACE(rule->name());
    const bool given = rule->kind() == sync::Mode::kDelays;
    EXPECT_EQ(rule->is_of_whole_job(), given);
    EXPECT_EQ(rule->whole_job().job, given ? "a job with given delays" : "");
    EXPECT_EQ(rule->NeedsOf(sync::Mode(), 7).turn, given);
    EXPECT_FALSE(rule->NeedsAfter(7).turn);
    sync::Mode mode;
    mode.mutable_delays()->set_given("uniform:8");
    EXPECT_EQ(rule->GivenDelaysOf(mode), given ? "uniform:8" : "");
  }
}

TEST(ModeTest, StepsAreTogetherWhereEachModeOfTheConfigHasAllWait) {
  const auto together = [](const std::vector<std::string>& modes) {
    config::Sync sync;
    if (modes.size() == 1) PutConfiguredMode(ModeOf(modes[0]), &sync);
    for (size_t i = 0; i < modes.size() && modes.size() > 1; ++i)
      PutConfiguredMode(ModeOf(modes[i]), sync.add_phase());
    return StepsTogether(sync);
  };
  EXPECT_TRUE(StepsTogether(config::Sync())) << "it is BSP";
  EXPECT_TRUE(together({"bsp"}));
  EXPECT_TRUE(together({"allreduce"}));
  EXPECT_TRUE(together({"bsp", "allreduce"}));
  for (const char* const text : {"ssp:3", "asp", "dssp:2:9", "backup:1"}) {
    EXPECT_FALSE(together({text})) << text;
    EXPECT_FALSE(together({"bsp", text})) << text;
  }
  config::Sync policy;
  policy.mutable_auto_();
  EXPECT_FALSE(StepsTogether(policy));
  config::Sync delays;
  delays.mutable_delays();
  EXPECT_FALSE(StepsTogether(delays));
}

TEST(ModeTest, GivenDelaysAreShownAndAreNoModeToChangeTo) {
  config::Sync sync;
  sync.mutable_delays()->set_given("uniform:8");
  const sync::Mode mode = ConfiguredMode(sync);
  EXPECT_EQ(&RuleOf(mode), &DelaysRule());
  EXPECT_EQ(ModeText(mode), "delays:uniform:8");
  EXPECT_EQ(WhyNoMode(mode, /*workers=*/5), "");
  config::Sync put;
  PutConfiguredMode(mode, &put);
  EXPECT_TRUE(SameMode(ConfiguredMode(put), mode));
  for (const char* text : {"delays", "delays:uniform:8", "delays:3"})
    EXPECT_FALSE(ModeFromText(text).has_value()) << text;
  sync.mutable_delays()->set_given("uniform:x/");
  EXPECT_EQ(WhyNoMode(ConfiguredMode(sync), 5), "") << "a folder";
  sync.mutable_delays()->set_given("even:8");
  EXPECT_THAT(WhyNoMode(ConfiguredMode(sync), 5),
              HasSubstr("delays:even:8: given: "));
  sync.mutable_delays()->clear_given();
  EXPECT_THAT(WhyNoMode(ConfiguredMode(sync), 5),
              HasSubstr("given: is missing"));
}

TEST(ModeTest, WhatIsWithinBoundsIsAMode) {
  for (const std::string& text : kTexts)
    EXPECT_EQ(WhyNoMode(ModeOf(text), /*workers=*/5), "");
}

TEST(ModeTest, WhatIsOutOfBoundsIsNamed) {
  EXPECT_EQ(WhyNoMode(ModeOf("ssp:1000001"), 4),
            "ssp:1000001: staleness: value is 1000001; 0 to 1000000 is "
            "required; for no bound use asp");
  sync::Mode below;
  below.mutable_dssp()->set_min_staleness(0);
  below.mutable_dssp()->set_max_staleness(-1);
  EXPECT_EQ(
      WhyNoMode(below, 4),
      "dssp:0:-1: max_staleness: value is -1; 0 to 1000000 is required; for no "
      "bound use asp");
  EXPECT_EQ(WhyNoMode(ModeOf("backup:4"), 4),
            "backup:4: workers: value is 4; 1 to 3 is required; there "
            "are 4 workers");
  EXPECT_EQ(WhyNoMode(ModeOf("backup:1"), 1),
            "backup:1: workers: there is 1 worker; at least 2 are "
            "required, of which one may be late");
}

TEST(ModeTest, NoModeIsNamedAndHasTheRuleOfBsp) {
  EXPECT_THAT(WhyNoMode(sync::Mode(), 4), HasSubstr("no mode is set"));
  EXPECT_EQ(&RuleOf(sync::Mode()), &BspRule());
}

}  // namespace slackline::mode_test
