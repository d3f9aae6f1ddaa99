#include "common/delays/delay_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/temp_folder.h"

namespace slackline::delay_trace_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWorkers = 4;
constexpr Clock kSteps = 2000;

DelayTrace Make(const std::string& spec, uint64_t seed = 1) {
  const absl::StatusOr<SyntheticDelays> delays = ParseSyntheticDelays(spec);
  EXPECT_TRUE(delays.ok()) << delays.status();
  return MakeTrace(*delays, kWorkers, kSteps, seed);
}

// Of one worker, or of all with -1; without the first clocks, whose delay is
// bounded by the clock.
std::vector<int64_t> Delays(const DelayTrace& trace, int rank, Clock from) {
  std::vector<int64_t> delays;
  for (const DelayTrace::Read& read : trace.shards[0].reads) {
    if ((rank >= 0 && read.rank != rank) || read.clock < from) continue;
    EXPECT_EQ(read.version % kWorkers, 0);
    delays.push_back(read.clock - read.version / kWorkers);
  }
  return delays;
}

double Mean(const std::vector<int64_t>& values) {
  double sum = 0;
  for (const int64_t value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

TEST(SyntheticDelays, EveryWorkerHasOneUpdateInEveryClock) {
  const DelayTrace trace = Make("uniform:8");
  ASSERT_EQ(trace.shards.size(), 1u);
  const std::vector<DelayTrace::Update>& updates = trace.shards[0].updates;
  ASSERT_EQ(updates.size(), kSteps * kWorkers);
  std::set<std::vector<int32_t>> orders;
  for (Clock clock = 0; clock < kSteps; ++clock) {
    std::vector<int32_t> order;
    for (int i = 0; i < kWorkers; ++i) {
      const DelayTrace::Update& update = updates[clock * kWorkers + i];
      EXPECT_EQ(update.clock, clock);
      EXPECT_EQ(update.workers, kWorkers);
      ASSERT_EQ(update.ranks.size(), 1u);
      order.push_back(update.ranks[0]);
    }
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  }
  EXPECT_EQ(orders.size(), 24u) << "every order comes";
}

TEST(SyntheticDelays, ConstantIsTheDelayFromTheClockThatAllowsIt) {
  const std::vector<int64_t> first = Delays(Make("constant:3"), 0, 0);
  EXPECT_THAT(std::vector<int64_t>(first.begin(), first.begin() + 5),
              ElementsAre(0, 1, 2, 3, 3));
  const std::vector<int64_t> all = Delays(Make("constant:3"), -1, 3);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()), std::set<int64_t>{3});
}

TEST(SyntheticDelays, UniformHasEveryDelayUpToTheBoundAlikeOften) {
  std::map<int64_t, int> counts;
  const std::vector<int64_t> delays = Delays(Make("uniform:4"), -1, 4);
  for (const int64_t delay : delays) ++counts[delay];
  ASSERT_EQ(counts.size(), 5u);
  for (const auto& [delay, count] : counts) {
    EXPECT_GE(delay, 0);
    EXPECT_LE(delay, 4);
    // 1597 on average; five standard deviations are 180.
    EXPECT_NEAR(count, static_cast<double>(delays.size()) / 5, 180);
  }
}

TEST(SyntheticDelays, GeometricHasAQuarterOfTheBoundAsMean) {
  const std::vector<int64_t> delays = Delays(Make("geometric:40"), -1, 40);
  // Cutting at 40 takes 0.2 off the mean of 10.
  EXPECT_NEAR(Mean(delays), 9.8, 0.6);
  EXPECT_EQ(*std::max_element(delays.begin(), delays.end()), 40);
  const std::vector<int64_t> none = Delays(Make("geometric:0"), -1, 0);
  EXPECT_EQ(*std::max_element(none.begin(), none.end()), 0);
}

TEST(SyntheticDelays, TheStragglerIsTheLastWorker) {
  const DelayTrace trace = Make("straggler:16");
  EXPECT_EQ(Mean(Delays(trace, kWorkers - 1, 16)), 16);
  for (int rank = 0; rank + 1 < kWorkers; ++rank)
    EXPECT_EQ(Mean(Delays(trace, rank, 0)), 0);
}

TEST(SyntheticDelays, ASeedIsOneTrace) {
  EXPECT_EQ(Delays(Make("uniform:8", 3), -1, 0),
            Delays(Make("uniform:8", 3), -1, 0));
  EXPECT_NE(Delays(Make("uniform:8", 3), -1, 0),
            Delays(Make("uniform:8", 4), -1, 0));
}

