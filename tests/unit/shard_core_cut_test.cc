// Goal: a shard thread says once for each cut of the view what its shards are
// at it, takes nothing from who knows of a cut that it does not know, and
// begins with what a checkpoint has.
// Method: one core of a small job, or two with a link by hand; SGD with
// learning rate 1 from zeros, so that values show what was applied.
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::shard_core_cut_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using CutState = ShardCore::CutState;

void SetCut(wire::View* view, int32_t number, Clock clock) {
  view->mutable_cut()->Clear();
  view->mutable_cut()->set_number(number);
  view->mutable_cut()->set_clock(clock);
}

std::vector<std::string> NamesOf(const CutState& cut) {
  std::vector<std::string> names;
  for (const ShardState& shard : cut.shards) {
    names.push_back(absl::StrCat(shard.table, shard.region.Text()));
  }
  return names;
}

class ShardCutCoreTest : public ShardPhasesTest {
 protected:
  ShardCore::Effects PublishCut(int32_t number, Clock clock) {
    SetCut(&view_, number, clock);
    return Publish();
  }
  // Each of these workers up to its clock.
  ShardCore::Effects PublishCutUntil(int32_t number,
                                     const std::vector<Clock>& clocks) {
    SetCut(&view_, number, 0);
    for (size_t rank = 0; rank < clocks.size(); ++rank) {
      wire::Cut::Until& until = *view_.mutable_cut()->add_until();
      until.set_rank(static_cast<int32_t>(rank));
      until.set_incarnation(10 + rank);
      until.set_clock(clocks[rank]);
    }
    return Publish();
  }
  // The gradient of a worker, to both shards.
  std::optional<CutState> PushBoth(int rank, Clock clock, float gradient) {
    std::optional<CutState> cut;
    for (const int32_t shard : {0, 1}) {
      const uint64_t seq = static_cast<uint64_t>(clock) + 1;
      ShardCore::Effects effects =
          Send(Worker(rank), PushOf(clock, seq, gradient, shard));
      if (effects.cut.has_value()) {
        EXPECT_FALSE(cut.has_value()) << "once";
        cut = std::move(effects.cut);
      }
    }
    return cut;
  }
};

TEST_F(ShardCutCoreTest, WhoKnowsANewerCutTriesAgain) {
  Start("asp", 1);
  PublishCut(1, 5);
  Message push = PushOf(0, 1, 2);
  Message pull = PullOf(0);
  push.header.mutable_push_request()->set_cuts(2);
  pull.header.mutable_pull_request()->set_cuts(2);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kRetry);
  EXPECT_EQ(PullCode(Worker(0), pull), Outcome::kRetry);
  EXPECT_EQ(Now(), 0);
  PublishCut(2, 8);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  EXPECT_EQ(PullCode(Worker(0), pull), Outcome::kOk);
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 2)), Outcome::kOk)
      << "who knows fewer has promised not to be there yet";
}

TEST_F(ShardCutCoreTest, AllShardsOfTheThreadAreReportedOnceSorted) {
  Start("bsp", 2);
  view_.set_run(77);
  EXPECT_FALSE(PublishCut(1, 1).cut.has_value());
  const auto push = [&](int rank, int32_t shard) {
    Message message = PushOf(0, 1, 4, shard);
    message.header.set_run(77);
    return Send(Worker(rank), message).cut;
  };
  EXPECT_FALSE(push(0, 0).has_value());
  EXPECT_FALSE(push(0, 1).has_value());
  EXPECT_FALSE(push(1, 1).has_value()) << "shard 0 is missing";
  const std::optional<CutState> cut = push(1, 0);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->number, 1);
  EXPECT_EQ(cut->run, 77u);
  EXPECT_EQ(cut->error, "");
  EXPECT_THAT(NamesOf(*cut), ElementsAre("weight[0, 4)", "weight[4, 8)"));
  for (const ShardState& shard : cut->shards) {
    EXPECT_EQ(shard.version, 1u);
    EXPECT_EQ(First(shard.values), -4);
    EXPECT_THAT(shard.slots, IsEmpty());
  }
  EXPECT_FALSE(Publish().cut.has_value()) << "a newer view, not a newer cut";
}

