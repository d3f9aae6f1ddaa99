// Goal: in a job whose delays are given, a shard applies each gradient in its
// turn, answers each pull with the version that is named for it, and keeps no
// more than that takes. Method: one core of a small job with delays written out
// by hand; SGD with learning rate 1 from zeros, so that values show what was
// applied.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline::shard_delays_test {

using ::testing::HasSubstr;

class ShardDelaysTest : public ShardPhasesTest {
 protected:
  ShardDelaysTest() {
    trace_.workers = 2;
    trace_.shards.resize(3);
    for (DelayTrace::Shard& shard : trace_.shards) {
      for (const auto& [clock, rank] : std::vector<std::pair<Clock, int32_t>>{
               {0, 1}, {0, 0}, {1, 0}, {1, 1}}) {
        shard.updates.push_back(
            {.clock = clock, .ranks = {rank}, .workers = 2});
      }
      shard.reads = {{.rank = 0, .clock = 0, .version = 0},
                     {.rank = 1, .clock = 0, .version = 0},
                     {.rank = 0, .clock = 1, .version = 1},
                     {.rank = 1, .clock = 1, .version = 2}};
    }
  }
  void StartDelays() {
    delays_ = std::make_shared<const DelaySource>(DelaySource::OfTrace(trace_));
    steps_total_ = 2;
    started_ = Start("", 2);
  }
  // The worker's gradient of that clock, computed from that version.
  Message GivenPush(Clock clock, Version base, float gradient) {
    Message message = PushOf(clock, static_cast<uint64_t>(clock) + 1, gradient);
    TheOnly(message).set_gradient(base);
    return message;
  }
  const TurnState& Kept() { return State().turns()->state(); }
  std::string WhyRejected(int rank, const Message& message) {
    const wire::PushReply reply = Push(Worker(rank), message);
    EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRejected);
    return reply.answer(0).refusal().rejected();
  }

  DelayTrace trace_;
  ShardCore::Effects started_;  // What the first view has done.
};

TEST_F(ShardDelaysTest, AGradientWaitsForItsTurn) {
  StartDelays();
  EXPECT_EQ(PushCode(Worker(0), GivenPush(0, 0, 2)), Outcome::kOk);
  EXPECT_EQ(Now(), 0) << "acknowledged, and the other's turn is first";
  EXPECT_EQ(core_->Stats().held(), 1u);
  EXPECT_EQ(PushCode(Worker(0), GivenPush(0, 0, 2)), Outcome::kOk) << "again";
  EXPECT_EQ(core_->Stats().duplicates(), 1u);
  const ShardCore::Effects effects = Send(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(Now(), -2 - 1);
  std::vector<Rank> order;
  for (const ShardTraceRecord& record : effects.trace) {
    if (record.kind == ShardTraceRecord::Kind::kUpdated)
      order.push_back(record.ranks.at(0));
  }
  EXPECT_EQ(order, (std::vector<Rank>{Rank{1}, Rank{0}}));
  EXPECT_EQ(core_->Stats().held(), 0u);
  EXPECT_EQ(core_->Stats().applied(), 2u);
}

TEST_F(ShardDelaysTest, APullIsAnsweredWithTheVersionThatIsNamed) {
  StartDelays();
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullOf(0, 1, 0, /*join=*/true)), 1), 0);
  PushCode(Worker(0), GivenPush(0, 0, 2));
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullAt(1, 2)), 2), std::nullopt);
  const ShardCore::Effects effects = Send(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(AnswerIn(effects, 2), -2) << "parked until its turn, and no later";
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullAt(1, 3)), 3), -2) << "asked again";
  EXPECT_EQ(AnswerIn(Send(Worker(1), PullAt(1, 4)), 4), -3);
}

