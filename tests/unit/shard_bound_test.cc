// Goal: a gradient above the bound counts as sent and changes nothing, in every
// mode over servers; whether it is above is the same in whatever order
// gradients come, and wherever the shard goes. Method: SGD with learning rate 1
// from zeros, so that values show what was applied. All elements of a gradient
// are equal, so that is its root mean square.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::shard_bound_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

config::GradientBound Rms(double rms) {
  config::GradientBound bound;
  bound.set_rms(rms);
  bound.set_policy(config::GradientBound::SKIP);
  return bound;
}

config::GradientBound Running(double times, int warm_up) {
  config::GradientBound bound;
  bound.set_times_running_rms(times);
  bound.set_warm_up_gradients(warm_up);
  bound.set_policy(config::GradientBound::SKIP);
  return bound;
}

std::vector<std::string> Oversized(const ShardCore& core) {
  std::vector<std::string> lines;
  const run::ServerStats stats = core.Stats();
  for (const run::OversizedGradients& count : stats.oversized()) {
    lines.push_back(absl::StrCat(
        "rank ", count.rank(), ": ", count.gradients(), ", last of clock ",
        count.last_clock(), " for shard ", count.last_shard(), ", ",
        count.last_rms(), " above ", count.last_bound()));
    if (count.has_last_running_rms())
      absl::StrAppend(&lines.back(), " of running ", count.last_running_rms());
  }
  return lines;
}

class ShardBoundTest : public ShardPhasesTest {};

TEST_F(ShardBoundTest, AGradientAboveItCountsAsSentAndChangesNothing) {
  bound_ = GradientBound(Rms(4));
  for (const char* mode : {"ssp:3", "dssp:3:3", "asp"}) {
    SCOPED_TRACE(mode);
    view_ = wire::View();
    Start(mode, 2);
    const wire::PushReply reply = Push(Worker(0), PushOf(0, 1, -4.5));
    EXPECT_THAT(OutcomesOf(reply.answer()), ElementsAre(Outcome::kOk));
    EXPECT_EQ(reply.answer(0).accepted_seq(), 1u);
    EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, -4.5)), Outcome::kOk) << "again";
    EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 4)), Outcome::kOk);
    EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 5)), Outcome::kOk);
    EXPECT_EQ(Now(), -2);
    EXPECT_EQ(State().participants().MinClock(), 1);
    EXPECT_EQ(core_->Stats().applied(), 1u);
    EXPECT_THAT(
        Oversized(*core_),
        ElementsAre("rank 0: 1, last of clock 0 for shard 0, 4.5 above 4",
                    "rank 1: 1, last of clock 0 for shard 0, 5 above 4"));
  }
}

TEST_F(ShardBoundTest, AClockOfBspIsTheMeanOfTheOthers) {
  bound_ = GradientBound(Rms(4));
  Start("bsp", 3);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), PushOf(0, 1, 1e30F));
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(State().complete_clock(), 1);
}

TEST_F(ShardBoundTest, InBackupItIsNoneOfTheFirstOnes) {
  bound_ = GradientBound(Rms(4));
  Start("backup:1", 3);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 100));
  PushCode(Worker(1), PushOf(0, 1, 2));
  EXPECT_EQ(Now(), 0) << "one more is needed";
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(core_->Stats().dropped(), 0u);
}

TEST_F(ShardBoundTest, ANanIsCountedAsANan) {
  bound_ = GradientBound(Rms(4));
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, kNan));
  EXPECT_THAT(Oversized(*core_), IsEmpty());
  EXPECT_EQ(core_->Stats().nonfinite_size(), 1);
}

