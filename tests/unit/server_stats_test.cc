// Goal: every counter of a server's shard threads is in its statistics, once.
// Method: over all fields of the message, so that one that is added and not
// folded is found.
#include "common/metrics/server_stats.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::server_stats_test {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

const std::set<std::string> kLeftAlone = {
    "index",        "incarnation",    "alive",         "pid",
    "heard_ms_ago", "io_utilisation", "reached_clock", "seen_view"};

// Each number is `value`, each list of messages has one entry.
void Fill(int value, google::protobuf::Message* stats) {
  const Reflection& reflection = *stats->GetReflection();
  const auto& descriptor = *stats->GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* const field = descriptor.field(i);
    if (kLeftAlone.count(std::string(field->name())) > 0) continue;
    if (field->is_repeated()) {
      reflection.AddMessage(stats, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      google::protobuf::Message* const message =
          reflection.MutableMessage(stats, field);
      if (message->GetDescriptor() == run::Histogram::descriptor()) {
        static_cast<run::Histogram*>(message)->add_bin(
            static_cast<uint64_t>(value));
      } else {
        Fill(value, message);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      reflection.SetUInt64(stats, field, static_cast<uint64_t>(value));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      reflection.SetInt64(stats, field, value);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      reflection.SetInt32(stats, field, value);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      reflection.SetDouble(stats, field, value);
    } else {
      ADD_FAILURE() << field->name() << " has a type that this test and "
                    << "FoldServerStats() do not know yet";
    }
  }
}
run::ServerStats StatsOf(int value) {
  run::ServerStats stats;
  Fill(value, &stats);
  return stats;
}

TEST(FoldServerStats, AddsEachCounterOnce) {
  run::ServerStats total = StatsOf(5);
  run::ServerStats from = StatsOf(3);
  from.mutable_nonfinite(0)->set_rank(1);
  total.mutable_nonfinite(0)->set_rank(2);
  from.mutable_oversized(0)->set_rank(1);
  total.mutable_oversized(0)->set_rank(2);
  FoldServerStats(from, &total);
  run::ServerStats expected = StatsOf(8);
  const Reflection& reflection = *expected.GetReflection();
  const auto& descriptor = *expected.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* const field = descriptor.field(i);
    if (field->is_repeated()) {
      EXPECT_EQ(reflection.FieldSize(total, field), 2) << field->name();
      reflection.ClearField(&total, field);
      reflection.ClearField(&expected, field);
    }
  }
  EXPECT_EQ(total.ShortDebugString(), expected.ShortDebugString());
}

TEST(FoldServerStats, LeavesAloneWhoItIs) {
  run::ServerStats total;
  run::ServerStats from;
  from.set_index(3);
  from.set_incarnation(4);
  from.set_alive(true);
  from.set_pid(5);
  from.set_heard_ms_ago(6);
  from.set_io_utilisation(0.5);
  FoldServerStats(from, &total);
  EXPECT_EQ(total.index() + total.pid() + total.heard_ms_ago(), 0);
  EXPECT_EQ(total.incarnation(), 0u);
  EXPECT_FALSE(total.alive());
  EXPECT_EQ(total.io_utilisation(), 0);
}

TEST(FoldServerStats, BadGradientsAreCountedByWorker) {
  run::ServerStats total;
  run::ServerStats from;
  run::NonfiniteGradients& bad = *from.add_nonfinite();
  bad.set_rank(2);
  bad.set_gradients(3);
  bad.set_last_clock(7);
  bad.set_last_shard(1);
  FoldServerStats(from, &total);
  bad.set_gradients(1);
  bad.set_last_clock(9);
  bad.set_last_shard(4);
  FoldServerStats(from, &total);
  ASSERT_EQ(total.nonfinite_size(), 1);
  EXPECT_EQ(total.nonfinite(0).gradients(), 4u);
  EXPECT_EQ(total.nonfinite(0).last_clock(), 9);
  EXPECT_EQ(total.nonfinite(0).last_shard(), 4);
}

TEST(FoldServerStats, OfOversizedGradientsTheLastOneIsKept) {
  run::ServerStats total;
  run::ServerStats from;
  run::OversizedGradients& bad = *from.add_oversized();
  bad.set_rank(2);
  bad.set_gradients(3);
  bad.set_last_clock(9);
  bad.set_last_rms(4);
  bad.set_last_bound(3);
  bad.set_last_running_rms(0.5);
  FoldServerStats(from, &total);
  bad.set_gradients(1);
  bad.set_last_clock(7);
  bad.set_last_rms(40);
  FoldServerStats(from, &total);
  ASSERT_EQ(total.oversized_size(), 1);
  EXPECT_EQ(total.oversized(0).gradients(), 4u);
  EXPECT_EQ(total.oversized(0).last_clock(), 9);
  EXPECT_EQ(total.oversized(0).last_rms(), 4);
  EXPECT_EQ(total.oversized(0).last_running_rms(), 0.5);
}

}  // namespace slackline::server_stats_test