TEST_F(ShardDelaysTest, AVersionIsKeptUntilItsLastReaderHasPushed) {
  StartDelays();
  PushCode(Worker(0), GivenPush(0, 0, 2));
  EXPECT_EQ(Kept().kept.size(), 0u) << "the present one";
  PushCode(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(Kept().kept.size(), 1u) << "of turn 1, for rank 0";
  PushCode(Worker(0), GivenPush(1, 1, 6));
  EXPECT_EQ(Kept().kept.size(), 1u) << "of turn 2, for rank 1";
  EXPECT_EQ(Now(), -6);
  EXPECT_EQ(PullCode(Worker(0), PullAt(1, 9)), Outcome::kRetry)
      << "a late copy of a pull whose step is done";
  PushCode(Worker(1), GivenPush(1, 2, 8));
  EXPECT_EQ(Kept().kept.size(), 0u);
  EXPECT_TRUE(Kept().waiting.empty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PullAt(2, 10)), 10), -10) << "at the end";
}

TEST_F(ShardDelaysTest, TheFinalModelIsToldAfterAllTurns) {
  StartDelays();
  PushCode(Worker(0), GivenPush(0, 0, 2));
  PushCode(Worker(1), GivenPush(0, 0, 4));
  PushCode(Worker(0), GivenPush(1, 1, 6));
  EXPECT_EQ(PullCode(Worker(0), PullAt(2, 1)), Outcome::kNone) << "parked";
  const ShardCore::Effects again = Send(Worker(0), PullAt(2, 1));
  ASSERT_EQ(again.sends.size(), 1u);
  const wire::PullAnswer::Parked& parked =
      again.sends[0].message.header.pull_reply().answer(0).parked();
  EXPECT_EQ(parked.rank(), 1) << "whose turn is next";
  EXPECT_EQ(parked.clock(), 1);
  EXPECT_EQ(AnswerIn(Send(Worker(1), GivenPush(1, 2, 8)), 1), -10);
}

TEST_F(ShardDelaysTest, StalenessIsCountedAtTheTurns) {
  StartDelays();
  PushCode(Worker(0), GivenPush(0, 0, 2));
  PushCode(Worker(1), GivenPush(0, 0, 4));
  Send(Worker(0), PullAt(1, 1));
  Send(Worker(1), PullAt(1, 2));
  PushCode(Worker(0), GivenPush(1, 1, 6));
  PushCode(Worker(1), GivenPush(1, 2, 8));
  Send(Worker(0), PullAt(2, 3));
  const run::ServerStats stats = core_->Stats();
  // 0, 1, 1 and 1 updates missed.
  EXPECT_EQ(stats.missed_updates().bin(0), 1u);
  EXPECT_EQ(stats.missed_updates().bin(1), 3u);
  EXPECT_EQ(stats.missed_clocks().bin_size(), 1) << "less than one clock";
  EXPECT_EQ(stats.missed_clocks().bin(0), 4u);
  // Rank 0 is told a version without its own first gradient. The final model
  // is for no step.
  EXPECT_EQ(stats.lead().bin(0), 1u);
  EXPECT_EQ(stats.lead().bin(1), 1u);
}

TEST_F(ShardDelaysTest, WhatTheDelaysHaveNoPlaceForIsRejected) {
  StartDelays();
  EXPECT_THAT(WhyRejected(0, GivenPush(0, 1, 2)),
              HasSubstr("name the version after 0 updates, which is 0"));
  PushCode(Worker(0), GivenPush(0, 0, 2));
  EXPECT_THAT(WhyRejected(0, GivenPush(1, 1, 2)),
              HasSubstr("after 1 updates, which is not there yet"));
  EXPECT_THAT(WhyRejected(1, AdvanceOf(2, 1)), HasSubstr("skips steps"));
  PushCode(Worker(1), GivenPush(0, 0, 4));
  PushCode(Worker(0), GivenPush(1, 1, 6));
  EXPECT_THAT(WhyRejected(0, GivenPush(2, 3, 2)),
              HasSubstr("the job has 2 steps"));
}