TEST_F(ShardBoundTest, TheJobIsToldAtOnceIfItIsToStop) {
  for (const auto policy :
       {config::GradientBound::STOP, config::GradientBound::SKIP}) {
    config::GradientBound config = Rms(4);
    config.set_policy(policy);
    bound_ = GradientBound(config);
    view_ = wire::View();
    Start("bsp", 2);
    EXPECT_FALSE(Send(Worker(0), PushOf(0, 1, 1)).report);
    EXPECT_EQ(Send(Worker(1), PushOf(0, 1, 5)).report,
              policy == config::GradientBound::STOP);
    EXPECT_EQ(Now(), -1);
  }
}

TEST_F(ShardBoundTest, TheSizeIsThatOfTheGradientWithoutItsCode) {
  bound_ = GradientBound(Rms(4));
  Start("asp", 1);
  const GradientCode half{.kind = wire::Encoding::BFLOAT16};
  for (const float value : {4.0F, 8.0F}) {
    const bool first = value == 4;
    Message push = PushOf(first ? 0 : 1, first ? 1 : 2, 0);
    const std::vector<float> floats(kElements, value);
    Payload frame = Payload::Allocate(half.Bytes(kElements));
    Rng rng(1);
    Encode(half, Keep::kLargest, floats, &rng, frame.MutableData());
    push.payloads[0] = frame;
    *TheOnly(push).mutable_encoding() = EncodingOf(half, kElements);
    EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  }
  EXPECT_EQ(Now(), -4);
  EXPECT_THAT(Oversized(*core_), SizeIs(1));
}

TEST_F(ShardBoundTest, ARuleForStaleGradientsNeverSeesIt) {
  auto& rule = *stale_.add_stale()->mutable_adaptive_delay_compensation();
  rule.set_lambda(1);
  rule.set_decay(0.5);
  bound_ = GradientBound(Rms(4));
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 1e15F));
  PushCode(Worker(0), PushOf(1, 2, 2));
  PushCode(Worker(0), PushOf(2, 3, 2));
  EXPECT_EQ(Now(), -4);
}

TEST_F(ShardBoundTest, TheRunningOneHoldsAfterTheWarmUp) {
  bound_ = GradientBound(Running(2, 2));
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 1));
  PushCode(Worker(0), PushOf(1, 2, 3));  // Within the warm-up.
  EXPECT_EQ(State().running_rms(), RunningRms(2, 2));
  PushCode(Worker(0), PushOf(2, 3, 5));
  EXPECT_EQ(State().running_rms(), RunningRms(2, 2)) << "what is discarded";
  PushCode(Worker(0), PushOf(3, 4, -3.5));
  EXPECT_EQ(State().running_rms(), RunningRms(2.5, 3));
  EXPECT_EQ(Now(), -1 - 3 + 3.5);
  EXPECT_THAT(
      Oversized(*core_),
      ElementsAre("rank 0: 1, last of clock 2 for shard 0, 5 above 4 of "
                  "running 2"));
}

TEST_F(ShardBoundTest, InBspTheOrderOfAClockMakesNoDifference) {
  // Each may be three times what the clock before says.
  const std::vector<std::vector<float>> clocks = {
      {1, 2, 3}, {5, 7, 0.5}, {9, 0.1, 3}, {13, 14, 15}};
  std::vector<std::vector<std::string>> portraits;
  for (const auto& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    bound_ = GradientBound(Running(3, 2));
    view_ = wire::View();
    Start("bsp", 3);
    for (size_t clock = 0; clock < clocks.size(); ++clock) {
      for (const int rank : order) {
        EXPECT_EQ(PushCode(Worker(rank),
                           PushOf(static_cast<Clock>(clock), clock + 1,
                                  clocks[clock][static_cast<size_t>(rank)])),
                  Outcome::kOk);
      }
    }
    portraits.push_back(Portrait(State()));
    EXPECT_EQ(core_->Stats().applied() + 5, core_->Stats().pushes());
  }
  EXPECT_EQ(portraits[1], portraits[0]);
  EXPECT_EQ(portraits[2], portraits[0]);
}