TEST_F(ShardCutCoreTest, InBspNothingIsCopied) {
  optimizer_ = Adam();
  Start("bsp", 2);
  PublishCut(1, 2);
  for (const Clock clock : {0, 1}) {
    PushBoth(0, clock, 4);
    // The fast one has to wait.
    EXPECT_EQ(PushCode(Worker(0), PushOf(clock + 1, clock + 2, 4)),
              Outcome::kRetry);
    ASSERT_NE(core_->CutOf(ShardId{0}), nullptr);
    EXPECT_FALSE(core_->CutOf(ShardId{0})->copied());
    const std::optional<CutState> cut = PushBoth(1, clock, 4);
    ASSERT_EQ(cut.has_value(), clock == 1);
    if (!cut.has_value()) continue;
    const Shard& live = State().shard();
    EXPECT_EQ(cut->shards[0].values.data(), live.values().data());
    ASSERT_THAT(cut->shards[0].slots, SizeIs(2));
    EXPECT_EQ(cut->shards[0].slots[1].data(), live.slots()[1].data());
  }
  EXPECT_EQ(core_->CutOf(ShardId{0}), nullptr);
}

TEST_F(ShardCutCoreTest, ItsStateStaysWhatItIsWhileTheShardGoesOn) {
  optimizer_ = Adam();
  Start("bsp", 1);
  PublishCut(1, 1);
  const std::optional<CutState> cut = PushBoth(0, 0, 4);
  ASSERT_TRUE(cut.has_value());
  const std::string values = BytesOf(cut->shards[0].values);
  const std::string slot = BytesOf(cut->shards[0].slots[0]);
  for (const Clock clock : {1, 2, 3}) PushBoth(0, clock, 4);
  EXPECT_EQ(State().shard().version(), 4u);
  EXPECT_EQ(BytesOf(cut->shards[0].values), values);
  EXPECT_EQ(BytesOf(cut->shards[0].slots[0]), slot);
  EXPECT_NE(BytesOf(State().shard().values()), values);
}

TEST_F(ShardCutCoreTest, AFastWorkerGoesOnAndItsGradientsAreNotIn) {
  Start("asp", 2);
  PublishCutUntil(1, {1, 2});
  for (const Clock clock : {0, 1, 2, 3})
    EXPECT_FALSE(PushBoth(0, clock, 8).has_value());
  EXPECT_FALSE(PushBoth(1, 0, 2).has_value());
  const std::optional<CutState> cut = PushBoth(1, 1, 2);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(First(cut->shards[1].values), -(8 + 2 + 2) / 2);
  EXPECT_EQ(cut->shards[1].version, 3u);
  EXPECT_EQ(Now(1), -(4 * 8 + 2 * 2) / 2);
  EXPECT_EQ(State(1).shard().version(), 6u);
}

TEST_F(ShardCutCoreTest, ADiscardedGradientCountsAsGiven) {
  Start("asp", 2);
  PublishCut(1, 1);
  PushBoth(0, 0, 2);
  const std::optional<CutState> cut = PushBoth(1, 0, kNan);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(First(cut->shards[0].values), -1);
}

TEST_F(ShardCutCoreTest, WhatARuleForStaleGradientsMadeIsWhatTheCutHas) {
  stale_.add_stale()->mutable_staleness_aware_rate();
  Start("asp", 2);
  PublishCutUntil(1, {3, 1});
  for (const Clock clock : {0, 1, 2}) PushBoth(0, clock, 4);
  const float before = Now();
  PushBoth(0, 3, 400);  // After the cut.
  const float with_it = Now();
  const std::optional<CutState> cut = PushBoth(1, 0, 8);  // It missed four.
  ASSERT_TRUE(cut.has_value());
  EXPECT_FLOAT_EQ(First(cut->shards[0].values), before + (Now() - with_it));
  EXPECT_NE(Now() - with_it, -8 / 2.0f);
}