// Of a table whose optimizer does nothing in a step.
TEST_F(ShardDelaysTest, ATurnMayPassWithoutAGradient) {
  StartDelays();
  EXPECT_EQ(PushCode(Worker(1), AdvanceOf(1, 1)), Outcome::kOk);
  EXPECT_EQ(PushCode(Worker(0), AdvanceOf(1, 1)), Outcome::kOk);
  EXPECT_EQ(PushCode(Worker(0), GivenPush(1, 0, 6)), Outcome::kOk);
  EXPECT_EQ(PushCode(Worker(1), GivenPush(1, 0, 8)), Outcome::kOk);
  EXPECT_EQ(core_->Stats().applied(), 2u);
}

TEST_F(ShardDelaysTest, AGradientThatNoUpdateHasIsDropped) {
  for (DelayTrace::Shard& shard : trace_.shards) {
    shard.updates.erase(shard.updates.begin() + 1);  // Of rank 0 and clock 0.
    shard.reads[3].version = 1;
  }
  StartDelays();
  EXPECT_EQ(PushCode(Worker(0), GivenPush(0, 0, 2)), Outcome::kOk);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(core_->Stats().held(), 0u);
  PushCode(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(Now(), -2);
}

TEST_F(ShardDelaysTest, AMeanOfAClockIsOneUpdateInTheGivenOrder) {
  for (DelayTrace::Shard& shard : trace_.shards) {
    shard.updates = {{.clock = 0, .ranks = {0, 1}, .workers = 2},
                     {.clock = 1, .ranks = {0, 1}, .workers = 2}};
    shard.reads[2].version = shard.reads[3].version = 1;
  }
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0);
  StartDelays();
  PushCode(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(Now(), 0);
  PushCode(Worker(0), GivenPush(0, 0, 2));
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(core_->Stats().updates(), 1u);
}

TEST_F(ShardDelaysTest, ARuleForStaleGradientsSeesTheGivenVersion) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  StartDelays();
  PushCode(Worker(0), GivenPush(0, 0, 2));
  PushCode(Worker(1), GivenPush(0, 0, 4));
  // -2 from rank 1; 2 + 0.5 * 4 * (-2 - 0) = -2 from rank 0.
  EXPECT_EQ(Now(), -2 + 1);
  // From version 1, which is -2: 2 + 0.5 * 4 * (-1 + 2) = 4.
  PushCode(Worker(0), GivenPush(1, 1, 2));
  EXPECT_EQ(Now(), -1 - 2);
}

TEST_F(ShardDelaysTest, ADroppedGradientPassesItsTurn) {
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0.25);
  StartDelays();
  PushCode(Worker(0), GivenPush(0, 0, 2));
  const ShardCore::Effects effects = Send(Worker(0), PullAt(1, 5));
  EXPECT_EQ(AnswerIn(effects, 5), std::nullopt);
  PushCode(Worker(1),
           GivenPush(0, 0, 4));  // Rank 0's misses one: half a clock.
  EXPECT_EQ(Now(), -2);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  // After two turns, of which one changed nothing.
  EXPECT_EQ(AnswerIn(Send(Worker(1), PullAt(1, 6)), 6), -2);
  EXPECT_EQ(PushCode(Worker(1), GivenPush(1, 1, 8)), Outcome::kOk);
}

TEST_F(ShardDelaysTest, AGradientThatIsNotFinitePassesItsTurn) {
  StartDelays();
  EXPECT_EQ(PushCode(Worker(1), GivenPush(0, 0, kNan)), Outcome::kOk);
  EXPECT_EQ(core_->Stats().nonfinite(0).gradients(), 1);
  PushCode(Worker(0), GivenPush(0, 0, 2));
  EXPECT_EQ(Now(), -1);
  EXPECT_EQ(core_->Stats().updates(), 1u);
  EXPECT_EQ(PushCode(Worker(0), GivenPush(1, 0, 2)), Outcome::kOk)
      << "after one turn, which is still version 0";
}

