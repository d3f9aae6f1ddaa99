// Goal: no fault of network, workers or servers breaks an invariant of the
// design, not while shards move and are split in two, or the mode changes,
// either, and once the faults are over every move, every change and every job
// comes to its end.
// Method: one thread, virtual time. One seed draws cluster, job, faults and
// every later choice, so it alone replays a failure: slackline_sim --seed=N,
// with --modes or --resume for the tests of that name.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/floors.h"
#include "tests/sim/sim_world.h"

namespace slackline::sim {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr size_t kLogLinesShown = 300;

// The end of the event trace, for whoever has to find out why.
std::string Trace(uint64_t seed, bool modes = false) {
  const RunReport report = modes ? RunModesSeed(seed, /*keep_log=*/true)
                                 : RunSeed(seed, /*keep_log=*/true);
  std::string text = absl::StrCat("replay with: slackline_sim --seed=", seed,
                                  modes ? " --modes" : "", "\n");
  const size_t skipped =
      report.log.size() - std::min(report.log.size(), kLogLinesShown);
  absl::StrAppend(&text, skipped, " events before:\n");
  for (size_t i = skipped; i < report.log.size(); ++i) {
    absl::StrAppend(&text, report.log[i], "\n");
  }
  return text;
}

class ClusterSim : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ClusterSim, InvariantsHoldUnderFaultsAndAllEndAfterHeal) {
  RunCounts counts;
  for (uint64_t i = 0; i < kSeedsPerPlainBlock; ++i) {
    const uint64_t seed = GetParam() * kSeedsPerPlainBlock + i;
    const RunReport report = RunSeed(seed, /*keep_log=*/false);
    ASSERT_FALSE(report.violation.has_value())
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what << "\n"
        << report.outcome << "\n"
        << Trace(seed);
    counts.Add(report.counts);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kBlock, counts), IsEmpty());
  // One in 100,000: see Checker::judges_no_more().
  EXPECT_LE(counts.not_judged, counts.runs / 500);
}

INSTANTIATE_TEST_SUITE_P(Blocks, ClusterSim, ::testing::Range<uint64_t>(0, 10));

TEST(FloorsTest, NamesWhatHappenedTooSeldom) {
  RunCounts counts;
  EXPECT_THAT(BelowFloors(SeedRuns::kResumeBlock, counts), SizeIs(9));
  counts.finished = 300;
  counts.resumed = 251;
  counts.resumed_same = 71;
  counts.resumed_given = 16;
  counts.resumed_given_same = 6;
  counts.checker.resumed_waiting = 51;
  counts.checker.resumed_shards = 1001;
  counts.checker.row_resumed = 21;
  counts.workers.resumed_starts = 500;
  EXPECT_THAT(
      BelowFloors(SeedRuns::kResumeBlock, counts),
      ElementsAre("worker.resumed_starts is 500, and has to be more than 500"));
  counts.workers.resumed_starts = 501;
  EXPECT_THAT(BelowFloors(SeedRuns::kResumeBlock, counts), IsEmpty());
  counts.finished = 299;
  EXPECT_THAT(BelowFloors(SeedRuns::kResumeBlock, counts), SizeIs(1));
}

// What BelowFloors() says of a count: "move.ordered.crashes", and 2.
std::pair<std::string, int64_t> NameAndFloor(const std::string& sentence) {
  const std::pair<std::string, std::string> sides =
      absl::StrSplit(sentence, absl::MaxSplits(" is ", 1));
  const std::vector<std::string> words = absl::StrSplit(sides.second, ' ');
  int64_t floor = -1;
  EXPECT_TRUE(absl::SimpleAtoi(words.back(), &floor)) << sentence;
  return {sides.first, floor};
}