TEST_F(ShardCutCoreTest, ACutThatIsReachedByTheViewIsThereAtOnce) {
  Start("ssp:3", 2);
  for (const int rank : {0, 1}) PushBoth(rank, 0, 2);
  const ShardCore::Effects effects = PublishCut(1, 1);
  ASSERT_TRUE(effects.cut.has_value());
  EXPECT_EQ(First(effects.cut->shards[0].values), -2);
}

TEST_F(ShardCutCoreTest, ItIsThereWhenTheLastOneThatIsMissingLeaves) {
  Start("asp", 2);
  PublishCutUntil(1, {1, 5});
  PushBoth(0, 0, 2);
  RemoveWorker(1);
  const ShardCore::Effects effects = Publish();
  ASSERT_TRUE(effects.cut.has_value());
  EXPECT_EQ(First(effects.cut->shards[0].values), -1);
}

TEST_F(ShardCutCoreTest, WhoJoinsDuringACutOfEachWorkersClockIsNotInIt) {
  Start("asp", 1);
  PublishCutUntil(1, {1});
  AddWorker(1, 50, /*founder=*/false);
  Publish();
  for (const int32_t shard : {0, 1}) {
    EXPECT_EQ(PullCode(Worker(1, 50), PullOf(0, 1, shard, /*join=*/true)),
              Outcome::kOk);
    EXPECT_EQ(PushCode(Worker(1, 50), PushOf(0, 1, 600, shard)), Outcome::kOk);
  }
  const std::optional<CutState> cut = PushBoth(0, 0, 2);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(First(cut->shards[0].values), -2);
}

TEST_F(ShardCutCoreTest, ANewerCutReplacesOneThatIsNotComplete) {
  Start("asp", 2);
  PublishCut(1, 1);
  PushBoth(0, 0, 2);
  PushBoth(0, 1, 2);  // A copy is there.
  EXPECT_FALSE(PublishCut(2, 3).cut.has_value());
  EXPECT_FALSE(PushBoth(1, 0, 2).has_value()) << "complete for the first one";
  for (const Clock clock : {1, 2}) PushBoth(1, clock, 2);
  const std::optional<CutState> cut = PushBoth(0, 2, 2);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->number, 2);
  EXPECT_EQ(First(cut->shards[0].values), -6);
}

TEST_F(ShardCutCoreTest, ACutOfTheChiefIsNotOursAndEndsOurs) {
  Start("asp", 1);
  PublishCut(1, 1);
  SetCut(&view_, 2, 3);
  view_.mutable_cut()->set_by_worker(true);
  EXPECT_FALSE(Publish().cut.has_value());
  for (const Clock clock : {0, 1, 2, 3})
    EXPECT_FALSE(PushBoth(0, clock, 2).has_value());
  EXPECT_EQ(core_->CutOf(ShardId{0}), nullptr);
}

TEST_F(ShardCutCoreTest, TheEndOfTheJobEndsIt) {
  Start("asp", 1);
  PublishCut(1, 1);
  view_.set_state(wire::FAILED);
  EXPECT_FALSE(Publish().cut.has_value());
  EXPECT_EQ(core_->CutOf(ShardId{0}), nullptr);
}

TEST_F(ShardCutCoreTest, ACutOfTheFirstViewThatIsSeenHasWhatComesThen) {
  SetCut(&view_, 1, 1);
  EXPECT_FALSE(Start("bsp", 1).cut.has_value());
  const std::optional<CutState> cut = PushBoth(0, 0, 2);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(First(cut->shards[0].values), -2);
}

TEST_F(ShardCutCoreTest, AThreadWithoutShardsHasItAtOnce) {
  Start("bsp", 2);
  ShardCore idle(ShardCore::Options{.self = {0, 7}},
                 config::LearningRateSchedule());
  SetCut(&view_, 3, 50);
  ShardCore::Effects effects;
  idle.OnView(*View::Create(view_), &effects);
  ASSERT_TRUE(effects.cut.has_value());
  EXPECT_EQ(effects.cut->number, 3);
  EXPECT_THAT(effects.cut->shards, IsEmpty());
  EXPECT_EQ(effects.cut->error, "");
}