TEST_F(ShardBoundTest, GradientsOfZerosDoNotMakeTheBoundZero) {
  bound_ = GradientBound(Running(2, 1));
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 0));
  PushCode(Worker(0), PushOf(1, 2, 3));
  EXPECT_EQ(Now(), -3);
  EXPECT_THAT(Oversized(*core_), IsEmpty());
}

TEST_F(ShardBoundTest, WithoutABoundNothingIsMeasured) {
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 1e30F));
  EXPECT_EQ(Now(), -1e30F);
  EXPECT_EQ(State().running_rms(), RunningRms());
}

// ---- Given delays -----------------------------------------------------------

// Turns of ranks 1, 0, 0, 1; whatever the order in which gradients come.
TEST_F(ShardBoundTest, OfGivenDelaysTheOrderOfTurnsDecides) {
  DelayTrace trace;
  trace.workers = 2;
  trace.shards.resize(3);
  for (DelayTrace::Shard& shard : trace.shards) {
    for (const auto& [clock, rank] : std::vector<std::pair<Clock, int32_t>>{
             {0, 1}, {0, 0}, {1, 0}, {1, 1}}) {
      shard.updates.push_back({.clock = clock, .ranks = {rank}, .workers = 2});
    }
    for (const int32_t rank : {0, 1}) {
      for (const Clock clock : {0, 1})
        shard.reads.push_back({.rank = rank, .clock = clock, .version = 0});
    }
  }
  const auto push = [&](int rank, Clock clock) {
    // Turn 0 has 1, turn 1 has 5: above 3 times turn 0, not the other way.
    const float gradients[2][2] = {{5, 2}, {1, 4}};
    return PushCode(Worker(rank),
                    PushOf(clock, static_cast<uint64_t>(clock) + 1,
                           gradients[rank][clock]));
  };
  for (const bool reversed : {false, true}) {
    SCOPED_TRACE(reversed);
    bound_ = GradientBound(Running(3, 1));
    delays_ = std::make_shared<const DelaySource>(DelaySource::OfTrace(trace));
    steps_total_ = 2;
    view_ = wire::View();
    Start("", 2);
    for (const int rank : reversed ? std::vector{0, 1} : std::vector{1, 0}) {
      for (const Clock clock : {0, 1})
        EXPECT_EQ(push(rank, clock), Outcome::kOk);
    }
    EXPECT_EQ(Now(), -(1 + 2 + 4) / 2.0F);
    EXPECT_EQ(State().running_rms().count(), 3u);
    EXPECT_THAT(Oversized(*core_),
                ElementsAre("rank 0: 1, last of clock 0 for shard 0, 5 above 3 "
                            "of running 1"));
    EXPECT_EQ(core_->Stats().held(), 0u);
  }
}

// ---- Shards that go elsewhere -----------------------------------------------

class ShardBoundMoveTest : public ShardMoveTest {
 protected:
  ShardBoundMoveTest() { bound_ = GradientBound(Running(2, 3)); }
  // Clock 0 of ranks 0 to 2, with the gradients 1, 2 and 3.
  void PushFirstClock() {
    for (const int rank : {0, 1, 2})
      Send(0, Worker(rank), PushOf(0, 1, static_cast<float>(rank + 1)));
  }
  // Of running 2: 4 is within the bound, and 4.5 is not.
  void ExpectBoundOfTwo(int server, Clock clock) {
    EXPECT_EQ(State(server, 0).running_rms().mean(), 2);
    const float before = Value(server);
    for (const float gradient : {4.5F, 4.0F, 1.0F}) {
      Send(server,
           Worker(gradient == 4.5F   ? 0
                  : gradient == 4.0F ? 1
                                     : 2),
           PushOf(clock, static_cast<uint64_t>(clock) + 1, gradient));
    }
    EXPECT_EQ(Value(server), before - 2.5F);
    EXPECT_THAT(Oversized(*cores_[server]), SizeIs(1));
  }
};

