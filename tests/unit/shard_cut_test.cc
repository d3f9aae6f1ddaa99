// Goal: the state of a shard at a cut has the bits of a shard that was given
// only what comes before the cut, it is there as soon as nothing of that is
// missing, and the shard itself is what it is without a cut.
// Method: examples with SGD of rate 1 from zeros, and random histories of each
// mode with workers that come and go, against a twin that is given the records
// before the cut alone, in their order.
#include "server/shard/shard_cut.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/floats.h"
#include "tests/support/optimizers.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_machine_fixture.h"

namespace slackline::shard_cut_test {

using ::testing::HasSubstr;

wire::Cut UniformAt(Clock clock) {
  wire::Cut cut;
  cut.set_number(1);
  cut.set_clock(clock);
  return cut;
}

// Of ranks 0, 1, ...
wire::Cut Until(const std::vector<Clock>& clocks) {
  wire::Cut cut;
  cut.set_number(1);
  for (size_t rank = 0; rank < clocks.size(); ++rank) {
    wire::Cut::Until& until = *cut.add_until();
    until.set_rank(static_cast<int32_t>(rank));
    until.set_incarnation(10 + rank);
    until.set_clock(clocks[rank]);
  }
  return cut;
}

// A shard and its cut.
struct Cutting {
  Cutting(ShardMachine machine, const wire::Cut& wanted)
      : live(std::move(machine)),
        cut(std::make_shared<const CutLimits>(wanted)) {}

  // What the cut says of the record, which is then applied.
  absl::Status Do(const ShardRecord& record) {
    const absl::Status status = cut.OnRecord(record, live);
    const absl::StatusOr<ShardOutcome> applied = live.Apply(record);
    SL_CHECK(applied.ok(), applied.status().ToString());
    return status;
  }
  // The value at the cut, if it is complete.
  std::optional<float> Value() {
    const ShardMachine* const machine = cut.Complete(live);
    if (machine == nullptr) return std::nullopt;
    return First(machine->shard().values());
  }