// The coordinator makes none of these.
TEST_F(ShardCutCoreTest, AStrangeCutIsRefusedWithItsViewOrDoesNoHarm) {
  const auto strange = [](const std::function<void(wire::Cut&)>& change) {
    wire::Cut cut;
    change(cut);
    return cut;
  };
  const auto until = [](int32_t rank, Clock clock) {
    wire::Cut::Until result;
    result.set_rank(rank);
    result.set_incarnation(10 + static_cast<uint64_t>(rank));
    result.set_clock(clock);
    return result;
  };
  const wire::Cut cuts[] = {
      strange([](wire::Cut& cut) { cut.set_clock(-7); }),
      strange([](wire::Cut& cut) { cut.set_clock(kClockMax); }),
      strange([](wire::Cut& cut) {
        cut.set_clock(std::numeric_limits<int64_t>::max());
      }),
      strange([&](wire::Cut& cut) { *cut.add_until() = until(99, 3); }),
      strange([&](wire::Cut& cut) { *cut.add_until() = until(-1, 3); }),
      strange([&](wire::Cut& cut) { *cut.add_until() = until(0, -3); }),
      strange([&](wire::Cut& cut) {
        *cut.add_until() = until(0, 1);
        *cut.add_until() = until(0, 2);
      }),
      strange([&](wire::Cut& cut) {
        cut.set_clock(2);
        *cut.add_until() = until(1, 2);
      }),
      strange([&](wire::Cut& cut) {
        cut.set_by_worker(true);
        *cut.add_until() = until(1, 2);
      }),
  };
  int taken = 0;
  for (const char* const mode : {"bsp", "backup:1", "asp"}) {
    view_ = wire::View();
    Start(mode, 2);
    int32_t number = 0;
    Clock clock = 0;
    for (const wire::Cut& cut : cuts) {
      SCOPED_TRACE(absl::StrCat(mode, ": ", cut.ShortDebugString()));
      *view_.mutable_cut() = cut;
      view_.mutable_cut()->set_number(++number);
      view_.set_number(view_.number() + 1);
      const auto view = View::Create(view_);
      if (view.ok()) {
        ++taken;
        ShardCore::Effects effects;
        core_->OnView(*view, &effects);
      } else {
        SetCut(&view_, --number, 0);
      }
      for (const int rank : {0, 1}) PushBoth(rank, clock, 1);
      ++clock;
    }
    EXPECT_EQ(State().complete_clock(), clock);
    SetCut(&view_, -1, 0);
    EXPECT_FALSE(View::Create(view_).ok());
  }
  EXPECT_GT(taken, 0);
}