TEST(SyntheticDelays, WhatIsNoDelayIsRefused) {
  EXPECT_TRUE(IsSyntheticSpec("normal:3"));
  EXPECT_FALSE(IsSyntheticSpec("runs/mnist-asp"));
  EXPECT_FALSE(IsSyntheticSpec("constant"));
  for (const char* const spec : {"normal:3", "constant:-1", "constant:x",
                                 "constant", "uniform:100001"}) {
    EXPECT_THAT(std::string(ParseSyntheticDelays(spec).status().message()),
                HasSubstr("constant:S, uniform:S"))
        << spec;
  }
}

std::string Push(int rank, int clock, int version, int shard = 0) {
  return absl::StrCat(R"({"event":"push","shard":)", shard, R"(,"rank":)", rank,
                      R"(,"clock":)", clock, R"(,"version":)", version, "}\n");
}
std::string Update(const std::string& ranks, int workers, int clock,
                   int version, int shard = 0) {
  return absl::StrCat(R"({"event":"update","shard":)", shard,
                      R"(,"rank":-1,"clock":)", clock, R"(,"version":)",
                      version, R"(,"ranks":[)", ranks, R"(],"workers":)",
                      workers, "}\n");
}
std::string ErrorOf(const std::string& text) {
  const TempFolder folder;
  folder.Write("trace-server-0.jsonl", text);
  return std::string(ReadRecordedTrace(folder.path()).status().message());
}

TEST(CompleteClocks, AreThoseWhoseGradientsAreAllThere) {
  DelayTrace trace;
  trace.workers = 3;
  trace.first = 1;
  DelayTrace::Shard shard;
  const auto add = [&](Clock clock, absl::InlinedVector<int32_t, 2> ranks) {
    shard.updates.push_back({.clock = clock, .ranks = ranks, .workers = 3});
  };
  EXPECT_THAT(CompleteClocks(trace, shard), ElementsAre(1));
  add(1, {0});
  add(2, {0});
  add(1, {2});
  add(1, {1});
  add(2, {2});
  add(2, {1});
  EXPECT_THAT(CompleteClocks(trace, shard), ElementsAre(1, 1, 1, 1, 2, 2, 3));
  add(3, {0, 1, 2});  // A mean.
  // Only rank 1 has gradients in updates from here on: the others were dropped,
  // or have gone.
  add(4, {1});
  add(6, {1});
  EXPECT_THAT(CompleteClocks(trace, shard),
              ElementsAre(1, 1, 1, 1, 2, 2, 3, 4, 6, 7));
}

TEST(RecordedTrace, ANumberThatCannotBeIsRefusedByItsField) {
  for (const char* const clock :
       {"33333333333333333330", "1e30", "-1", "1.5", "9223372036854775807"}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat(R"({"event":"push","shard":0,"rank":0,"clock":)",
                             clock, R"(,"version":0})")),
        HasSubstr("clock: "))
        << clock;
  }
  EXPECT_THAT(ErrorOf(Push(4096, 0, 0)),
              HasSubstr("rank: 4096 is no whole number in [0, 4095]"));
  EXPECT_THAT(ErrorOf(Update("0,-1", 2, 0, 1)), HasSubstr("rank: -1 is no"));
  EXPECT_THAT(ErrorOf(Update("0", 0, 0, 1)), HasSubstr("workers: 0 is no"));
  EXPECT_THAT(ErrorOf(Update("", 2, 0, 1)), HasSubstr("update without ranks"));
}

