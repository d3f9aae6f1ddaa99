// The lanes of a link, without a ClientCore: what their windows allow, what an
// answer decides, and when their timers are due.
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client_core_fixture.h"
#include "worker/client/client_links.h"
#include "worker/client/link_probe.h"
#include "worker/client/pull_lane.h"
#include "worker/client/push_lane.h"

namespace slackline::client_lanes_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LaneTest : public ::testing::Test {
 protected:
  LaneTest()
      : view_(TestView()),
        routes_(*View::Create(view_)),
        sequences_(kShards),
        round_trip_({.timeout_min = absl::Milliseconds(100),
                     .timeout_max = absl::Milliseconds(400)}) {
    options_.window_bytes = 2 * kShardBytes;
    options_.message_bytes = kShardBytes;
    options_.retry_initial = absl::Milliseconds(100);
    options_.retry_max = absl::Milliseconds(400);
  }

  ClientParts Parts() {
    return {.options = options_,
            .routes = routes_,
            .sequences = sequences_,
            .pulls = pulls_,
            .numbers = numbers_,
            .counts = counts_,
            .now = now_,
            .effects = effects_};
  }
  // A gradient of a whole shard.
  PushEntry Gradient(int32_t shard) {
    PushEntry entry = {.shard = shard,
                       .seq = sequences_.Next(shard),
                       .elements = 4,
                       .values = Payload::Allocate(kShardBytes),
                       .slots = {}};
    counts_.Pushed(entry.bytes());
    return entry;
  }
  static PullUnit Pull(uint64_t id, std::vector<int32_t> shards) {
    PullUnit unit;
    unit.id = unit.pull_id = id;
    unit.asked = AskForStep(0, 0);
    unit.bytes = kShardBytes * shards.size();
    unit.shards = std::move(shards);
    return unit;
  }
  // The shards of the messages that were sent since the last call.
  std::vector<int32_t> Sent() {
    std::vector<int32_t> shards;
    for (const ClientSend& send : effects_.sends) {
      const wire::Header& header = send.message.header;
      const std::vector<int32_t> sent =
          header.has_push_request() ? ShardsOf(header.push_request().push())
                                    : ShardsOf(header.pull_request());
      shards.insert(shards.end(), sent.begin(), sent.end());
    }
    effects_.sends.clear();
    return shards;
  }

  wire::View view_;
  ClientOptions options_;
  Routes routes_;
  PushSequences sequences_;
  PendingPulls pulls_;
  RequestNumbers numbers_;
  ClientCounts counts_;
  RoundTrip round_trip_;
  absl::Time now_ = absl::UnixEpoch();
  ClientEffects effects_;
};

// ---- Pushes -----------------------------------------------------------------

class PushLaneTest : public LaneTest {
 protected:
  void Add(int32_t shard) {
    lane_.Add(Gradient(shard), TableId{0}, options_.message_bytes);
  }
  // Sends what may go, and sets the timers.
  std::vector<int32_t> Pump() {
    lane_.Repair(/*trial=*/false, Parts());
    while (std::optional<PushUnit> unit = lane_.TakeNext())
      lane_.SendFirst(*std::move(unit), Parts());
    lane_.SetTimers(round_trip_, /*probe_under_way=*/false, Parts());
    return Sent();
  }
  bool DropAccepted() { return lane_.DropAccepted(sequences_, counts_, now_); }

  PushLane lane_{kThread0, options_};
};

TEST_F(PushLaneTest, WhatIsFullGoesWithinTheWindowAndTheRestAtItsClocksEnd) {
  for (const int32_t shard : {0, 2, 4}) Add(shard);
  EXPECT_THAT(Pump(), ElementsAre(0, 2));
  EXPECT_EQ(lane_.size(), 3u);
  ASSERT_TRUE(sequences_.Accept(0, 1));
  EXPECT_TRUE(DropAccepted());
  EXPECT_FALSE(DropAccepted());
  EXPECT_THAT(Pump(), ElementsAre(4));
  options_.message_bytes = 10 * kShardBytes;
  options_.window_bytes = 10 * kShardBytes;
  EXPECT_FALSE(lane_.EndClock()) << "nothing was added";
  Add(6);
  EXPECT_THAT(Pump(), IsEmpty());
  EXPECT_TRUE(lane_.EndClock());
  EXPECT_FALSE(lane_.EndClock());
  EXPECT_THAT(Pump(), ElementsAre(6));
}