TEST_F(ShardCutCoreTest, ManyHistoriesWithACutAndWithout) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    view_ = wire::View();
    optimizer_ = Adam();
    Start("asp", 3);
    ShardCore with_cut =
        ShardCore({.self = {0, 0}, .seed = 1}, config::LearningRateSchedule());
    ShardCore before_it =
        ShardCore({.self = {0, 0}, .seed = 1}, config::LearningRateSchedule());
    const auto show = [&](ShardCore& core) {
      ShardCore::Effects effects;
      core.OnView(*View::Create(view_), &effects);
      return std::move(effects.cut);
    };
    Rng rng(seed);
    const std::vector<Clock> limits = {rng.Between(0, 9), rng.Between(0, 9),
                                       rng.Between(1, 9)};
    show(before_it);
    view_.set_number(view_.number() + 1);
    for (int rank = 0; rank < 3; ++rank) {
      wire::Cut::Until& until = *view_.mutable_cut()->add_until();
      until.set_rank(rank);
      until.set_incarnation(10 + static_cast<uint64_t>(rank));
      until.set_clock(limits[static_cast<size_t>(rank)]);
    }
    view_.mutable_cut()->set_number(1);
    std::optional<CutState> cut = show(with_cut);
    ASSERT_FALSE(cut.has_value());
    std::map<std::pair<int, int32_t>, Clock> clocks;
    for (int step = 0; step < 200; ++step) {
      const int rank = static_cast<int>(rng.Below(3));
      const auto shard = static_cast<int32_t>(rng.Below(2));
      Clock& clock = clocks[{rank, shard}];
      const Message push = PushOf(clock, static_cast<uint64_t>(clock) + 1,
                                  static_cast<float>(rng.Normal()), shard);
      const bool is_before = clock < limits[static_cast<size_t>(rank)];
      ++clock;
      ShardCore::Effects effects;
      core_->OnMessage(Worker(rank), push, &effects);
      ASSERT_FALSE(effects.cut.has_value());
      effects = {};
      with_cut.OnMessage(Worker(rank), push, &effects);
      if (effects.cut.has_value()) {
        ASSERT_FALSE(cut.has_value());
        cut = std::move(effects.cut);
      }
      if (is_before) before_it.OnMessage(Worker(rank), push, &effects);
    }
    ASSERT_TRUE(cut.has_value());
    for (const int32_t shard : {0, 1}) {
      const ShardState& state = cut->shards.at(static_cast<size_t>(shard));
      const Shard& twin = before_it.MachineOf(ShardId{shard})->shard();
      EXPECT_EQ(state.version, twin.version());
      EXPECT_EQ(BytesOf(state.values), BytesOf(twin.values()));
      for (size_t slot = 0; slot < 2; ++slot) {
        EXPECT_EQ(BytesOf(state.slots.at(slot)), BytesOf(twin.slots()[slot]));
      }
      EXPECT_EQ(Portrait(*with_cut.MachineOf(ShardId{shard})),
                Portrait(State(shard)));
    }
  }
}

// ---- Shards that change hands -----------------------------------------------

class ShardCutMoveTest : public ShardMoveTest {
 protected:
  // Of the next view, at server 0; the other one does not see it.
  std::optional<CutState> ShowNext() {
    NextView();
    ShardCore::Effects effects;
    cores_[0]->OnView(*View::Create(view_), &effects);
    return std::move(effects.cut);
  }
};

TEST_F(ShardCutMoveTest, AShardThatIsCutInTwoHasNoStateAndGoesOn) {
  Start("asp", 2);
  SetCut(&view_, 1, 2);
  ShowNext();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  const std::optional<CutState> cut = ShowNext();
  ASSERT_TRUE(cut.has_value());
  EXPECT_THAT(cut->error,
              AllOf(HasSubstr("weight[0, "), HasSubstr("split in two")));
  EXPECT_EQ(cut->number, 1);
  EXPECT_EQ(cores_[0]->CutOf(ShardId{1}), nullptr);
  Send(0, Worker(0), PushOf(1, 2, 5, 0, 1));
  Send(0, Worker(0), PushOf(1, 2, 5, 3, kElements - 1));
  EXPECT_EQ(Value(0, 3), -5);
  // The next one has both parts.
  SetCut(&view_, 2, 0);
  EXPECT_THAT(NamesOf(*ShowNext()),
              ElementsAre("weight[0, 1)", "weight[1, 4)", "weight[4, 8)"));
}

TEST_F(ShardCutMoveTest, ASplitAndANewerCutInOneViewAreNoError) {
  Start("asp", 1);
  SetCut(&view_, 1, 2);
  ShowNext();
  Split(0, 1);
  SetCut(&view_, 2, 0);
  const std::optional<CutState> cut = ShowNext();
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->number, 2);
  EXPECT_EQ(cut->error, "");
  EXPECT_THAT(cut->shards, SizeIs(3));
}

TEST_F(ShardCutMoveTest, AShardThatMovesAwayBeforeItIsThereHasNone) {
  Start("asp", 1);
  SetCut(&view_, 1, 1);
  Show();
  Move(0, 1);
  Show();
  // By hand, for what the messages do to the cut.
  std::optional<CutState> cut;
  for (int i = 0; i < 100 && !wire_.empty(); ++i) {
    const OnTheWire next = std::move(wire_.front());
    wire_.pop_front();
    ShardCore::Effects effects;
    cores_[next.to]->OnMessage(Thread(next.from), next.message, &effects);
    if (effects.cut.has_value()) {
      EXPECT_EQ(next.to, 0);
      EXPECT_FALSE(cut.has_value());
      cut = std::move(effects.cut);
    }
    Take(next.to, std::move(effects));
  }
  ASSERT_TRUE(cut.has_value());
  EXPECT_THAT(cut->error, AllOf(HasSubstr("weight[0, 4)"),
                                HasSubstr("moved to another thread")));
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(cores_[1]->CutOf(ShardId{0}), nullptr);
}