TEST_F(ShardDelaysTest, ARateFactorIsThatOfItsGradient) {
  StartDelays();
  Message slow = GivenPush(0, 0, 2);
  TheOnly(slow).mutable_options()->set_rate_factor(0.5);
  PushCode(Worker(0), slow);
  PushCode(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(Now(), -2 - 0.5);
}

// ---- Checkpoints ------------------------------------------------------------

class ShardDelaysCutTest : public ShardDelaysTest {
 protected:
  // Of each rank's gradients those before that clock.
  ShardCore::Effects PublishCut(Clock of_0, Clock of_1) {
    wire::Cut& cut = *view_.mutable_cut();
    cut.set_number(cut.number() + 1);
    cut.clear_until();
    for (const auto& [rank, clock] :
         std::vector<std::pair<int32_t, Clock>>{{0, of_0}, {1, of_1}}) {
      wire::Cut::Until& until = *cut.add_until();
      until.set_rank(rank);
      until.set_incarnation(static_cast<Incarnation>(10 + rank));
      until.set_clock(clock);
    }
    return Publish();
  }
  // The same gradient for both shards of the core.
  ShardCore::Effects PushBoth(int rank, Clock clock, Version base,
                              float gradient) {
    Message other =
        PushOf(clock, static_cast<uint64_t>(clock) + 1, gradient, 1);
    TheOnly(other).set_gradient(base);
    ShardCore::Effects effects = Send(Worker(rank), other);
    if (effects.cut.has_value()) return effects;
    return Send(Worker(rank), GivenPush(clock, base, gradient));
  }
  // The job goes on in another core from what this one has written.
  void GoOn(const ShardCutState& written, Clock of_0, Clock of_1) {
    class Written final : public StoredShards {
     public:
      explicit Written(const ShardCutState& state) : state_(state) {}
      absl::StatusOr<ShardState> Read(
          const std::string& table, const Region& region,
          const TensorForm& /*form*/) const override {
        for (const ShardState& shard : state_.shards) {
          if (shard.table == table && shard.region == region) return shard;
        }
        return absl::NotFoundError("it is of the other thread");
      }
      const ShardCutState state_;
    };
    stored_ = std::make_shared<Written>(written);
    begins_at_ = {of_0, of_1};
    view_ = wire::View();
    core_.reset();
    StartDelays();
  }
};

TEST_F(ShardDelaysCutTest, ItHasTheTurnsWhoseGradientsAreBeforeIt) {
  StartDelays();
  PushBoth(0, 0, 0, 2);
  PushBoth(1, 0, 0, 4);
  EXPECT_FALSE(PublishCut(2, 1).cut.has_value());
  EXPECT_FALSE(PushBoth(1, 1, 2, 8).cut.has_value()) << "after it";
  // All that it had to push is pushed, and what the copy lacks is not
  // forgotten.
  RemoveWorker(1);
  Publish();
  const ShardCore::Effects effects = PushBoth(0, 1, 1, 6);
  EXPECT_EQ(Now(), -10) << "the live shard has taken all turns";
  ASSERT_TRUE(effects.cut.has_value());
  EXPECT_EQ(effects.cut->error, "");
  ASSERT_EQ(effects.cut->shards.size(), 2u);
  for (const ShardState& shard : effects.cut->shards) {
    EXPECT_EQ(shard.version, 3u);
    EXPECT_EQ(First(shard.values), -6);
    ASSERT_TRUE(shard.turns.has_value());
    EXPECT_EQ(shard.turns->turns.over(), 3);
    EXPECT_EQ(shard.turns->turns.waiting_size(), 0);
    ASSERT_EQ(shard.turns->turns.kept_size(), 1) << "for rank 1";
    EXPECT_EQ(shard.turns->turns.kept(0).turns(), 2);
    EXPECT_EQ(First(shard.turns->tensors.at(0)), -3);
  }

  GoOn(*effects.cut, 2, 1);
  EXPECT_EQ(Now(), -6);
  const ShardCore::Effects joined =
      Send(Worker(1), PullOf(0, 7, 0, /*join=*/true));
  EXPECT_EQ(AnswerIn(joined, 7), -3) << "the version that is named for it";
  EXPECT_EQ(joined.sends.at(0)
                .message.header.pull_reply()
                .answer(0)
                .values()
                .shard_clock(),
            1);
  Message last = PushOf(1, 1, 8);
  TheOnly(last).set_gradient(2);
  EXPECT_EQ(PushCode(Worker(1), last), Outcome::kOk);
  EXPECT_EQ(Now(), -10) << "the same bits as without the checkpoint";
  EXPECT_EQ(PullCode(Worker(1), PullOf(0, 8, 0, /*join=*/true)),
            Outcome::kRetry)
      << "a late copy of the pull with which it joined";
}

TEST_F(ShardDelaysCutTest, AGradientWaitsThereForItsTurn) {
  StartDelays();
  EXPECT_FALSE(PublishCut(1, 0).cut.has_value());
  const ShardCore::Effects effects = PushBoth(0, 0, 0, 2);
  // The first shard to be complete is not the last.
  ASSERT_TRUE(effects.cut.has_value());
  ASSERT_EQ(effects.cut->shards.size(), 2u);
  for (const ShardState& shard : effects.cut->shards) {
    EXPECT_EQ(shard.version, 0u);
    ASSERT_TRUE(shard.turns.has_value());
    EXPECT_EQ(shard.turns->turns.over(), 0);
    ASSERT_EQ(shard.turns->turns.waiting_size(), 1);
    EXPECT_EQ(First(shard.turns->tensors.at(0)), 2);
  }
  GoOn(*effects.cut, 1, 0);
  EXPECT_EQ(Now(), 0);
  // What it is to compute its step from is not there yet.
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullOf(0, 5, 0, /*join=*/true)), 5),
            std::nullopt);
  const ShardCore::Effects first = Send(Worker(1), GivenPush(0, 0, 4));
  EXPECT_EQ(AnswerIn(first, 5), -2);
  EXPECT_EQ(first.sends.back()
                .message.header.pull_reply()
                .answer(0)
                .values()
                .shard_clock(),
            1)
      << "the clock at which it begins, though all are at another one";
  EXPECT_EQ(Now(), -3);
}

