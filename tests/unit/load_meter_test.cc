// Goal: the rates that the planner is told are those of the recent past, from
// the first moment on, and say how fast the thread is.
// Method: made-up batches on virtual time, with rates that are known.
#include "server/shard/load_meter.h"

#include <vector>

#include "gtest/gtest.h"

namespace slackline::load_meter_test {

constexpr ShardId kFirst{0};
constexpr ShardId kSecond{1};
constexpr size_t kMegabyte = 1'000'000;

ShardWork PushOf(ShardId shard, size_t bytes = kMegabyte) {
  return {
      .shard = shard, .pushes = 1, .bytes_in = bytes, .bytes_applied = bytes};
}
ShardWork PullOf(ShardId shard, size_t bytes = kMegabyte) {
  return {.shard = shard, .pulls = 1, .bytes_out = bytes};
}

class LoadMeterTest : public ::testing::Test {
 protected:
  LoadMeterTest() : meter_(LoadMeter::Options(), now_) {}

  // A batch that has just ended.
  void Batch(absl::Duration busy, const std::vector<ShardWork>& work,
             int messages = 1, absl::Duration queued = absl::ZeroDuration()) {
    meter_.OnBatch({.busy = busy,
                    .cpu = busy / 2,
                    .messages = messages,
                    .queued = queued,
                    .work = work},
                   now_);
  }

  // For `time`, every 10 ms: `busy` with this work.
  void Pass(absl::Duration time, absl::Duration busy,
            const std::vector<ShardWork>& work) {
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Milliseconds(10);
      Batch(busy, work);
    }
  }

