// Goal: what becomes of a stale gradient is what the rule says, and a gradient
// with a NaN or an infinity counts as sent and changes nothing.
// Method: one core of a small job; SGD with learning rate 1 from zeros, so that
// values show what was applied.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline::shard_stale_test {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// ---- Stale gradients --------------------------------------------------------

TEST_F(ShardCoreTest, CompensatesFromTheVersionThatTheWorkerWasAnswered) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  Start("asp", 2);
  Send(Worker(0), PullOf(0, 1));
  Send(Worker(1), PullOf(0, 1));
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 4)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -2);  // Rate 1 / 2; it misses nothing.
  // 2 + 0.5 * 4 * (-2 - 0) = -2, and -2 - 1/2 * -2 = -1.
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -1);
}

TEST_F(ShardCoreTest, CompensatesNothingIfTheVersionIsNotKnown) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  Start("asp", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -3);
}

// Memory of the heap, of which somebody counts the pieces that are in use.
class CountedMemory : public PayloadMemory {
 public:
  Payload Allocate(size_t bytes) override {
    auto floats = std::make_shared<std::vector<float>>(bytes / sizeof(float));
    float* const data = floats->data();
    return Payload::WrapWritable(data, bytes,
                                 std::pair(std::move(floats), pieces_));
  }
  // There is one reference more than pieces.
  int64_t in_use() const { return pieces_.use_count() - 1; }

 private:
  std::shared_ptr<int> pieces_ = std::make_shared<int>();
};

TEST_F(ShardCoreTest, AVersionIsLetGoWithTheWorkerThatWasToldOfIt) {
  const auto memory = std::make_shared<CountedMemory>();
  memory_ = memory;
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  Start("asp", 2);
  PushCode(Worker(0), PushOf(0, 1, 4));
  Send(Worker(1), PullOf(0, 1));
  // So many that the store, too, has let go of that version.
  for (Clock clock = 1; clock < 6; ++clock) {
    Send(Worker(0), PullOf(clock, 1));
    PushCode(Worker(0), PushOf(clock, static_cast<uint64_t>(clock) + 1, 4));
  }
  const int64_t before = memory->in_use();
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(memory->in_use(), before - 1);
}

TEST_F(ShardCoreTest, ADroppedGradientIsAcknowledgedCountedAndNotApplied) {
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0.5);
  Start("ssp:5", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  PushCode(Worker(1), PushOf(1, 2, 4));
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);  // Misses two.
  EXPECT_EQ(Value(Worker(1)), -4);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(core_->Stats().updates(), 2u);
  EXPECT_EQ(core_->MachineOf(ShardId{0})->participants().MinClock(), 1);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk) << "repeated";
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 2)), Outcome::kOk)
      << "the next one";
}

TEST_F(ShardCoreTest, StalenessAwareRateIsThatOfTheGradientsDelay) {
  stale_.add_stale()->mutable_staleness_aware_rate();
  Start("asp", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(1)), -4);  // Nothing missed: the whole rate.
  PushCode(Worker(1), PushOf(1, 2, 0));
  PushCode(Worker(1), PushOf(2, 3, 0));
  PushCode(Worker(1), PushOf(3, 4, 0));
  PushCode(Worker(0), PushOf(0, 1, 2));  // Misses four: 1 / 4.
  EXPECT_EQ(Value(Worker(1)), -4.5);
}

TEST_F(ShardCoreTest, InBspNoGradientIsStale) {
  stale_.add_stale()->mutable_scale();
  Start("bsp", 2);
  PushCode(Worker(0), PushOf(0, 1, 4));
  PushCode(Worker(1), PushOf(0, 1, 4));
  PushCode(Worker(0), PushOf(1, 2, 4));  // Its base version is said to be 0.
  PushCode(Worker(1), PushOf(1, 2, 4));
  EXPECT_EQ(Value(Worker(1)), -8);
}

// ---- Gradients with a NaN or an infinity ------------------------------------

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rank, gradients, last clock and last shard of each worker's.
std::vector<std::string> Nonfinite(const ShardCore& core) {
  std::vector<std::string> lines;
  const run::ServerStats stats = core.Stats();
  for (const run::NonfiniteGradients& count : stats.nonfinite()) {
    lines.push_back(absl::StrCat("rank ", count.rank(), ": ", count.gradients(),
                                 ", last of clock ", count.last_clock(),
                                 " for shard ", count.last_shard()));
  }
  return lines;
}