TEST_F(ShardDelaysCutTest, WhatDoesNotFitIsRefusedWithAReason) {
  StartDelays();
  PublishCut(1, 0);
  const ShardCutState written = *PushBoth(0, 0, 0, 2).cut;
  const auto why = [&](const std::function<void(StoredTurns&)>& spoil) {
    ShardCutState spoilt = written;
    for (ShardState& shard : spoilt.shards) spoil(*shard.turns);
    stored_ = nullptr;
    begins_at_.clear();
    GoOn(spoilt, 1, 0);
    return std::string(started_.failure.message());
  };
  EXPECT_THAT(why([](StoredTurns& turns) { turns.turns.set_over(9); }),
              HasSubstr("9 turns"));
  EXPECT_THAT(why([](StoredTurns& turns) { turns.turns.set_plan(2); }),
              HasSubstr("has turns of shard 2 of the delays"));
  EXPECT_THAT(why([](StoredTurns& turns) {
                turns.turns.mutable_waiting(0)->set_clock(1);
              }),
              HasSubstr("waits for its turn, which it cannot have"));
  EXPECT_THAT(why([](StoredTurns& turns) {
                turns.turns.add_kept()->set_version(0);
                turns.tensors.push_back(turns.tensors.at(0));
              }),
              HasSubstr("go on from another one"));
}

}  // namespace slackline::shard_delays_test