TEST_F(PushLaneTest, OfRefusedPushesTheFirstIsTriedAndTheOthersFollowIt) {
  for (const int32_t shard : {0, 2}) Add(shard);
  Pump();
  const absl::Time doubt = now_ + absl::Milliseconds(100);
  EXPECT_EQ(lane_.NextWakeup(), doubt);
  for (const uint64_t number : {1, 2}) {
    EXPECT_NE(lane_.OnReply(number), nullptr);
    EXPECT_EQ(lane_.OnReply(number), nullptr) << "only the first reply";
    lane_.OnRefused(number, number == 1 ? 0 : 2, sequences_);
    lane_.OnReplyEnd(number, sequences_);
  }
  EXPECT_THAT(Pump(), IsEmpty());
  EXPECT_EQ(lane_.NextWakeup(), now_ + options_.refused_delay);
  now_ = lane_.NextWakeup();
  EXPECT_FALSE(lane_.OnTick(Parts())) << "a trial is no reason for a probe";
  EXPECT_THAT(Sent(), ElementsAre(0));
  ASSERT_TRUE(sequences_.Accept(0, 1));
  lane_.OnReplyEnd(3, sequences_);
  DropAccepted();
  EXPECT_THAT(Pump(), ElementsAre(2));
  EXPECT_EQ(counts_.retries(), 2u);
}

TEST_F(PushLaneTest, AProbeDecidesAboutWhatWasSentBeforeIt) {
  for (const int32_t shard : {0, 2}) Add(shard);
  Pump();
  now_ = lane_.NextWakeup();
  EXPECT_TRUE(lane_.OnTick(Parts()));
  std::set<int32_t> shards;
  lane_.AddShardsInDoubt(1, sequences_, &shards);
  EXPECT_THAT(shards, ElementsAre(0));
  lane_.OnProbeReply(1, {0, 2}, Parts());
  EXPECT_THAT(Pump(), ElementsAre(0)) << "number 2 was sent after the probe";
  EXPECT_TRUE(lane_.HasOvertaken(3, 0)) << "by number 2";
  EXPECT_FALSE(lane_.HasOvertaken(3, 2)) << "which a probe asks about";
}

TEST_F(PushLaneTest, WhatHasMovedLeavesWithItsBytes) {
  for (const int32_t shard : {0, 2, 4}) Add(shard);
  Pump();
  view_.set_number(3);
  view_.set_owner_thread(0, 1);
  view_.set_owner_thread(4, 1);
  ASSERT_TRUE(routes_.Adopt(*View::Create(view_)).moved);
  StraysByOwner strays;
  lane_.TakeStrays(Parts(), &strays);
  ASSERT_EQ(strays.size(), 1u);
  std::vector<PushUnit>& pushes = strays.at(kThread1).pushes;
  ASSERT_EQ(pushes.size(), 2u);
  EXPECT_EQ(pushes[0].entries.at(0).shard, 0);
  EXPECT_EQ(pushes[1].entries.at(0).shard, 4);
  EXPECT_EQ(lane_.size(), 1u);
  EXPECT_EQ(counts_.bytes_pushed(), kShardBytes);
  EXPECT_EQ(counts_.unacknowledged_bytes(), 3 * kShardBytes);
  PushLane elsewhere(kThread1, options_);
  for (PushUnit& unit : pushes) elsewhere.SendFirst(std::move(unit), Parts());
  EXPECT_EQ(counts_.bytes_pushed(), 3 * kShardBytes);
  EXPECT_EQ(counts_.bytes_resent(), kShardBytes) << "the other one was queued";
}