  ShardMachine live;
  ShardCut cut;
};

TEST(ShardCutTest, WhatComesAfterItIsInTheLiveShardAlone) {
  Cutting shard(NewMachine(kPlainSgd, 2), UniformAt(2));
  ASSERT_TRUE(shard.Do(Applied(0, 0, 2)).ok());
  ASSERT_TRUE(shard.Do(Applied(0, 1, 4)).ok());
  EXPECT_FALSE(shard.cut.copied());
  ASSERT_TRUE(shard.Do(Applied(0, 2, 100)).ok());
  EXPECT_TRUE(shard.cut.copied());
  ASSERT_TRUE(shard.Do(Applied(1, 0, 6)).ok());
  EXPECT_EQ(shard.Value(), std::nullopt);
  ASSERT_TRUE(shard.Do(Applied(1, 1, 8)).ok());
  EXPECT_EQ(shard.Value(), -(2 + 4 + 6 + 8) / 2);
  EXPECT_EQ(shard.cut.Complete(shard.live)->shard().version(), 4u);
  EXPECT_EQ(ValueOf(shard.live), -(2 + 4 + 100 + 6 + 8) / 2);
}

TEST(ShardCutTest, WithHeldGradientsTheLiveShardIsTheCuts) {
  Cutting shard(NewMachine(kPlainSgd, 2), UniformAt(1));
  ASSERT_TRUE(shard.Do(Held(1, 0, 2)).ok());
  EXPECT_EQ(shard.Value(), std::nullopt);
  ASSERT_TRUE(shard.Do(Held(0, 0, 4)).ok());
  EXPECT_EQ(shard.Value(), -3);
  EXPECT_FALSE(shard.cut.copied());
  EXPECT_EQ(shard.cut.Complete(shard.live), &shard.live);
}

TEST(ShardCutTest, InBackupALateGradientIsNothingBeforeTheCut) {
  Cutting shard(NewMachine(kPlainSgd, 3), UniformAt(2));
  for (const int rank : {0, 1}) ASSERT_TRUE(shard.Do(Held(rank, 0, 2, 1)).ok());
  EXPECT_EQ(shard.live.complete_clock(), 1);
  ASSERT_TRUE(shard.Do(AdvanceRecord{.who = Life(2), .clock = 1}).ok());
  ASSERT_TRUE(shard.Do(Held(2, 1, 6, 1)).ok());
  EXPECT_EQ(shard.Value(), std::nullopt);
  ASSERT_TRUE(shard.Do(Held(0, 1, 6, 1)).ok());
  EXPECT_EQ(shard.Value(), -2 - 6) << "without rank 1";
  EXPECT_FALSE(shard.cut.copied());
}

TEST(ShardCutTest, ACutThatWasReachedBeforeItWasKnownIsThere) {
  ShardMachine there = NewMachine(kPlainSgd, 1);
  ASSERT_TRUE(there.Apply(Applied(0, 0, 2)).ok());
  Cutting shard(std::move(there), UniformAt(1));
  EXPECT_EQ(shard.Value(), -2);
}

TEST(ShardCutTest, EachWorkerHasItsOwnClockAndWaitsForNobody) {
  Cutting shard(NewMachine(kPlainSgd, 2), Until({3, 1}));
  ASSERT_TRUE(shard.Do(Applied(1, 0, 2)).ok());
  ASSERT_TRUE(shard.Do(Applied(1, 1, 100)).ok()) << "after its clock";
  for (const Clock clock : {0, 1}) {
    ASSERT_TRUE(shard.Do(Applied(0, clock, 4)).ok());
    EXPECT_EQ(shard.Value(), std::nullopt);
  }
  ASSERT_TRUE(shard.Do(Applied(0, 2, 4)).ok());
  EXPECT_EQ(shard.Value(), -(2 + 3 * 4) / 2);
}

TEST(ShardCutTest, WhoHasLeftOrIsNotNamedDoesNotCount) {
  Cutting shard(NewMachine(kPlainSgd, 2), Until({1, 1}));
  ASSERT_TRUE(shard.Do(Applied(0, 0, 4)).ok());
  ASSERT_TRUE(shard.Do(JoinRecord{.who = Life(2)}).ok());
  ASSERT_TRUE(shard.Do(Applied(2, 0, 300)).ok());
  EXPECT_EQ(shard.Value(), std::nullopt);
  ASSERT_TRUE(
      shard.Do(LeaveRecord{.incarnations = {Life(1).incarnation}}).ok());
  EXPECT_EQ(shard.Value(), -2);
  EXPECT_EQ(ValueOf(shard.live), -2 - 100);
}

TEST(ShardCutTest, AnotherLifeOfANamedWorkerIsNotNamed) {
  Cutting shard(NewMachine(kPlainSgd, 2), Until({1, 1}));
  ASSERT_TRUE(
      shard.Do(LeaveRecord{.incarnations = {Life(1).incarnation}}).ok());
  ASSERT_TRUE(shard.Do(JoinRecord{.who = Life(1, 99)}).ok());
  GradientRecord of_another_life = Applied(1, 0, 50);
  of_another_life.who = Life(1, 99);
  ASSERT_TRUE(shard.Do(of_another_life).ok());
  ASSERT_TRUE(shard.Do(Applied(0, 0, 4)).ok());
  EXPECT_EQ(shard.Value(), -4) << "one worker, when it comes";
}

TEST(ShardCutTest, WhoJoinsBeforeAClockOfAllHasItsGradientsIn) {
  Cutting shard(NewMachine(kPlainSgd, 1), UniformAt(1));
  ASSERT_TRUE(shard.Do(JoinRecord{.who = Life(1)}).ok());
  ASSERT_TRUE(shard.Do(Applied(0, 0, 4)).ok());
  EXPECT_EQ(shard.Value(), std::nullopt);
  ASSERT_TRUE(shard.Do(Applied(1, 0, 6)).ok());
  EXPECT_EQ(shard.Value(), -(4 + 6) / 2);
}

TEST(ShardCutTest, WhoSkipsPastTheCutIsThere) {
  Cutting shard(NewMachine(kPlainSgd, 2), UniformAt(2));
  ASSERT_TRUE(shard.Do(AdvanceRecord{.who = Life(0), .clock = 7}).ok());
  EXPECT_FALSE(shard.cut.copied()) << "it was before the cut";
  ASSERT_TRUE(shard.Do(Applied(1, 0, 4)).ok());
  ASSERT_TRUE(shard.Do(Applied(1, 1, 4)).ok());
  EXPECT_EQ(shard.Value(), -4);
}

TEST(ShardCutTest, AnInstallationUpToTheCutIsInIt) {
  const auto install_at = [](Clock clock) {
    return InstallRecord{.who = Life(1),
                         .clock = clock,
                         .version = 9,
                         .values = Floats(42, kElements)};
  };
  Cutting shard(NewMachine(kPlainSgd, 2), UniformAt(6));
  ASSERT_TRUE(shard.Do(install_at(5)).ok());
  for (const int rank : {0, 1}) {
    EXPECT_EQ(shard.Value(), std::nullopt);
    ASSERT_TRUE(shard.Do(Applied(rank, 5, 2)).ok());
  }
  EXPECT_EQ(shard.Value(), 40);
  Cutting late(NewMachine(kPlainSgd, 2), UniformAt(6));
  EXPECT_THAT(late.Do(install_at(7)).ToString(),
              HasSubstr("until clock 7, which is after the cut at clock 6"));
  Cutting own(NewMachine(kPlainSgd, 2), Until({6, 6}));
  EXPECT_THAT(own.Do(install_at(5)).ToString(), HasSubstr("its own limit"));
}

TEST(ShardCutTest, AShardThatIsCutInTwoHasNone) {
  Cutting shard(NewMachine(kPlainSgd, 2), UniformAt(1));
  EXPECT_THAT(shard.Do(SplitRecord{.at = 3, .part = ShardId{7}}).ToString(),
              HasSubstr("split in two"));
}

// Nobody who keeps to the protocol makes them.
TEST(ShardCutTest, StrangeLimitsMakeAnErrorOrNothingButNeverACrash) {
  for (const Clock clock : {Clock{-5}, Clock{0}, kClockMax}) {
    SCOPED_TRACE(clock);
    Cutting uniform(NewMachine(kPlainSgd, 2), UniformAt(clock));
    EXPECT_EQ(uniform.Value().has_value(), clock <= 0);
    EXPECT_TRUE(uniform.Do(Applied(0, 0, 2)).ok());
    Cutting own(NewMachine(kPlainSgd, 2), Until({clock, clock, clock}));
    EXPECT_EQ(own.Value().has_value(), clock <= 0) << "rank 2 is unknown";
    EXPECT_TRUE(own.Do(Applied(0, 0, 2)).ok());
  }
  // The same worker twice, and gradients that are held though each worker has
  // its own limit: then what comes before the cut cannot be made sense of.
  wire::Cut cut = Until({1, 3});
  *cut.add_until() = cut.until(0);
  Cutting held(NewMachine(kPlainSgd, 2), cut);
  ASSERT_TRUE(held.Do(Held(0, 0, 2)).ok());
  ASSERT_TRUE(held.Do(Held(1, 0, 2)).ok());
  ASSERT_TRUE(held.Do(Held(0, 1, 2)).ok());
  ASSERT_TRUE(held.Do(Held(1, 1, 2)).ok());
  EXPECT_THAT(held.Do(Held(1, 2, 2)).ToString(), HasSubstr("does not fit"));
}

// ---- Against a twin ---------------------------------------------------------

// How a mode lets workers push, at one shard.
struct Mode {
  const char* name;
  bool holds = false;
  int spare = 0;
  Clock lead = kClockMax;  // Over the slowest.
  // From this clock on it is the other kind.
  Clock changes_at = kClockMax;
};

// Lists of what the rules say, by hand.
struct History {
  History(const Mode& mode, bool uniform, uint64_t seed)
      : mode(mode),
        uniform(uniform),
        rng(seed),
        optimizer(OptimizerTexts()[rng.Below(OptimizerTexts().size())]),
        live(NewMachine(optimizer, 0)),
        untouched(NewMachine(optimizer, 0)),
        twin(NewMachine(optimizer, 0)) {}