TEST_F(ShardCutMoveTest, AShardThatLeavesAfterItIsThereTakesNothingAway) {
  Start("asp", 1);
  SetCut(&view_, 1, 1);
  ShowNext();
  Send(0, Worker(0), PushOf(0, 1, 5));  // Shard 0 is there.
  Move(0, 1);
  Show();
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  ShardCore::Effects effects;
  cores_[0]->OnMessage(Worker(0), PushOf(0, 1, 5, 1), &effects);
  ASSERT_TRUE(effects.cut.has_value());
  EXPECT_THAT(NamesOf(*effects.cut),
              ElementsAre("weight[0, 4)", "weight[4, 8)"));
  EXPECT_EQ(First(effects.cut->shards[0].values), -5);
}

// ---- Shards from a checkpoint -----------------------------------------------

// Element i of a table has the value i, of slot s 100 * (s + 1) + i.
class NumberedShards final : public StoredShards {
 public:
  explicit NumberedShards(int slots) : slots_(slots) {}
  absl::StatusOr<ShardState> Read(const std::string& table,
                                  const Region& region,
                                  const TensorForm& /*form*/) const override {
    if (!error.ok()) return error;
    ShardState state{.table = table,
                     .region = region,
                     .version = version,
                     .values = Numbers(0, region)};
    for (int slot = 0; slot < slots_; ++slot)
      state.slots.push_back(Numbers(100 * (slot + 1), region));
    return state;
  }

  absl::Status error;
  Version version = 9;
  int64_t elements_more = 0;