TEST_F(PushLaneTest, WhatHasGrownSinceItMovedCountsAsFarAsItIsSentAgain) {
  const GradientCode code = {.kind = wire::Encoding::INT8, .block = 4};
  PushEntry entry = {.seq = sequences_.Next(0),
                     .code = code,
                     .elements = 4,
                     .values = Payload::Allocate(code.Bytes(4)),
                     .slots = {}};
  ASSERT_EQ(entry.bytes(), 8u);
  counts_.Pushed(8);
  lane_.Add(std::move(entry), TableId{0}, options_.message_bytes);
  lane_.EndClock();
  Pump();
  EXPECT_EQ(counts_.bytes_pushed(), 8u);
  view_.set_number(3);
  view_.set_owner_thread(0, 1);
  ASSERT_TRUE(routes_.Adopt(*View::Create(view_)).moved);
  StraysByOwner strays;
  lane_.TakeStrays(Parts(), &strays);
  PushLane elsewhere(kThread1, options_);
  for (PushUnit& unit : strays.at(kThread1).pushes)
    elsewhere.Queue(std::move(unit));
  view_.set_number(4);
  wire::Split& split = *view_.add_split();
  split.set_shard(0);
  split.set_at(1);
  split.set_since(4);
  view_.add_owner_server(0);
  view_.add_owner_thread(1);
  const Routes::Change change = routes_.Adopt(*View::Create(view_));
  sequences_.Split(change.splits.at(0));
  elsewhere.Split(change.splits.at(0), counts_);
  EXPECT_EQ(counts_.unacknowledged_bytes(), 16u) << "as floats";
  ASSERT_TRUE(sequences_.Accept(8, 1)) << "by the owner before";
  elsewhere.SendFirst(*elsewhere.TakeNext(), Parts());
  EXPECT_EQ(counts_.bytes_pushed(), 16u);
  EXPECT_EQ(counts_.bytes_resent(), 4u) << "the one element that was kept";
}

// ---- Pulls ------------------------------------------------------------------

class PullLaneTest : public LaneTest {
 protected:
  std::vector<int32_t> Pump() {
    lane_.SendWhatFits(round_trip_, Parts());
    return Sent();
  }

  PullLane lane_{kThread0};
};

TEST_F(PullLaneTest, TheWindowHoldsBackUntilAShardHasAnswered) {
  lane_.Queue(Pull(90, {0, 2}));
  lane_.Queue(Pull(91, {4}));
  EXPECT_THAT(Pump(), ElementsAre(0, 2));
  lane_.OnValues(*lane_.Find(90), 2, round_trip_, Parts());
  lane_.DropAnswered();
  EXPECT_THAT(Pump(), ElementsAre(4));
  lane_.OnValues(*lane_.Find(90), 0, round_trip_, Parts());
  lane_.DropAnswered();
  EXPECT_EQ(lane_.Find(90), nullptr);
  EXPECT_EQ(lane_.size(), 1u);
  lane_.ForgetPull(91);
  EXPECT_TRUE(lane_.idle());
}

TEST_F(PullLaneTest, ALateAnswerIsAskedForAgainWhenALaterProbeIsAnswered) {
  lane_.Queue(Pull(90, {0}));
  Pump();  // As number 1.
  EXPECT_EQ(lane_.NextWakeup(), now_ + absl::Milliseconds(100));
  EXPECT_FALSE(lane_.OnTick(round_trip_, Parts()));
  EXPECT_EQ(lane_.ShardInDoubt(), nullptr);
  now_ = lane_.NextWakeup();
  EXPECT_TRUE(lane_.OnTick(round_trip_, Parts()));
  EXPECT_THAT(Sent(), IsEmpty());
  ASSERT_NE(lane_.ShardInDoubt(), nullptr);
  EXPECT_EQ(*lane_.ShardInDoubt(), 0);
  EXPECT_TRUE(lane_.OnProbeReply(0, round_trip_, Parts())) << "an older one";
  EXPECT_THAT(Sent(), IsEmpty());
  EXPECT_FALSE(lane_.OnProbeReply(2, round_trip_, Parts()));
  EXPECT_THAT(Sent(), ElementsAre(0));
  EXPECT_EQ(counts_.retries(), 1u);
}

TEST_F(PullLaneTest, AParkedPullWaitsForAWorkerAndWasNoRetry) {
  lane_.Queue(Pull(90, {0}));
  Pump();
  now_ = lane_.NextWakeup();
  lane_.OnTick(round_trip_, Parts());
  lane_.OnProbeReply(2, round_trip_, Parts());
  wire::PullAnswer::Parked at;
  at.set_rank(3);
  at.set_clock(7);
  lane_.OnParked(*lane_.Find(90), at, round_trip_, Parts());
  EXPECT_EQ(counts_.retries(), 0u);
  const PullUnit& unit = lane_.in_flight().front();
  EXPECT_TRUE(unit.parked());
  EXPECT_EQ(unit.waiting_since, absl::UnixEpoch()) << "since it was asked";
  now_ += absl::Milliseconds(5);
  lane_.OnParked(*lane_.Find(90), at, round_trip_, Parts());
  EXPECT_EQ(unit.waiting_since, absl::UnixEpoch()) << "no progress";
  at.set_clock(8);
  lane_.OnParked(*lane_.Find(90), at, round_trip_, Parts());
  EXPECT_EQ(unit.waiting_since, now_);
}

