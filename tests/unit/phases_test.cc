// Goal: which phase a clock obeys, and what a pull of it waits for, for every
// pair of modes.
// Method: a list of phases for each pair, and clocks on both sides of the
// change.
#include "common/sync/phases.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::phases_test {

constexpr Clock kNone = std::numeric_limits<Clock>::min();
constexpr Clock kStaleness = 3;
constexpr Clock kStalenessMax = 7;  // Of DSSP.
const std::vector<std::string> kModes = {"bsp",       "ssp:3",    "asp",
                                         "allreduce", "dssp:3:7", "backup:1"};

void AddPhase(const std::string& mode, Clock from, wire::View* view) {
  wire::Phase& phase = *view->add_phase();
  *phase.mutable_mode() = ModeOf(mode);
  phase.set_from(from);
}

// ASP, from 10 on BSP, from 11 on SSP.
wire::View ThreePhases() {
  wire::View view;
  AddPhase("asp", 0, &view);
  AddPhase("bsp", 10, &view);
  AddPhase("ssp:3", 11, &view);
  return view;
}

TEST(PhasesTest, AClockObeysTheLastPhaseThatHasBegun) {
  const wire::View view = ThreePhases();
  EXPECT_TRUE(PhaseAt(view, 0).mode().has_asp());
  EXPECT_TRUE(PhaseAt(view, 9).mode().has_asp());
  EXPECT_TRUE(PhaseAt(view, 10).mode().has_bsp());
  EXPECT_TRUE(PhaseAt(view, 11).mode().has_ssp());
  EXPECT_TRUE(PhaseAt(view, 1000).mode().has_ssp());
}

TEST(PhasesTest, AStepIsWhatTheModeOfItsPhaseSays) {
  wire::View view = ThreePhases();
  AddPhase("allreduce", 20, &view);
  EXPECT_EQ(StepAt(view, 19), StepKind::kOverServers);
  EXPECT_EQ(StepAt(view, 20), StepKind::kAllReduce);
  EXPECT_EQ(FirstStepOf(view.phase(2)), StepKind::kOverServers);
  EXPECT_EQ(FirstStepOf(view.phase(3)), StepKind::kAllReduce);
}

TEST(PhasesTest, ThePhaseAfterAClockIsTheNextOneOfItsPhase) {
  const wire::View view = ThreePhases();
  EXPECT_EQ(PhaseAfter(view, 0), &view.phase(1));
  EXPECT_EQ(PhaseAfter(view, 9), &view.phase(1));
  EXPECT_EQ(PhaseAfter(view, 10), &view.phase(2));
  EXPECT_EQ(PhaseAfter(view, 11), nullptr);
}

TEST(PhasesDeathTest, AClockThatNoPhaseHasIsABug) {
  EXPECT_DEATH(PhaseAt(wire::View(), 0), "a view without phases");
  EXPECT_DEATH(PhaseAt(ThreePhases(), -1), "a clock below 0");
}

// What `mode` alone asks for.
Clock NeededIn(const std::string& mode, Clock clock) {
  if (mode == "ssp:3" || mode == "dssp:3:7") return clock - kStaleness;
  if (mode == "asp" || mode == "backup:1") return kNone;
  return clock;
}

TEST(PhasesTest, TheFirstPhaseAsksForWhatItsModeDoes) {
  for (const std::string& mode : kModes) {
    wire::View view;
    AddPhase(mode, 0, &view);
    for (const Clock clock : {0, 1, 50}) {
      EXPECT_EQ(NeedsAt(view, clock).of_all, NeededIn(mode, clock))
          << mode << ", clock " << clock;
    }
  }
}

struct Pair {
  std::string before;
  std::string after;
};
class NeedsTest : public ::testing::TestWithParam<Pair> {
 protected:
  static constexpr Clock kFrom = 20;
  wire::View view_ = [] {
    wire::View view;
    AddPhase(GetParam().before, 0, &view);
    AddPhase(GetParam().after, kFrom, &view);
    return view;
  }();
};