// Of each kind of runs: nothing is said once each count is above its floor, and
// one that is not is named, alone.
TEST(FloorsTest, HoldForEachKindOfRuns) {
  for (int i = 0; i <= static_cast<int>(SeedRuns::kTakeOvers); ++i) {
    SCOPED_TRACE(i);
    const auto runs = static_cast<SeedRuns>(i);
    std::map<std::string, int64_t> floors;
    for (const std::string& sentence : BelowFloors(runs, RunCounts()))
      floors.insert(NameAndFloor(sentence));
    EXPECT_THAT(floors, Not(IsEmpty()));
    RunCounts counts;
    counts.Visit([&](const std::string& name, int64_t& count) {
      if (const auto floor = floors.find(name); floor != floors.end())
        count = floor->second + 1;
    });
    EXPECT_THAT(BelowFloors(runs, counts), IsEmpty());
    for (const auto& [name, floor] : floors) {
      RunCounts below = counts;
      below.Visit([&, &name = name](const std::string& other, int64_t& count) {
        count -= other == name ? 1 : 0;
      });
      EXPECT_THAT(
          BelowFloors(runs, below),
          ElementsAre(absl::StrCat(name, " is ", floor,
                                   ", and has to be more than ", floor)));
    }
  }
}

TEST(FloorsTest, StandForEveryStep) {
  const RunCounts counts;
  EXPECT_THAT(
      BelowFloors(SeedRuns::kDeathsInMoves, counts),
      AllOf(Contains("move.ordered.crashes is 0, and has to be more than 2"),
            SizeIs(5 + kMoveSteps)));
  EXPECT_THAT(BelowFloors(SeedRuns::kDeathsInChanges, counts),
              SizeIs(3 + 2 * kPhaseSteps));
}

class ModesSim : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ModesSim, NothingIsLostOrAppliedTwiceAndEveryChangeEnds) {
  RunCounts counts;
  for (uint64_t i = 0; i < kSeedsPerModesBlock; ++i) {
    const uint64_t seed = GetParam() * kSeedsPerModesBlock + i;
    const RunReport report = RunModesSeed(seed, /*keep_log=*/false);
    ASSERT_FALSE(report.violation.has_value())
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what << "\n"
        << report.outcome << "\n"
        << Trace(seed, /*modes=*/true);
    counts.Add(report.counts);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kModesBlock, counts), IsEmpty());
  // One in 100,000: see Checker::judges_no_more().
  EXPECT_LE(counts.not_judged, counts.runs / 500);
}

INSTANTIATE_TEST_SUITE_P(Blocks, ModesSim, ::testing::Range<uint64_t>(0, 11));

class ResumeSim : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ResumeSim, AJobGoesOnFromWhatAnotherHasLeft) {
  RunCounts counts;
  for (uint64_t i = 0; i < kSeedsPerBlock; ++i) {
    const uint64_t seed = GetParam() * kSeedsPerBlock + i;
    const RunReport report = RunResumeSeed(seed, /*keep_log=*/false);
    ASSERT_FALSE(report.violation.has_value())
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what << "\n"
        << report.outcome << "\n"
        << "replay with: slackline_sim --resume --seed=" << seed;
    counts.Add(report.counts);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kResumeBlock, counts), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Blocks, ResumeSim, ::testing::Range<uint64_t>(0, 3));

// As above: too rare for every block.
TEST(ModesSimTest, SomebodyDiesAtEveryStepOfAChange) {
  RunCounts counts;
  for (uint64_t seed = 1'000'000; seed < 1'001'500; ++seed) {
    const RunReport report = RunModesSeed(seed, /*keep_log=*/false);
    ASSERT_FALSE(report.violation.has_value())
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what << "\n"
        << Trace(seed, /*modes=*/true);
    counts.Add(report.counts);
  }
  EXPECT_THAT(BelowFloors(SeedRuns::kDeathsInChanges, counts), IsEmpty());
}

