// Goal: what a link of the config makes of traffic: in order, each item not
// before the bytes before it, its own bytes and the latency have passed.
#include <cmath>
#include <utility>
#include <vector>

#include "common/net/delayed/delay_line.h"
#include "common/net/delayed/link_model.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::link_test {

using ::testing::ElementsAre;
using ::testing::Pair;

const absl::Time kStart = absl::UnixEpoch();
absl::Time At(double ms) { return kStart + absl::Milliseconds(ms); }

LinkModel LinkWith(double latency_ms, double bandwidth_mbit) {
  config::Conditions conditions;
  conditions.mutable_link()->set_latency_ms(latency_ms);
  if (bandwidth_mbit > 0)
    conditions.mutable_link()->set_bandwidth_mbit(bandwidth_mbit);
  return *LinkOf(conditions);
}

// When each item comes out, in ms.
std::vector<std::pair<double, int>> Drain(DelayLine<int>* line) {
  std::vector<std::pair<double, int>> out;
  while (line->NextWakeup() != absl::InfiniteFuture()) {
    const absl::Time due = line->NextWakeup();
    EXPECT_FALSE(line->PopDue(due - absl::Nanoseconds(1)).has_value());
    const std::optional<int> item = line->PopDue(due);
    out.emplace_back(absl::ToDoubleMilliseconds(due - kStart), item.value());
  }
  return out;
}

TEST(DelayLineTest, LatencyDelaysAndBandwidthQueues) {
  DelayLine<int> line(LinkWith(5, 8));  // 1000 bytes per ms.
  EXPECT_EQ(line.NextWakeup(), absl::InfiniteFuture());
  EXPECT_FALSE(line.PopDue(At(1000)).has_value());
  line.Push(At(0), 2000, 1);   // Occupies the link until 2.
  line.Push(At(1), 3000, 2);   // Waits for it; until 5.
  line.Push(At(10), 1000, 3);  // The link is free again.
  line.Push(At(10), 0, 4);     // Needs no bandwidth, and does not overtake.
  EXPECT_THAT(Drain(&line),
              ElementsAre(Pair(7, 1), Pair(10, 2), Pair(16, 3), Pair(16, 4)));
}

TEST(DelayLineTest, TheBacklogIsWhatWaitsToBeSent) {
  DelayLine<int> line({.latency = absl::Seconds(9), .bytes_per_second = 100});
  const absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(line.Backlog(now), absl::ZeroDuration());
  line.Push(now, 100, 1);
  line.Push(now, 50, 2);
  EXPECT_EQ(line.Backlog(now), absl::Milliseconds(1500));
  EXPECT_EQ(line.Backlog(now + absl::Seconds(1)), absl::Milliseconds(500));
  EXPECT_EQ(line.Backlog(now + absl::Seconds(2)), absl::ZeroDuration());
}

TEST(DelayLineTest, WithoutABoundOnBandwidthThereIsLatencyOnly) {
  DelayLine<int> line(LinkWith(20, 0));
  line.Push(At(0), 1 << 30, 1);
  line.Push(At(3), 1 << 30, 2);
  EXPECT_THAT(Drain(&line), ElementsAre(Pair(20, 1), Pair(23, 2)));
}

TEST(DelayLineTest, WhatIsOverdueComesOutAtOnceInOrder) {
  DelayLine<int> line(LinkWith(1, 0));
  for (int i = 0; i < 3; ++i) line.Push(At(i), 1, i);
  EXPECT_EQ(line.PopDue(At(100)), 0);
  EXPECT_EQ(line.PopDue(At(100)), 1);
  EXPECT_EQ(line.PopDue(At(100)), 2);
  EXPECT_FALSE(line.PopDue(At(100)).has_value());
}

TEST(DelayLineTest, NeverPassesMoreThanTheBandwidth) {
  Rng rng(5);
  DelayLine<int> line(LinkWith(3, 8));
  double now = 0;
  std::vector<int> bytes;
  std::vector<double> pushed;
  for (int i = 0; i < 500; ++i) {
    now += 2 * rng.Uniform();
    bytes.push_back(static_cast<int>(rng.Below(2500)));
    pushed.push_back(now);
    line.Push(At(now), bytes.back(), i);
  }
  const auto out = Drain(&line);
  ASSERT_EQ(out.size(), 500u);
  double free_at = 0;
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(out[i].second, i);
    free_at = std::max(free_at, pushed[i]) + bytes[i] / 1000.0;
    EXPECT_NEAR(out[i].first, free_at + 3, 1e-3);
  }
}

TEST(LinkModelTest, ConditionsWithoutALinkHaveNone) {
  EXPECT_FALSE(LinkOf(config::Conditions()).has_value());
  EXPECT_FALSE(SlowestLink(config::ClusterConfig()).has_value());
}

TEST(LinkModelTest, TheSlowestLinkIsThatOfNoWorkerAlone) {
  config::ClusterConfig config;
  config.add_worker();
  config.add_worker()->mutable_conditions()->mutable_link()->set_latency_ms(4);
  config::Link* const narrow =
      config.add_worker()->mutable_conditions()->mutable_link();
  narrow->set_latency_ms(1);
  narrow->set_bandwidth_mbit(80);
  const std::optional<LinkModel> slowest = SlowestLink(config);
  ASSERT_TRUE(slowest.has_value());
  EXPECT_EQ(slowest->latency, absl::Milliseconds(4));
  EXPECT_EQ(slowest->bytes_per_second, 1e7);
}

TEST(LinkModelTest, ARingHasTwoTransfersPerOtherRank) {
  // 4 ranks: 6 transfers of a quarter.
  EXPECT_EQ(RingTime(LinkWith(2, 8), 4000, 4), absl::Milliseconds(12 + 6));
  EXPECT_EQ(RingTime(LinkWith(2, 0), 4000, 4), absl::Milliseconds(12));
  EXPECT_EQ(RingTime(LinkWith(2, 8), 4000, 1), absl::ZeroDuration());
}

}  // namespace slackline::link_test