TEST_P(NeedsTest, BeforeTheChangeItIsThatOfTheOldMode) {
  for (const Clock clock : {Clock{0}, Clock{5}, kFrom - 1})
    EXPECT_EQ(NeedsAt(view_, clock).of_all, NeededIn(GetParam().before, clock));
}

TEST_P(NeedsTest, AfterASynchronousModeAllMustHaveReachedTheChange) {
  const bool after_sync =
      GetParam().before == "bsp" || GetParam().before == "allreduce";
  for (Clock clock = kFrom; clock < kFrom + 3 * kStaleness; ++clock) {
    const Clock own = NeededIn(GetParam().after, clock);
    EXPECT_EQ(NeedsAt(view_, clock).of_all,
              after_sync && own < kFrom ? kFrom : own)
        << "clock " << clock;
  }
}

TEST_P(NeedsTest, WhatIsGrantedReachesToTheLargestBoundOfDsspOnly) {
  if (GetParam().before == "bsp" || GetParam().before == "allreduce") return;
  for (const Clock clock : {kFrom, kFrom + 5}) {
    EXPECT_EQ(NeedsAt(view_, clock, /*granted=*/true).of_all,
              GetParam().after == "dssp:3:7"
                  ? clock - kStalenessMax
                  : NeededIn(GetParam().after, clock));
  }
}

TEST_P(NeedsTest, ClocksOfBackupMustBeCompleteInItAndWhereItEnds) {
  const bool before = GetParam().before == "backup:1";
  const bool after = GetParam().after == "backup:1";
  EXPECT_EQ(NeedsAt(view_, 5).complete, before ? 5 : 0);
  EXPECT_EQ(NeedsAt(view_, kFrom).complete, before || after ? kFrom : 0);
  EXPECT_EQ(NeedsAt(view_, kFrom + 4).complete, after    ? kFrom + 4
                                                : before ? kFrom
                                                         : 0);
}

TEST_P(NeedsTest, OnlyThePhaseJustBeforeCounts) {
  AddPhase("asp", kFrom + 30, &view_);
  AddPhase("asp", kFrom + 60, &view_);
  EXPECT_EQ(NeedsAt(view_, kFrom + 60).of_all, kNone);
}

std::vector<Pair> AllPairs() {
  std::vector<Pair> pairs;
  for (const std::string& before : kModes) {
    for (const std::string& after : kModes) pairs.push_back({before, after});
  }
  return pairs;
}

// "ssp" of "ssp:3".
std::string NameOf(const std::string& mode) {
  return mode.substr(0, mode.find(':'));
}

INSTANTIATE_TEST_SUITE_P(AllPairs, NeedsTest, ::testing::ValuesIn(AllPairs()),
                         [](const auto& info) {
                           return absl::StrCat(NameOf(info.param.before),
                                               "Then",
                                               NameOf(info.param.after));
                         });

TEST(PhasesTest, GivenDelaysGiveTurnsFromTheirFirstClockOn) {
  wire::View view;
  AddPhase("allreduce", 0, &view);
  EXPECT_EQ(GivenDelaysPhase(view), nullptr);
  wire::Phase& given = *view.add_phase();
  given.mutable_mode()->mutable_delays()->set_given("uniform:8");
  given.set_from(1);
  EXPECT_EQ(GivenDelaysPhase(view), &view.phase(1));
  EXPECT_FALSE(NeedsAt(view, 0).turn);
  EXPECT_TRUE(NeedsAt(view, 1).turn);
  EXPECT_EQ(NeedsAt(view, 1).of_all, 1) << "what the phase before leaves";
  EXPECT_TRUE(NeedsAt(view, 9).turn);
}

TEST(PhasesTest, APhaseOfNoKnownModeAsksForWhatBspDoes) {
  wire::View view;
  view.add_phase();
  EXPECT_EQ(NeedsAt(view, 5).of_all, 5);
  EXPECT_EQ(NeedsAt(view, 5, /*granted=*/true).of_all, 5);
}

}  // namespace slackline::phases_test