TEST_F(PullLaneTest, PullsGoBehindPushesOnceAndOnlyIfSomebodyWaits) {
  const uint64_t pull = pulls_.Add(routes_.shared_view(), 4);
  PushUnit pushes;
  for (const int32_t shard : {0, 2, 4}) {
    pushes.Add(Gradient(shard), TableId{0});
    pushes.entries.back().then_pull = shard == 4 ? pull + 1 : pull;
  }
  lane_.QueueBehind(&pushes, Parts());
  lane_.QueueBehind(&pushes, Parts());
  EXPECT_EQ(lane_.size(), 1u);
  EXPECT_THAT(Pump(), ElementsAre(0, 2));
  EXPECT_EQ(lane_.in_flight().front().clock(), 4);
  EXPECT_EQ(lane_.in_flight().front().asked->step().own_clock(), 4);
}

// ---- Links ------------------------------------------------------------------

TEST_F(LaneTest, OneProbeIsUnderWayAndItsTimeOutDoubles) {
  LinkProbe probe;
  EXPECT_FALSE(probe.OnReply(0, round_trip_, now_)) << "nothing was asked";
  probe.Begin(5, round_trip_, now_);
  EXPECT_TRUE(probe.under_way());
  EXPECT_FALSE(probe.OnTick(now_));
  now_ = probe.NextWakeup();
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Milliseconds(100));
  EXPECT_TRUE(probe.OnTick(now_));
  probe.Begin(7, round_trip_, now_);
  EXPECT_EQ(probe.NextWakeup(), now_ + absl::Milliseconds(200));
  EXPECT_FALSE(probe.OnReply(8, round_trip_, now_)) << "it was never sent";
  EXPECT_TRUE(probe.OnReply(5, round_trip_, now_));
  EXPECT_TRUE(probe.under_way()) << "the reply was to the one before";
  EXPECT_TRUE(probe.OnReply(7, round_trip_, now_));
  EXPECT_FALSE(probe.under_way());
  EXPECT_EQ(probe.NextWakeup(), absl::InfiniteFuture());
}

TEST_F(LaneTest, LinksArePumpedInTheOrderInWhichTheyWereTouched) {
  ClientLinks links(options_, routes_);
  for (const int32_t shard : {1, 0, 3}) {
    links.Touch(routes_.OwnerOf(shard)).Add(Gradient(shard), TableId{0});
  }
  EXPECT_EQ(links.size(), 2u);
  EXPECT_EQ(links.NextWakeup(), absl::InfiniteFuture());
  links.PumpTouched(Parts());
  EXPECT_THAT(Sent(), ElementsAre(1, 3, 0));
  EXPECT_EQ(links.NextWakeup(), now_ + absl::Milliseconds(100));
  links.PumpTouched(Parts());
  EXPECT_THAT(Sent(), IsEmpty());
  now_ = links.NextWakeup();
  links.OnTick(Parts());
  EXPECT_EQ(effects_.sends.size(), 2u) << "a probe to each";
}

TEST_F(LaneTest, ALinkStaysUntilItsThreadIsGoneAndNothingWaitsThere) {
  ClientLinks links(options_, routes_);
  const Owner gone{1, 0};
  links.Touch(gone).Add(Gradient(0), TableId{0});
  links.Touch(kThread0);
  links.PumpTouched(Parts());
  links.ForgetServersGone();
  EXPECT_EQ(links.size(), 2u) << "a push waits at the one that is gone";
  links.Reroute(Parts());
  links.ForgetServersGone();
  EXPECT_EQ(links.size(), 1u);
  EXPECT_EQ(links.Find(gone), nullptr);
  EXPECT_EQ(effects_.sends.back().to, kThread0);
}

}  // namespace slackline::client_lanes_test