TEST_F(ShardCoreTest, AGradientThatIsNotFiniteCountsAsSentAndChangesNothing) {
  for (const char* mode : {"ssp:3", "dssp:3:3", "asp"}) {
    view_ = wire::View();
    Start(mode, 2);
    Message push = PushOf(0, 1, 2);
    const float broken[kElements] = {1, 1, kNan, 1};
    push.payloads[0] = Payload::Copy(broken, sizeof(broken));
    const wire::PushReply reply = Push(Worker(0), push);
    EXPECT_THAT(OutcomesOf(reply.answer()), ElementsAre(Outcome::kOk));
    EXPECT_EQ(reply.answer(0).accepted_seq(), 1u);
    EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk) << "sent again";
    EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, -kInfinity)), Outcome::kOk);
    EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 4)), Outcome::kOk);
    EXPECT_EQ(Value(Worker(0)), -2);
    const ShardMachine& state = *core_->MachineOf(ShardId{0});
    EXPECT_EQ(state.shard().version(), 1u);
    EXPECT_EQ(state.participants().MinClock(), 1);
    EXPECT_EQ(core_->Stats().pushes(), 3u);
    EXPECT_EQ(core_->Stats().applied(), 1u);
    EXPECT_THAT(Nonfinite(*core_),
                ElementsAre("rank 0: 2, last of clock 1 for shard 0"));
  }
}

TEST_F(ShardCoreTest, AClockOfBspIsTheMeanOfTheFiniteGradients) {
  Start("bsp", 3);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), PushOf(0, 1, kNan));
  EXPECT_EQ(Value(Worker(0)), 0);
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(0)), -3);
  for (const int rank : {2, 1, 0})
    EXPECT_EQ(PushCode(Worker(rank), PushOf(1, 2, kInfinity)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(0)), -3) << "none is left";
  EXPECT_EQ(core_->MachineOf(ShardId{0})->complete_clock(), 2)
      << "complete all the same";
  EXPECT_EQ(core_->Stats().updates(), 1u);
  PushCode(Worker(0), PushOf(2, 3, 6));
  PushCode(Worker(1), PushOf(2, 3, 6));
  PushCode(Worker(2), PushOf(2, 3, 6));
  EXPECT_EQ(Value(Worker(0)), -9);
  EXPECT_THAT(Nonfinite(*core_),
              ElementsAre("rank 1: 2, last of clock 1 for shard 0",
                          "rank 2: 1, last of clock 1 for shard 0",
                          "rank 0: 1, last of clock 1 for shard 0"));
}

TEST_F(ShardCoreTest, TheJobIsToldAtOnceIfItIsToStop) {
  for (const auto policy : {config::Train::STOP, config::Train::SKIP}) {
    nonfinite_ = policy;
    view_ = wire::View();
    Start("bsp", 2);
    EXPECT_FALSE(Send(Worker(0), PushOf(0, 1, 1)).report);
    EXPECT_EQ(Send(Worker(1), PushOf(0, 1, kNan)).report,
              policy == config::Train::STOP);
    EXPECT_EQ(Value(Worker(0)), -1);
  }
}

TEST_F(ShardCoreTest, ARuleForStaleGradientsMakesNothingInfinite) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(1);
  Start("asp", 1);
  Send(Worker(0), PullOf(0, 1));
  PushCode(Worker(0), PushOf(0, 1, 1e15F));
  // Finite, but 1e15 + 1e30 * -1e15 is not.
  PushCode(Worker(0), PushOf(1, 2, 1e15F));
  EXPECT_EQ(Value(Worker(0)), -1e15F);
  EXPECT_THAT(Nonfinite(*core_),
              ElementsAre("rank 0: 1, last of clock 1 for shard 0"));
}

TEST_F(ShardCoreTest, ARuleRemembersNothingOfAGradientThatIsNotFinite) {
  auto& rule = *stale_.add_stale()->mutable_adaptive_delay_compensation();
  rule.set_lambda(1);
  rule.set_decay(0.5);
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, kNan));
  PushCode(Worker(0), PushOf(1, 2, 2));
  PushCode(Worker(0), PushOf(2, 3, 2));
  EXPECT_EQ(Value(Worker(0)), -4);
}

TEST_F(ShardCoreTest, ADiscardedGradientIsOneEntryOfTheTrace) {
  Start("asp", 2);
  const ShardCore::Effects effects = Send(Worker(1), PushOf(0, 1, kNan));
  ASSERT_THAT(effects.trace, SizeIs(1));
  EXPECT_EQ(effects.trace[0].kind, ShardTraceRecord::Kind::kPushDiscarded);
  EXPECT_EQ(effects.trace[0].rank, Rank{1});
  EXPECT_EQ(effects.trace[0].clock, 0);
}

}  // namespace slackline::shard_stale_test