TEST(RecordedTrace, HasTheUpdatesOfAShardInTheOrderOfItsVersions) {
  // Shard 0 moved from server 1 to server 0.
  const TempFolder folder;
  folder.Write("trace-server-0.jsonl",
               Push(1, 0, 0) + Update("1", 2, 0, 2) +
                   R"({"event":"pull","shard":0,"rank":1,"clock":1,)"
                   R"("min_clock":0,"version":2})"
                   "\n");
  folder.Write("trace-server-1.jsonl", Push(0, 0, 0) + Update("0", 2, 0, 1) +
                                           Push(1, 0, 0, 1) + Push(0, 0, 0, 1) +
                                           Update("0,1", 2, 0, 1, 1));
  const absl::StatusOr<DelayTrace> trace = ReadRecordedTrace(folder.path());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->workers, 2);
  EXPECT_FALSE(trace->any_model);
  ASSERT_EQ(trace->shards.size(), 2u);
  ASSERT_EQ(trace->shards[0].updates.size(), 2u);
  EXPECT_THAT(trace->shards[0].updates[0].ranks, ElementsAre(0));
  EXPECT_THAT(trace->shards[0].updates[1].ranks, ElementsAre(1));
  EXPECT_EQ(trace->shards[0].reads.size(), 2u);
  ASSERT_EQ(trace->shards[1].updates.size(), 1u);
  EXPECT_THAT(trace->shards[1].updates[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(trace->shards[1].updates[0].workers, 2);
}

std::string Install(int shard, Clock clock, int version) {
  return absl::StrCat(R"({"event":"install","shard":)", shard,
                      R"(,"rank":0,"clock":)", clock,
                      R"(,"min_clock":0,"version":)", version, "}\n");
}

TEST(RecordedTrace, VersionsCountFromWhatTheFirstStepsByAllReduceCameTo) {
  const TempFolder folder;
  folder.Write(
      "trace-server-0.jsonl",
      Install(0, 1, 1) + Push(0, 1, 1) + Update("0", 2, 1, 2) + Push(0, 2, 2));
  const absl::StatusOr<DelayTrace> trace = ReadRecordedTrace(folder.path());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->first, 1);
  ASSERT_EQ(trace->shards[0].updates.size(), 1u);
  EXPECT_EQ(trace->shards[0].reads[0].version, 0);
  EXPECT_EQ(trace->shards[0].reads[1].version, 1);
}

TEST(RecordedTrace, WhatCannotBeReplayedIsRefusedWithItsPlace) {
  const TempFolder empty;
  EXPECT_TRUE(absl::IsNotFound(ReadRecordedTrace(empty.path()).status()));
  EXPECT_THAT(ErrorOf("{}\n"), HasSubstr("trace-server-0.jsonl:1: no record"));
  EXPECT_THAT(ErrorOf(Push(0, 0, 0) + "{\"event\":\"up"),
              HasSubstr("trace-server-0.jsonl:2: no record"));
  EXPECT_THAT(ErrorOf(Push(0, 0, 0) + Push(0, 0, 1)),
              HasSubstr(":2: rank 0 pushed clock 0 to shard 0 a second time"));
  EXPECT_THAT(ErrorOf(Push(0, 0, 0) + Install(0, 5, 9)),
              HasSubstr(":2: the run changed to all-reduce and back"));
  EXPECT_THAT(ErrorOf(Install(0, 1, 1) + Install(0, 5, 9)),
              HasSubstr(":2: the run changed to all-reduce and back"));
  EXPECT_THAT(ErrorOf(Install(0, 1, 1) + Install(1, 5, 9)),
              HasSubstr(":2: the run changed to all-reduce and back"));
  EXPECT_THAT(ErrorOf(Install(1, 1, 1) + Push(0, 1, 0)),
              HasSubstr("shard 0 lacks what it became by the steps before"));
  EXPECT_THAT(ErrorOf(Push(0, 0, 0) + Update("0", 1, 0, 2)),
              HasSubstr("shard 0: the update to version 1 is missing"));
  EXPECT_THAT(ErrorOf(Push(0, 40, 40) + Update("0", 1, 40, 41)),
              HasSubstr("the job went on from a checkpoint"));
  EXPECT_THAT(
      ErrorOf(Push(0, 0, 0) + Update("0", 1, 0, 1) + Update("0", 1, 2, 3)),
      HasSubstr("shard 0: the update to version 2 is missing; a file"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("the trace has no pushes"));
  const std::string again =
      ":2: the gradient of rank 0 and clock 0 to shard 0 is applied a second "
      "time";
  EXPECT_THAT(ErrorOf(Push(0, 0, 0) + Update("0,1,0", 3, 0, 1)),
              HasSubstr(again));
  EXPECT_THAT(ErrorOf(Update("0", 1, 0, 1) + Update("0", 1, 0, 2)),
              HasSubstr(again));
}

TEST(RecordedTrace, WhatIsNoFileIsNotWaitedFor) {
  const TempFolder folder;
  const std::string path = folder.path() + "/trace-server-0.jsonl";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(ReadRecordedTrace(folder.path()).status().message(),
              HasSubstr(path + " is no regular file"));
}

}  // namespace slackline::delay_trace_test