  run::ThreadLoad Report() {
    return meter_.Report(now_, [](ShardId) { return true; });
  }
  run::ShardLoad Shard(ShardId shard) {
    const run::ThreadLoad load = Report();
    for (const run::ShardLoad& entry : load.shard()) {
      if (entry.shard() == static_cast<int32_t>(shard)) return entry;
    }
    return run::ShardLoad();
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  LoadMeter meter_;
};

TEST_F(LoadMeterTest, AConstantLoadIsReportedAsItIs) {
  Pass(absl::Seconds(20), absl::Milliseconds(4),
       {PushOf(kFirst), PullOf(kFirst)});
  const run::ThreadLoad load = Report();
  EXPECT_NEAR(load.utilisation(), 0.4, 0.4 * 0.01);
  EXPECT_NEAR(load.cpu(), 0.2, 0.2 * 0.01);
  ASSERT_EQ(load.shard_size(), 1);
  EXPECT_NEAR(load.shard(0).pushes(), 100, 1);
  EXPECT_NEAR(load.shard(0).pulls(), 100, 1);
  EXPECT_NEAR(load.shard(0).bytes_in(), 100e6, 1e6);
  EXPECT_NEAR(load.shard(0).bytes_out(), 100e6, 1e6);
  EXPECT_NEAR(load.shard(0).busy(), 0.4, 0.4 * 0.01);
}

TEST_F(LoadMeterTest, TheBeginningIsNotTakenForIdleTime) {
  Pass(absl::Milliseconds(200), absl::Milliseconds(5), {PushOf(kFirst)});
  EXPECT_NEAR(Report().utilisation(), 0.5, 0.5 * 0.05);
  EXPECT_NEAR(Shard(kFirst).busy(), 0.5, 0.5 * 0.06);
}

TEST_F(LoadMeterTest, ANewShardsRateIsRightAtOnce) {
  Pass(absl::Seconds(20), absl::Milliseconds(2), {PushOf(kFirst)});
  Pass(absl::Milliseconds(500), absl::Milliseconds(4),
       {PushOf(kFirst), PushOf(kSecond)});
  EXPECT_NEAR(Shard(kSecond).pushes(), 100, 5);
  EXPECT_NEAR(Shard(kSecond).busy(), 0.2, 0.2 * 0.05);
  EXPECT_NEAR(Shard(kFirst).pushes(), 100, 1) << "as before";
}

TEST_F(LoadMeterTest, WhatIsLongAgoIsForgotten) {
  Pass(absl::Seconds(20), absl::Milliseconds(4), {PushOf(kFirst)});
  now_ += LoadMeter::Options().decay;
  EXPECT_NEAR(Report().utilisation(), 0.4 / 2.71828, 0.002);
  EXPECT_NEAR(Shard(kFirst).pushes(), 100 / 2.71828, 0.5);
  now_ += absl::Seconds(60);
  EXPECT_LT(Report().utilisation(), 1e-9);
}

TEST_F(LoadMeterTest, TheRateFollowsALoadThatChanges) {
  Pass(absl::Seconds(20), absl::Milliseconds(8), {PushOf(kFirst)});
  Pass(absl::Seconds(20), absl::Milliseconds(1), {PushOf(kFirst)});
  EXPECT_NEAR(Report().utilisation(), 0.1, 0.1 * 0.02);
}

TEST_F(LoadMeterTest, WorkingTimeIsSharedOutByBytesTouched) {
  Pass(absl::Seconds(20), absl::Milliseconds(4),
       {PushOf(kFirst, 3 * kMegabyte), PushOf(kSecond, kMegabyte)});
  const double all = Report().utilisation();
  EXPECT_NEAR(Shard(kFirst).busy() + Shard(kSecond).busy(), all, 1e-6);
  EXPECT_NEAR(Shard(kFirst).busy() / Shard(kSecond).busy(), 3, 0.1);
}

TEST_F(LoadMeterTest, ASmallRequestCostsMoreThanItsBytes) {
  Pass(absl::Seconds(20), absl::Milliseconds(4),
       {PullOf(kFirst, 4), PullOf(kSecond, 8)});
  EXPECT_NEAR(Shard(kFirst).busy() / Shard(kSecond).busy(), 1, 0.01);
}

TEST_F(LoadMeterTest, AShardThatIsGoneIsForgotten) {
  Pass(absl::Seconds(1), absl::Milliseconds(4),
       {PushOf(kFirst), PushOf(kSecond)});
  EXPECT_EQ(Report().shard_size(), 2);
  const run::ThreadLoad load =
      meter_.Report(now_, [](ShardId shard) { return shard == kSecond; });
  ASSERT_EQ(load.shard_size(), 1);
  EXPECT_EQ(load.shard(0).shard(), 1);
  // When it is back it begins anew.
  now_ += absl::Milliseconds(100);
  Pass(absl::Milliseconds(500), absl::Milliseconds(4), {PushOf(kFirst)});
  EXPECT_NEAR(Shard(kFirst).pushes(), 100, 5);
}

TEST_F(LoadMeterTest, ASlowThreadHandlesFewerBytesPerBusySecond) {
  // Of a push, 1 MB comes in and 1 MB is applied.
  Pass(absl::Seconds(5), absl::Milliseconds(1), {PushOf(kFirst)});
  const double fast = Report().bytes_per_busy_second();
  const LoadMeter::Options options;
  EXPECT_NEAR(fast * 1e-3,
              1e6 * (1 + options.cost_of_passing) + options.bytes_per_request +
                  options.bytes_per_message,
              1000);
  LoadMeter slow(LoadMeter::Options(), now_);
  const std::vector<ShardWork> work = {PushOf(kFirst)};
  for (int i = 0; i < 100; ++i) {
    now_ += absl::Milliseconds(10);
    slow.OnBatch({.busy = absl::Milliseconds(3),
                  .cpu = absl::ZeroDuration(),
                  .messages = 1,
                  .queued = absl::ZeroDuration(),
                  .work = work},
                 now_);
  }
  EXPECT_NEAR(fast / slow.Report(now_, [](ShardId) { return true; })
                         .bytes_per_busy_second(),
              3, 1e-6);
}

TEST_F(LoadMeterTest, TheSpeedDoesNotDependOnHowMuchThereIsToDo) {
  Pass(absl::Seconds(5), absl::Milliseconds(1), {PushOf(kFirst)});
  const double busy = Report().bytes_per_busy_second();
  Pass(2 * LoadMeter::Options().decay, absl::ZeroDuration(), {});
  EXPECT_NEAR(Report().bytes_per_busy_second() / busy, 1, 1e-6);
}

TEST_F(LoadMeterTest, TooLittleWorkSaysNothingAboutTheSpeed) {
  EXPECT_EQ(Report().bytes_per_busy_second(), 0);
  now_ += absl::Milliseconds(10);
  Batch(absl::Microseconds(900), {PushOf(kFirst)});
  EXPECT_EQ(Report().bytes_per_busy_second(), 0);
  Batch(absl::Microseconds(900), {PushOf(kFirst)});
  EXPECT_GT(Report().bytes_per_busy_second(), 0);
}

TEST_F(LoadMeterTest, QueueingIsTheMeanOverMessages) {
  now_ += absl::Seconds(1);
  Batch(absl::Milliseconds(5), {PushOf(kFirst)}, 4, absl::Milliseconds(6));
  EXPECT_NEAR(Report().queue_ms(), 1.5, 1e-9);
  Batch(absl::Milliseconds(5), {PushOf(kFirst)}, 2, absl::Milliseconds(12));
  EXPECT_NEAR(Report().queue_ms(), 3, 1e-9);
}

TEST_F(LoadMeterTest, AThreadThatHasDoneNothingIsIdle) {
  now_ += absl::Seconds(3);
  const run::ThreadLoad load = Report();
  EXPECT_EQ(load.utilisation(), 0);
  EXPECT_EQ(load.cpu(), 0);
  EXPECT_EQ(load.queue_ms(), 0);
  EXPECT_EQ(load.shard_size(), 0);
}

TEST_F(LoadMeterTest, WorkForOthersIsNoShards) {
  now_ += absl::Seconds(1);
  Batch(absl::Milliseconds(5), {});  // A view, a hand-over.
  EXPECT_GT(Report().utilisation(), 0);
  EXPECT_EQ(Report().shard_size(), 0);
}

}  // namespace slackline::load_meter_test
