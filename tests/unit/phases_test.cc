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

namespace slackline {
namespace {

constexpr Clock kNone = std::numeric_limits<Clock>::min();
constexpr Clock kStaleness = 3;
constexpr Clock kStalenessMax = 7;  // Of DSSP.
const std::vector<wire::Mode> kModes = {
    wire::BSP, wire::SSP, wire::ASP, wire::ALLREDUCE, wire::DSSP, wire::BACKUP};

void AddPhase(wire::Mode mode, Clock from, wire::View* view) {
  wire::Phase& phase = *view->add_phase();
  phase.set_mode(mode);
  phase.set_from(from);
  if (mode == wire::SSP || mode == wire::DSSP) phase.set_staleness(kStaleness);
  if (mode == wire::DSSP) phase.set_staleness_max(kStalenessMax);
  if (mode == wire::BACKUP) phase.set_backups(1);
}

// ASP, from 10 on BSP, from 11 on SSP.
wire::View ThreePhases() {
  wire::View view;
  AddPhase(wire::ASP, 0, &view);
  AddPhase(wire::BSP, 10, &view);
  AddPhase(wire::SSP, 11, &view);
  return view;
}

TEST(PhasesTest, AClockObeysTheLastPhaseThatHasBegun) {
  const wire::View view = ThreePhases();
  EXPECT_EQ(PhaseAt(view, 0).mode(), wire::ASP);
  EXPECT_EQ(PhaseAt(view, 9).mode(), wire::ASP);
  EXPECT_EQ(PhaseAt(view, 10).mode(), wire::BSP);
  EXPECT_EQ(PhaseAt(view, 11).mode(), wire::SSP);
  EXPECT_EQ(PhaseAt(view, 1000).mode(), wire::SSP);
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
Clock NeededIn(wire::Mode mode, Clock clock) {
  if (mode == wire::SSP || mode == wire::DSSP) return clock - kStaleness;
  if (mode == wire::ASP || mode == wire::BACKUP) return kNone;
  return clock;
}

TEST(PhasesTest, TheFirstPhaseAsksForWhatItsModeDoes) {
  for (const wire::Mode mode : kModes) {
    wire::View view;
    AddPhase(mode, 0, &view);
    for (const Clock clock : {0, 1, 50}) {
      EXPECT_EQ(NeededClock(view, clock), NeededIn(mode, clock))
          << wire::Mode_Name(mode) << ", clock " << clock;
    }
  }
}

struct Pair {
  wire::Mode before;
  wire::Mode after;
};
class NeededClockTest : public ::testing::TestWithParam<Pair> {
 protected:
  static constexpr Clock kFrom = 20;
  wire::View view_ = [] {
    wire::View view;
    AddPhase(GetParam().before, 0, &view);
    AddPhase(GetParam().after, kFrom, &view);
    return view;
  }();
};

TEST_P(NeededClockTest, BeforeTheChangeItIsThatOfTheOldMode) {
  for (const Clock clock : {Clock{0}, Clock{5}, kFrom - 1})
    EXPECT_EQ(NeededClock(view_, clock), NeededIn(GetParam().before, clock));
}

TEST_P(NeededClockTest, AfterASynchronousModeAllMustHaveReachedTheChange) {
  const bool after_sync =
      GetParam().before == wire::BSP || GetParam().before == wire::ALLREDUCE;
  for (Clock clock = kFrom; clock < kFrom + 3 * kStaleness; ++clock) {
    const Clock own = NeededIn(GetParam().after, clock);
    EXPECT_EQ(NeededClock(view_, clock),
              after_sync && own < kFrom ? kFrom : own)
        << "clock " << clock;
  }
}

TEST_P(NeededClockTest, WhatIsGrantedReachesToTheLargestBoundOfDsspOnly) {
  if (GetParam().before == wire::BSP || GetParam().before == wire::ALLREDUCE)
    return;
  for (const Clock clock : {kFrom, kFrom + 5}) {
    EXPECT_EQ(NeededClock(view_, clock, /*granted=*/true),
              GetParam().after == wire::DSSP
                  ? clock - kStalenessMax
                  : NeededIn(GetParam().after, clock));
  }
}

TEST_P(NeededClockTest, ClocksOfBackupMustBeCompleteInItAndWhereItEnds) {
  const bool before = GetParam().before == wire::BACKUP;
  const bool after = GetParam().after == wire::BACKUP;
  EXPECT_EQ(NeededCompleteClock(view_, 5), before ? 5 : 0);
  EXPECT_EQ(NeededCompleteClock(view_, kFrom), before || after ? kFrom : 0);
  EXPECT_EQ(NeededCompleteClock(view_, kFrom + 4), after    ? kFrom + 4
                                                   : before ? kFrom
                                                            : 0);
}

TEST_P(NeededClockTest, OnlyThePhaseJustBeforeCounts) {
  AddPhase(wire::ASP, kFrom + 30, &view_);
  AddPhase(wire::ASP, kFrom + 60, &view_);
  EXPECT_EQ(NeededClock(view_, kFrom + 60), kNone);
}

std::vector<Pair> AllPairs() {
  std::vector<Pair> pairs;
  for (const wire::Mode before : kModes) {
    for (const wire::Mode after : kModes) pairs.push_back({before, after});
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(AllPairs, NeededClockTest,
                         ::testing::ValuesIn(AllPairs()), [](const auto& info) {
                           return absl::StrCat(
                               wire::Mode_Name(info.param.before), "Then",
                               wire::Mode_Name(info.param.after));
                         });

}  // namespace
}  // namespace slackline