TEST_F(ShardBoundMoveTest, AShardThatMovesDecidesAsBefore) {
  Start("bsp", 3);
  PushFirstClock();
  // Some of the next clock are held while the shard moves.
  Send(0, Worker(2), PushOf(1, 2, 2));
  MoveNow(0, 1);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  Send(1, Worker(0), PushOf(1, 2, 2));
  Send(1, Worker(1), PushOf(1, 2, 2));
  EXPECT_EQ(State(1, 0).running_rms().count(), 6u);
  ExpectBoundOfTwo(1, 2);
}

TEST_F(ShardBoundMoveTest, AFollowerThatTakesAShardOverDecidesAsBefore) {
  followed_ = true;
  feed_.part_bytes = feed_.window_bytes = 1 << 20;
  Start("bsp", 3);
  Deliver();
  PushFirstClock();  // As a sum.
  Deliver();
  ASSERT_NE(cores_[1]->CopyOf(ShardId{0}), nullptr);
  EXPECT_EQ(Portrait(*cores_[1]->CopyOf(ShardId{0})), Portrait(State(0, 0)));
  Send(0, Worker(0), PushOf(1, 2, 100));  // Is no gradient to the copy.
  Send(0, Worker(1), PushOf(1, 2, 2));
  Send(0, Worker(2), PushOf(1, 2, 2));
  Tick(absl::Milliseconds(50));
  Deliver();
  EXPECT_EQ(Portrait(*cores_[1]->CopyOf(ShardId{0})), Portrait(State(0, 0)));
  Promote(0);
  NextView();
  ShowTo(1);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  ExpectBoundOfTwo(1, 2);
}

TEST_F(ShardBoundMoveTest, BothPartsOfAShardGoOnWithIts) {
  Start("bsp", 3);
  PushFirstClock();
  Split(0, 2);
  Show();
  for (const int32_t shard : {0, 3})
    EXPECT_EQ(State(0, shard).running_rms(), RunningRms(2, 3));
}

// ---- Checkpoints ------------------------------------------------------------

class OneSize final : public StoredShards {
 public:
  absl::StatusOr<ShardState> Read(const std::string& table,
                                  const Region& region,
                                  const TensorForm& /*form*/) const override {
    return ShardState{.table = table,
                      .region = region,
                      .version = 9,
                      .values = Floats(0, static_cast<int>(region.size())),
                      .running_rms = RunningRms(2, 50)};
  }
};

TEST_F(ShardBoundTest, WhoBeginsWithACheckpointGoesOnWithItsSize) {
  bound_ = GradientBound(Running(2, 50));
  stored_ = std::make_shared<OneSize>();
  Start("asp", 1);
  EXPECT_EQ(State().running_rms(), RunningRms(2, 50));
  PushCode(Worker(0), PushOf(0, 1, 5));
  EXPECT_EQ(Now(), 0);
  PushCode(Worker(0), PushOf(1, 2, 4));
  EXPECT_EQ(Now(), -4);
}

TEST_F(ShardBoundTest, ACutHasTheSizeOfTheGradientsBeforeIt) {
  bound_ = GradientBound(Running(100, 1));
  Start("asp", 2);
  PushCode(Worker(0), PushOf(0, 1, 1));
  PushCode(Worker(0), PushOf(0, 1, 1, 1));
  view_.mutable_cut()->set_number(1);
  view_.mutable_cut()->set_clock(1);
  ShardCore::Effects effects = Publish();
  EXPECT_FALSE(effects.cut.has_value());
  PushCode(Worker(0), PushOf(1, 2, 50));  // After the cut.
  PushCode(Worker(1), PushOf(0, 1, 3));
  effects = Send(Worker(1), PushOf(0, 1, 3, 1));
  ASSERT_TRUE(effects.cut.has_value());
  ASSERT_THAT(effects.cut->shards, SizeIs(2));
  EXPECT_EQ(effects.cut->shards[0].running_rms, RunningRms(2, 2));
  EXPECT_EQ(State().running_rms().count(), 3u);
}

}  // namespace slackline::shard_bound_test