// Crashes and losses at one step are too rare for every block.
TEST(ClusterSimTest, SomebodyDiesAtEveryStepOfAMove) {
  RunCounts counts;
  for (uint64_t seed = 1'000'000; seed < 1'003'000; ++seed) {
    const RunReport report = RunSeed(seed, /*keep_log=*/false);
    ASSERT_FALSE(report.violation.has_value())
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what << "\n"
        << Trace(seed);
    counts.Add(report.counts);
  }
  EXPECT_THAT(BelowFloors(SeedRuns::kDeathsInMoves, counts), IsEmpty());
}

// What each of them broke before it was mended, in a world of losses, cuts and
// crashes alone.
TEST(ClusterSimTest, SeedsThatFoundSomethingPass) {
  const std::map<uint64_t, std::string> seeds = {
      {56, "the coordinator never slept where nothing may move"},
      {1'000'000, "a push was sent again without a shard"},
      {1'000'704, "a shard that had moved on was taken for lost"},
      {1'001'404, "an answer of before a split had the view after it"},
      {1'003'208, "a target got the shard from a source with a newer view"},
      {1'010'549, "moves behind one to a dead server were never ordered"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report = RunSeed(seed, /*keep_log=*/false, Reality());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
}

// Likewise, with all that reality has.
// All that there was before servers kept tables by rows, or before coordinators
// came back: what a seed draws with these is another story.
Reality BeforeRows() {
  Reality reality = Reality::All();
  reality.rows = false;
  return reality;
}
Reality BeforeCoordinators() {
  Reality reality = BeforeRows();
  reality.coordinators = false;
  return reality;
}

TEST(RealitySimTest, SeedsThatFoundSomethingPass) {
  constexpr const char* kPause =
      "a coordinator that had stood still did not read what waited first";
  const std::map<uint64_t, std::string> seeds = {
      {1801, kPause}, {2712, kPause}, {3551, kPause}, {7050, kPause}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report =
        RunSeed(seed, /*keep_log=*/false, BeforeCoordinators());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
  const RunReport report =
      RunModesSeed(8868, /*keep_log=*/false, BeforeCoordinators());
  EXPECT_FALSE(report.violation.has_value())
      << "who joined all-reduce in a later phase was not seen to wait: "
      << report.violation->what;
}

// Steps of copies and of failovers, and what happens to those who do them.
TEST(ReplicasSimTest, SomebodyDiesAtEveryStepOfACopy) {
  RunCounts counts;
  Reality reality;
  reality.replicas = true;
  for (uint64_t seed = 3'000'000; seed < 3'004'000; ++seed) {
    const RunReport report = RunSeed(seed, /*keep_log=*/false, reality);
    ASSERT_FALSE(report.violation.has_value())
        << "slackline_sim --with=replicas --seed=" << seed << ": "
        << InvariantName(report.violation->invariant) << ": "
        << report.violation->what;
    counts.Add(report.counts);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kDeathsInCopies, counts), IsEmpty());
}

// Both, at once, so that what is lost with server 0 is seen, too.
Scenario WithCoordinator(Scenario scenario) {
  Reality reality;
  reality.coordinators = reality.replicas = true;
  scenario.Widen(reality);
  scenario.recovers = true;
  return scenario;
}

// Ends the test, if it breaks an invariant.
void RunWell(uint64_t seed, const Scenario& scenario, RunCounts* counts) {
  const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
  ASSERT_FALSE(report.violation.has_value())
      << "seed " << seed << ": " << InvariantName(report.violation->invariant)
      << ": " << report.violation->what;
  counts->Add(report.counts);
}

// Of a MoveFault or a PhaseFault: the coordinator dies there.
template <typename Fault>
void DrawCrash(Rng& rng, Fault* fault, Scenario* scenario) {
  fault->occurrence = static_cast<int>(rng.Below(3));
  fault->on_arrival = rng.Chance(0.5);
  fault->before = rng.Chance(0.3);
  fault->kind = Fault::Kind::kCrash;
  fault->victim = Fault::Victim::kCoordinator;
  fault->duration = scenario->lease * (0.1 + 2 * rng.Uniform());
  scenario->heal_at += fault->duration;
}

TEST(CoordinatorsSimTest, ItDiesAtEveryStepOfAMoveACopyAndAFailover) {
  RunCounts counts;
  for (int step = 0; step < kShardSteps; ++step) {
    SCOPED_TRACE(MoveStepName(static_cast<MoveStep>(step)));
    const int64_t before = counts.step_crashes[step];
    for (uint64_t seed = 4'000'000; seed < 4'000'150; ++seed) {
      Scenario scenario = WithCoordinator(Scenario::Random(seed));
      Rng rng(seed);
      MoveFault& fault = scenario.placement.faults.emplace_back();
      fault.step = static_cast<MoveStep>(step);
      DrawCrash(rng, &fault, &scenario);
      if (rng.Chance(0.5)) fault.victim = MoveFault::Victim::kServer0;
      RunWell(seed, scenario, &counts);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(counts.step_crashes[step] - before, 4);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kCoordinatorInMoves, counts), IsEmpty());
}

TEST(CoordinatorsSimTest, ItDiesAtEveryStepOfAChangeOfTheMode) {
  RunCounts counts;
  for (int step = 0; step < kPhaseSteps; ++step) {
    SCOPED_TRACE(PhaseStepName(static_cast<PhaseStep>(step)));
    const int64_t before = counts.phase_crashes[step];
    for (uint64_t seed = 4'000'000; seed < 4'000'150; ++seed) {
      Scenario scenario = WithCoordinator(Scenario::RandomModes(seed));
      Rng rng(seed);
      PhaseFault& fault = scenario.modes.faults.emplace_back();
      fault.step = static_cast<PhaseStep>(step);
      DrawCrash(rng, &fault, &scenario);
      RunWell(seed, scenario, &counts);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(counts.phase_crashes[step] - before, 4);
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kCoordinatorInChanges, counts), IsEmpty());
}

TEST(CoordinatorsSimTest, AnyServerTakesOver) {
  RunCounts counts;
  for (uint64_t seed = 5'000'000; seed < 5'001'500; ++seed) {
    Scenario scenario = WithCoordinator(
        seed % 2 == 0 ? Scenario::Random(seed) : Scenario::RandomModes(seed));
    if (scenario.replicas == 0) continue;
    Rng rng(seed);
    scenario.DrawTakeOvers(/*faulty=*/true, scenario.heal_at, rng);
    scenario.heal_at += scenario.lease * 4;
    RunWell(seed, scenario, &counts);
    if (HasFatalFailure()) return;
  }
  std::cout << counts.ToString() << "\n";
  EXPECT_THAT(BelowFloors(SeedRuns::kTakeOvers, counts), IsEmpty());
}

TEST(CoordinatorsSimTest, SeedsThatFoundSomethingPass) {
  const std::map<uint64_t, std::string> seeds = {
      {18103, "a job that never ran was not gone on with"},
      {20757, "who asked for the end of the job was not heard by that"},
      {94017120, "a server that drained had the coordinator, and never left"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report = RunSeed(seed, /*keep_log=*/false, BeforeRows());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
}

TEST(ModesSimTest, SeedsThatFoundSomethingPass) {
  const std::map<uint64_t, std::string> seeds = {
      {8, "the second phase by all-reduce had the group of the first"},
      {157, "a failed attempt to connect named the group before"},
      {1592, "a first step that failed was computed at other values again"},
      {2499, "who was held up in a step did not promise where it stops"},
      {4884, "a step for which nobody had examples was applied"},
      {46805, "steps for which nobody had examples before an installation"},
      {2014987, "a shard was split in two while workers took the state"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report = RunModesSeed(seed, /*keep_log=*/false, Reality());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
}

TEST(ModesSimTest, SeedsThatFoundSomethingByHandPass) {
  const std::map<uint64_t, std::string> seeds = {
      {330003694, "a server's copies were asked for too rarely to be lucky"},
      {330013268, "a member went back to a trial of links that was over"},
      {330014873, "who looked again took that for the coordinator's death"},
      {330028007, "a copied shard was compared with a cut not known there"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report = RunModesSeed(seed, /*keep_log=*/false);
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
}

TEST(ResumeSimTest, SeedsThatFoundSomethingPass) {
  const std::vector<std::pair<uint64_t, std::string>> seeds = {
      {350020817,
       "a heartbeat that came late said that its sender stood still"},
      {305056,
       "who joined a job by all-reduce with nothing left to do waited for the "
       "others for ever"},
      {96206837,
       "the gradient of a lost worker that had not seen the change to "
       "all-reduce was held, acknowledged, and in no update"},
      {97202888, "the only server left did not lead, since its time was over"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report =
        RunResumeSeed(seed, /*keep_log=*/false, BeforeRows());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
}

// Each by itself, so that what one of them breaks is found with it alone.
TEST(RealitySimTest, EveryPartHappensByItself) {
  for (const std::string& name : Reality::Names()) {
    SCOPED_TRACE(name);
    Reality reality;
    *reality.Find(name) = true;
    const Reality usual = Reality::Usual();
    if (!*Reality(usual).Find(name)) continue;
    int runs = 0;
    for (uint64_t seed = 2'000'000; seed < 2'000'100; ++seed) {
      // Given delays are in place of a mode, and bounds of gradients and rows
      // are of jobs without all-reduce.
      const bool modes =
          !reality.given_delays && !reality.bad_gradients && !reality.rows;
      Scenario scenario =
          modes ? Scenario::RandomModes(seed) : Scenario::Random(seed);
      scenario.Widen(reality);
      if (!*scenario.reality.Find(name)) continue;
      ++runs;
      const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
      EXPECT_FALSE(report.violation.has_value())
          << "slackline_sim" << (modes ? " --modes" : "") << " --with=" << name
          << " --seed=" << seed << ": " << report.violation->what;
    }
    EXPECT_GT(runs, 3);
  }
}

TEST(RealitySimTest, WhatASeedDrawsOtherwiseDoesNotDependOnIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Scenario plain = Scenario::RandomModes(seed);
    Scenario wide = plain;
    wide.Widen(Reality::All());
    EXPECT_EQ(plain.compute, wide.compute);
    EXPECT_EQ(plain.start_at, wide.start_at);
    EXPECT_LE(plain.placement.user.size(), wide.placement.user.size());
    EXPECT_LE(plain.heal_at, wide.heal_at);
    EXPECT_LE(plain.faults.size(), wide.faults.size());
  }
}

TEST(SimMachineTest, WhatComesWhileItStandsStillHappensWhenItGoesOn) {
  EventQueue queue;
  SimMachine machine(&queue, {.ahead = absl::Hours(3), .drift = 1e-4});
  const absl::Time start = machine.now();
  EXPECT_EQ(start, absl::UnixEpoch() + absl::Hours(3));
  std::vector<std::string> happened;
  const auto note = [&](const std::string& what) {
    return [&happened, what] { happened.push_back(what); };
  };
  machine.After(absl::Milliseconds(10), note("early timer"));
  machine.After(absl::Milliseconds(50), note("late timer"));
  StandStillFault fault;
  fault.order = WakeOrder::kMessagesFirst;
  queue.After(absl::Milliseconds(5),
              [&] { machine.StandStill(absl::Milliseconds(30), fault); });
  queue.After(absl::Milliseconds(20), [&] { machine.Arrive(note("message")); });
  while (queue.RunNext()) {
  }
  EXPECT_EQ(happened,
            (std::vector<std::string>{"message", "early timer", "late timer"}));
  EXPECT_EQ(machine.stood_still(), absl::Milliseconds(30));
}

TEST(SimMachineTest, TheClockOfASuspendedMachineStandsStillToo) {
  EventQueue queue;
  SimMachine machine(&queue, {});
  absl::Time fired;
  machine.After(absl::Milliseconds(50), [&] { fired = queue.now(); });
  StandStillFault fault;
  fault.suspend = true;
  queue.After(absl::Milliseconds(10),
              [&] { machine.StandStill(absl::Seconds(2), fault); });
  while (queue.RunNext()) {
  }
  EXPECT_EQ(fired, absl::UnixEpoch() + absl::Milliseconds(2050));
  EXPECT_EQ(machine.now(), absl::UnixEpoch() + absl::Milliseconds(50));
}

TEST(ModesSimTest, OneSeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunReport first = RunModesSeed(seed, /*keep_log=*/true);
    const RunReport second = RunModesSeed(seed, /*keep_log=*/true);
    ASSERT_GT(first.log.size(), 10u);
    EXPECT_EQ(first.log, second.log) << "seed " << seed;
    EXPECT_EQ(RunModesSeed(seed, /*keep_log=*/false).counts.events,
              first.counts.events);
  }
}

TEST(ClusterSimTest, OneSeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunReport first = RunSeed(seed, /*keep_log=*/true);
    const RunReport second = RunSeed(seed, /*keep_log=*/true);
    ASSERT_GT(first.log.size(), 10u);
    EXPECT_EQ(first.log, second.log) << "seed " << seed;
    // A log does not change what it tells of.
    EXPECT_EQ(RunSeed(seed, /*keep_log=*/false).counts.events,
              first.counts.events);
  }
}

Scenario WithoutFaults(uint64_t seed) {
  Scenario scenario = Scenario::Random(seed);
  scenario.RemoveFaults();
  return scenario;
}

void ExpectEveryStepOnce(const Scenario& scenario,
                         const SimWorker::Counts& counts) {
  const int64_t clocks = counts.steps + counts.skipped + counts.left_out;
  if (!scenario.elastic.has_value()) {
    EXPECT_EQ(clocks, scenario.steps * scenario.workers);
    return;
  }
  // All end at one clock, and each range of examples was one step.
  EXPECT_EQ(clocks % scenario.workers, 0);
  const wire::Elastic& elastic = *scenario.elastic;
  const auto ranges = [&](int64_t examples) {
    return (examples + elastic.batch_size() - 1) / elastic.batch_size();
  };
  EXPECT_EQ(counts.ranges,
            elastic.total() / elastic.examples() * ranges(elastic.examples()) +
                ranges(elastic.total() % elastic.examples()));
}

TEST(ClusterSimTest, WithoutFaultsEveryWorkerDoesOrSkipsEveryStepOnce) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Scenario scenario = WithoutFaults(seed);
    const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
    ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
    EXPECT_EQ(report.counts.finished, 1) << report.outcome;
    EXPECT_EQ(report.counts.fenced, 0);
    EXPECT_EQ(report.counts.gave_up, 0);
    EXPECT_EQ(report.counts.workers.late_starts, 0);
    ExpectEveryStepOnce(scenario, report.counts.workers);
  }
}

TEST(ModesSimTest, WithoutFaultsEveryWorkerDoesOrSkipsEveryStepOnce) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Scenario scenario = Scenario::RandomModes(seed);
    scenario.RemoveFaults();
    const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
    ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
    EXPECT_EQ(report.counts.finished, 1) << report.outcome;
    EXPECT_EQ(report.counts.fenced, 0);
    EXPECT_EQ(report.counts.gave_up, 0);
    EXPECT_EQ(report.counts.workers.regroups, 0);
    ExpectEveryStepOnce(scenario, report.counts.workers);
  }
}

TEST(ClusterSimTest, AServerWhoseTimeIsOverLeavesAndTheJobGoesOn) {
  int64_t retired = 0, finished = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Scenario scenario = WithoutFaults(seed);
    if (scenario.servers < 2) continue;
    scenario.checkpoints.wanted = true;
    scenario.checkpoints.server_notice = {.server = 1,
                                          .at = scenario.heal_at * 0.2};
    const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
    ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
    retired += report.counts.servers_retired;
    finished += report.counts.finished;
  }
  EXPECT_GT(retired, 5);
  // The others were suspended, or had ended by then.
  EXPECT_GE(finished, retired);
}

TEST(ClusterSimTest, AllGiveUpOnTheCoordinatorWhenServer0Dies) {
  Scenario scenario = WithoutFaults(3);
  scenario.servers = 3;
  scenario.workers = 4;
  scenario.steps = 30;
  scenario.compute.assign(4, absl::Milliseconds(20));
  scenario.start_at.assign(7, absl::Milliseconds(1));
  FaultEvent crash;
  crash.kind = FaultEvent::Kind::kCrash;
  crash.at = absl::Milliseconds(200);
  scenario.faults.push_back(crash);
  const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
  ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
  EXPECT_EQ(report.counts.coordinator_lost, 1) << report.outcome;
  EXPECT_EQ(report.counts.gave_up, 4);
}

// Three servers, of which the last one dies.
Scenario WithALostServer() {
  Scenario scenario = WithoutFaults(4);
  scenario.servers = 3;
  scenario.workers = 2;
  scenario.steps = 30;
  scenario.compute.assign(2, absl::Milliseconds(20));
  scenario.start_at.assign(5, absl::Milliseconds(1));
  FaultEvent crash;
  crash.kind = FaultEvent::Kind::kCrash;
  crash.node = 2;
  crash.at = absl::Milliseconds(200);
  scenario.faults.push_back(crash);
  return scenario;
}

TEST(ReplicasSimTest, SeedsThatFoundSomethingPass) {
  const std::map<uint64_t, std::string> seeds = {
      {307, "a move that waited for a copy was never ordered"},
      {10072, "copies began with and without a cut at one place of the log"},
      {10900, "copies began with and without a founder that had died"},
      {20221, "a go waited for a follower that was gone"}};
  for (const auto& [seed, what] : seeds) {
    const RunReport report =
        RunSeed(seed, /*keep_log=*/false, BeforeCoordinators());
    EXPECT_FALSE(report.violation.has_value())
        << what << "; seed " << seed << ": " << report.violation->what;
  }
  Reality reality;
  reality.replicas = true;
  const RunReport alone = RunSeed(50695, /*keep_log=*/false, reality);
  EXPECT_FALSE(alone.violation.has_value())
      << "a copy that was given up took its parts along: "
      << alone.violation->what;
  const RunReport modes = RunModesSeed(1080, /*keep_log=*/false);
  EXPECT_FALSE(modes.violation.has_value())
      << "a part was asked for before its follower had heard of the cut: "
      << modes.violation->what;
}

TEST(ReplicasSimTest, TheJobGoesOnWithoutTheServerThatDied) {
  for (const int replicas : {1, 2}) {
    Scenario scenario = WithALostServer();
    scenario.replicas = replicas;
    const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
    ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
    EXPECT_EQ(report.counts.finished, 1) << report.outcome;
    EXPECT_GT(report.counts.checker.failovers, 0);
    EXPECT_EQ(report.counts.workers.steps + report.counts.workers.skipped, 60);
  }
}

TEST(ClusterSimTest, TheJobFailsWithTheNameOfTheServerThatDied) {
  const Scenario scenario = WithALostServer();
  const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
  ASSERT_FALSE(report.violation.has_value()) << report.violation->what;
  EXPECT_THAT(report.outcome, HasSubstr("FAILED: server 2"));
  EXPECT_EQ(report.counts.gave_up, 0) << "the others are told, none gives up";
}

}  // namespace
}  // namespace slackline::sim