  bool HoldsAt(Clock clock) const {
    return clock < mode.changes_at ? mode.holds : !mode.holds;
  }
  Clock LimitOf(const WorkerLife& who) const {
    if (uniform) return limit;
    const auto found = limits.find(who.incarnation);
    return found == limits.end() ? Clock{-1} : found->second;
  }

  // It is after the cut, if there is one.
  bool IsAfter(const ShardRecord& record) const {
    if (!decided) return false;
    if (const auto* const push = std::get_if<GradientRecord>(&record))
      return push->clock >= LimitOf(push->who);
    if (const auto* const advance = std::get_if<AdvanceRecord>(&record))
      return clocks.at(advance->who.rank).second >= LimitOf(advance->who);
    if (const auto* const join = std::get_if<JoinRecord>(&record))
      return !uniform || join->clock >= limit;
    return false;
  }

  void Commit(const ShardRecord& record) {
    const bool after = IsAfter(record);
    // Nobody sends it before the shard knows of the cut.
    if (after && !known && !cut.has_value()) return;
    if (cut.has_value()) {
      const absl::Status status = cut->OnRecord(record, live);
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(live.Apply(record).ok());
    ASSERT_TRUE(untouched.Apply(record).ok());
    if (!after) {
      const absl::Status status = twin.Apply(record).status();
      ASSERT_TRUE(state.has_value() || status.ok()) << status;
    }
    if (const auto* const join = std::get_if<JoinRecord>(&record)) {
      clocks[join->who.rank] = {join->who,
                                live.participants()
                                    .Find(join->who.rank, join->who.incarnation)
                                    ->clock};
    } else if (const auto* const push = std::get_if<GradientRecord>(&record)) {
      clocks[push->who.rank].second = push->clock + 1;
    } else if (const auto* const advance =
                   std::get_if<AdvanceRecord>(&record)) {
      clocks[advance->who.rank].second = advance->clock;
    } else if (const auto* const leave = std::get_if<LeaveRecord>(&record)) {
      std::erase_if(clocks, [&](const auto& entry) {
        return entry.second.first.incarnation == leave->incarnations[0];
      });
    }
    Look();
  }

  // The cut is there at the right moment, with the right bits.
  void Look() {
    if (!cut.has_value()) return;
    const ShardMachine* const machine = cut->Complete(live);
    bool complete = true;
    if (uniform) {
      complete = twin.complete_clock() >= limit;
    } else {
      for (const auto& [rank, of_rank] : clocks)
        complete &= of_rank.second >= LimitOf(of_rank.first);
    }
    ASSERT_EQ(machine != nullptr, complete);
    if (!complete) return;
    const Shard* const shard = &machine->shard();
    copied = cut->copied();
    state = PortraitOf(*shard);
    kept = shard->values();
    kept_slots = shard->slots();
    ASSERT_EQ(*state, PortraitOf(twin.shard()));
    if (!copied) {
      ASSERT_EQ(shard->values().data(), live.shard().values().data());
    }
    cut.reset();
  }

  static std::vector<std::string> PortraitOf(const Shard& shard) {
    std::vector<std::string> portrait = {absl::StrCat(shard.version()),
                                         BytesOf(shard.values())};
    for (const Payload& slot : shard.slots()) portrait.push_back(BytesOf(slot));
    return portrait;
  }

  // Each worker that takes part promises to stop a little further on.
  void Decide() {
    decided = true;
    limit = 0;
    for (const auto& [rank, of_rank] : clocks) {
      const Clock own = of_rank.second + rng.Between(0, 4);
      limits[of_rank.first.incarnation] = own;
      limit = std::max(limit, own);
    }
    if (limit == mode.changes_at) ++limit;
  }
  // The shard hears of it.
  void BeginCut() {
    known = true;
    wire::Cut wanted;
    wanted.set_number(1);
    if (uniform) {
      wanted.set_clock(limit);
    } else {
      for (const auto& [rank, of_rank] : clocks) {
        wire::Cut::Until& until = *wanted.add_until();
        until.set_rank(static_cast<int32_t>(rank));
        until.set_incarnation(of_rank.first.incarnation);
        until.set_clock(LimitOf(of_rank.first));
      }
    }
    cut.emplace(std::make_shared<const CutLimits>(wanted));
    Look();
  }

  Payload Gradient() {
    std::vector<float> values(kElements);
    for (float& value : values) value = static_cast<float>(rng.Normal());
    return Payload::Copy(values.data(), values.size() * sizeof(float));
  }

  void Step() {
    const Rank rank{static_cast<int32_t>(rng.Below(4))};
    const auto found = clocks.find(rank);
    if (found == clocks.end()) {
      // Who has joined has promised, too.
      if (!rng.Chance(0.3) || (decided && !known)) return;
      return Commit(
          JoinRecord{.who = Life(static_cast<int>(rank), next_incarnation++),
                     .clock = live.complete_clock()});
    }
    const auto [who, clock] = found->second;
    if (clocks.size() > 1 && rng.Chance(0.01))
      return Commit(LeaveRecord{.incarnations = {who.incarnation}});
    const bool holds = HoldsAt(clock);
    Clock slowest = clock;
    for (const auto& [other, of_other] : clocks)
      slowest = std::min(slowest, of_other.second);
    // What a pull of that clock would wait for.
    if (holds && clock > live.complete_clock()) return;
    if (!holds && clock > slowest + mode.lead) return;
    if (clock >= mode.changes_at && slowest < mode.changes_at) return;
    if (holds && clock < live.complete_clock()) {
      // Late, or it skips to where the others are.
      return Commit(AdvanceRecord{
          .who = who,
          .clock = rng.Chance(0.5) ? clock + 1 : live.complete_clock()});
    }
    if (rng.Chance(0.05))  // Discarded.
      return Commit(AdvanceRecord{.who = who, .clock = clock + 1});
    Commit(GradientRecord{.who = who,
                          .clock = clock,
                          .gradient = Gradient(),
                          .held = holds,
                          .spare = holds ? mode.spare : 0,
                          .options = {.rate_factor = 0.5 + rng.Uniform()}});
  }

  void Run() {
    for (int rank = 0; rank < 3; ++rank) {
      Commit(JoinRecord{.who = Life(rank, next_incarnation++)});
    }
    const int decide_at = static_cast<int>(rng.Below(60));
    const int known_at = decide_at + static_cast<int>(rng.Below(30));
    for (int step = 0; step < 200 && !testing::Test::HasFatalFailure();
         ++step) {
      if (step == decide_at) Decide();
      if (step == known_at) BeginCut();
      Step();
    }
    // To the end, should it be far.
    for (int step = 0;
         step < 2000 && cut.has_value() && !testing::Test::HasFatalFailure();
         ++step) {
      Step();
    }
    ASSERT_TRUE(state.has_value()) << "the cut has no end";
    EXPECT_EQ(Portrait(live), Portrait(untouched));
    // What was kept does not change any more.
    std::vector<std::string> now = {state->front(), BytesOf(kept)};
    for (const Payload& slot : kept_slots) now.push_back(BytesOf(slot));
    EXPECT_EQ(now, *state);
  }

  const Mode mode;
  const bool uniform;
  Rng rng;
  const std::string optimizer;
  ShardMachine live;
  ShardMachine untouched;  // Without a cut.
  ShardMachine twin;       // With what is before it.
  std::map<Rank, std::pair<WorkerLife, Clock>> clocks;
  Incarnation next_incarnation = 1;
  bool decided = false;
  bool known = false;
  Clock limit = 0;
  std::map<Incarnation, Clock> limits;
  std::optional<ShardCut> cut;
  std::optional<std::vector<std::string>> state;
  Payload kept;
  std::vector<Payload> kept_slots;
  bool copied = false;
};

TEST(ShardCutTest, AgreesWithATwinThatIsGivenOnlyWhatIsBeforeIt) {
  const Mode modes[] = {
      {.name = "bsp", .holds = true},
      {.name = "backup", .holds = true, .spare = 1},
      {.name = "ssp", .lead = 2},
      {.name = "asp"},
      {.name = "asp, then bsp", .changes_at = 9},
      {.name = "bsp, then asp", .holds = true, .changes_at = 9},
  };
  for (const Mode& mode : modes) {
    for (const bool uniform : {true, false}) {
      // Each its own only over servers, within one phase.
      if (!uniform && (mode.holds || mode.changes_at != kClockMax)) continue;
      int copies = 0;
      for (uint64_t seed = 0; seed < 400; ++seed) {
        SCOPED_TRACE(absl::StrCat(mode.name, uniform ? ", uniform" : "",
                                  ", seed ", seed));
        History history(mode, uniform, seed);
        history.Run();
        if (testing::Test::HasFatalFailure()) return;
        copies += history.copied;
      }
      if (mode.holds && mode.changes_at == kClockMax) {
        EXPECT_EQ(copies, 0) << mode.name;
      } else {
        EXPECT_GT(copies, 40) << mode.name;
      }
    }
  }
}

}  // namespace slackline::shard_cut_test