 private:
  // Not at an address that floats may be computed at.
  Payload Numbers(int from, const Region& region) const {
    const auto bytes = std::make_shared<std::string>("x");
    for (int64_t i = region.begin(); i < region.end() + elements_more; ++i) {
      const float value = static_cast<float>(from + i);
      bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return Payload::Wrap(bytes->data() + 1, bytes->size() - 1, bytes);
  }
  const int slots_;
};

class ShardResumeTest : public ShardPhasesTest {
 protected:
  // What the core says of a checkpoint that is not right.
  std::string WhyNot(const std::function<void(NumberedShards&)>& spoil,
                     int slots = 2) {
    auto stored = std::make_shared<NumberedShards>(slots);
    spoil(*stored);
    stored_ = stored;
    optimizer_ = Adam();
    view_ = wire::View();
    const absl::Status failure = Start("bsp", 1).failure;
    EXPECT_FALSE(failure.ok());
    EXPECT_FALSE(core_->Owns(ShardId{0}));
    // What comes before the thread stops does no harm.
    PublishAnything();
    EXPECT_NE(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);
    return std::string(failure.message());
  }
  void PublishAnything() {
    SetCut(&view_, 1, 1);
    RemoveWorker(0);
    AddWorker(0, 10, true);
    Publish();
  }
};

TEST_F(ShardResumeTest, ShardsBeginWithWhatTheCheckpointHas) {
  stored_ = std::make_shared<NumberedShards>(2);
  optimizer_ = Adam();
  begins_at_ = {40, 40};
  EXPECT_TRUE(Start("bsp", 2).failure.ok());
  for (const int32_t shard : {0, 1}) {
    const ShardMachine& machine = State(shard);
    EXPECT_EQ(machine.shard().version(), 9u);
    EXPECT_EQ(First(machine.shard().values()), shard * kElements);
    ASSERT_THAT(machine.shard().slots(), SizeIs(2));
    EXPECT_EQ(First(machine.shard().slots()[1]), 200 + shard * kElements);
    EXPECT_EQ(machine.complete_clock(), 40);
    for (const Participant& founder : machine.participants()) {
      EXPECT_EQ(founder.clock, 40);
      EXPECT_EQ(founder.joined_at, 40);
      EXPECT_EQ(founder.next_seq, 1u);
    }
  }
  EXPECT_FALSE(core_->Owns(ShardId{2})) << "of another thread";
  // And go on: an update writes to memory of theirs.
  for (const int rank : {0, 1})
    EXPECT_EQ(PushCode(Worker(rank), PushOf(40, 1, 2)), Outcome::kOk);
  EXPECT_EQ(State().shard().version(), 10u);
  EXPECT_EQ(State().complete_clock(), 41);
}

TEST_F(ShardResumeTest, WhatTheShardDoesNextHasTheBitsOfOneThatWentOn) {
  optimizer_ = Adam();
  Start("bsp", 1);
  for (Clock clock = 0; clock < 3; ++clock)
    PushCode(Worker(0), PushOf(clock, static_cast<uint64_t>(clock) + 1, 2));
  class Copy final : public StoredShards {
   public:
    explicit Copy(const ShardCore& of) : of_(of) {}
    absl::StatusOr<ShardState> Read(const std::string& table,
                                    const Region& region,
                                    const TensorForm& /*form*/) const override {
      const Shard& shard =
          of_.MachineOf(
                 ShardId{static_cast<int32_t>(region.begin() / kElements)})
              ->shard();
      return ShardState{.table = table,
                        .region = region,
                        .version = shard.version(),
                        .values = shard.values(),
                        .slots = shard.slots()};
    }
    const ShardCore& of_;
  };
  wire::View view = view_;
  view.mutable_table(0)->mutable_initializer()->set_kind(
      wire::Initializer::OF_CHECKPOINT);
  view.mutable_worker(0)->set_begins_at(3);
  ShardCore resumed(
      {.self = {0, 0}, .seed = 5, .stored = std::make_shared<Copy>(*core_)},
      config::LearningRateSchedule());
  ShardCore::Effects effects;
  resumed.OnView(*View::Create(view), &effects);
  ASSERT_TRUE(effects.failure.ok()) << effects.failure;
  for (Clock clock = 3; clock < 6; ++clock) {
    PushCode(Worker(0), PushOf(clock, static_cast<uint64_t>(clock) + 1, 3));
    resumed.OnMessage(Worker(0),
                      PushOf(clock, static_cast<uint64_t>(clock) - 2, 3),
                      &effects);
  }
  const Shard& there = resumed.MachineOf(ShardId{0})->shard();
  EXPECT_EQ(there.version(), 6u);
  EXPECT_EQ(BytesOf(there.values()), BytesOf(State().shard().values()));
  for (const size_t slot : {0, 1}) {
    EXPECT_EQ(BytesOf(there.slots()[slot]),
              BytesOf(State().shard().slots()[slot]));
  }
}

TEST_F(ShardResumeTest, FoundersAtDifferentClocksGoOnFromTheirs) {
  stored_ = std::make_shared<NumberedShards>(0);
  begins_at_ = {7, 5};
  Start("ssp:1", 2);
  EXPECT_EQ(State().complete_clock(), 5);
  for (const int rank : {0, 1}) {
    const ShardCore::Effects joined =
        Send(Worker(rank), PullOf(0, 1, 0, /*join=*/true));
    ASSERT_THAT(joined.sends, SizeIs(1));
    const wire::PullAnswer& answer =
        joined.sends[0].message.header.pull_reply().answer(0);
    EXPECT_EQ(answer.values().shard_clock(),
              begins_at_[static_cast<size_t>(rank)]);
    EXPECT_EQ(answer.values().version(), 9u);
  }
  EXPECT_FALSE(AnswerIn(Send(Worker(0), PullAt(7, 3)), 3).has_value())
      << "two steps ahead";
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 2)), Outcome::kRejected);
  const ShardCore::Effects effects = Send(Worker(1), PushOf(5, 1, 2));
  EXPECT_EQ(AnswerIn(effects, 3), -1);
  EXPECT_EQ(PushCode(Worker(0), PushOf(7, 1, 2)), Outcome::kOk);
}

TEST_F(ShardResumeTest, InBspTheOthersWaitForTheOneThatIsBehind) {
  stored_ = std::make_shared<NumberedShards>(0);
  begins_at_ = {7, 5};
  Start("bsp", 2);
  EXPECT_EQ(PushCode(Worker(0), PushOf(7, 1, 2)), Outcome::kRetry);
  for (const Clock clock : {5, 6}) {
    EXPECT_EQ(
        PushCode(Worker(1), PushOf(clock, static_cast<uint64_t>(clock) - 4, 2)),
        Outcome::kOk);
  }
  EXPECT_EQ(State().complete_clock(), 7);
  EXPECT_EQ(Now(), -4);
  EXPECT_EQ(PushCode(Worker(0), PushOf(7, 1, 2)), Outcome::kOk);
}

// Otherwise whoever joins would do again what the checkpoint has.
TEST_F(ShardResumeTest, WithoutFoundersItBeginsWhereTheyWouldHave) {
  stored_ = std::make_shared<NumberedShards>(0);
  EXPECT_TRUE(Start("bsp", 2).failure.ok());
  view_.clear_worker();
  view_.set_begins_at(5);
  core_.emplace(
      ShardCore::Options{.self = {0, 0}, .seed = 5, .stored = stored_},
      config::LearningRateSchedule());
  EXPECT_TRUE(Publish().failure.ok());
  EXPECT_EQ(State().complete_clock(), 5);
  EXPECT_EQ(State().participants().MinClock(), 5);
}

TEST_F(ShardResumeTest, ValuesWithoutSlotsBeginTheOptimizerAnew) {
  stored_ = std::make_shared<NumberedShards>(0);
  optimizer_ = Adam();
  begins_at_ = {4};
  EXPECT_TRUE(Start("bsp", 1).failure.ok());
  ASSERT_THAT(State(1).shard().slots(), SizeIs(2));
  for (const Payload& slot : State(1).shard().slots())
    EXPECT_EQ(BytesOf(slot), std::string(kElements * sizeof(float), '\0'));
  EXPECT_EQ(First(State(1).shard().values()), kElements);
  EXPECT_EQ(State().shard().version(), 0u)
      << "Adam's corrections are of young moments";
}

TEST_F(ShardResumeTest, WhatCannotBeReadEndsTheThread) {
  EXPECT_THAT(WhyNot([](NumberedShards& stored) {
                stored.error = absl::DataLossError("part: torn at byte 12");
              }),
              AllOf(HasSubstr("shard weight[0, 4)"),
                    HasSubstr("part: torn at byte 12")));
  EXPECT_THAT(WhyNot([](NumberedShards& stored) { stored.elements_more = 1; }),
              HasSubstr("a tensor of 20 bytes; the shard has 16"));
  EXPECT_THAT(WhyNot([](NumberedShards& stored) { stored.elements_more = -1; }),
              HasSubstr("a tensor of 12 bytes"));
  EXPECT_THAT(WhyNot([](NumberedShards&) {}, /*slots=*/1),
              HasSubstr("1 optimizer slots, and the table's optimizer has 2"));
  EXPECT_THAT(WhyNot([](NumberedShards& stored) {
                stored.version = (Version{1} << 60) + 1;
              }),
              HasSubstr("above 2^60"));
}

TEST_F(ShardResumeTest, AServerWithoutTheCheckpointSaysWhatToDo) {
  Start("bsp", 1);
  ShardCore without({.self = {0, 0}, .seed = 1},
                    config::LearningRateSchedule());
  wire::View view = view_;
  view.mutable_table(0)->mutable_initializer()->set_kind(
      wire::Initializer::OF_CHECKPOINT);
  ShardCore::Effects effects;
  without.OnView(*View::Create(view), &effects);
  EXPECT_THAT(effects.failure.ToString(), HasSubstr("--resume"));
}

}  // namespace slackline::shard_core_cut_test
