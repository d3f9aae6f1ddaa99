// Goal: sums over a run are exact whether its members have gone or not, and
// what is kept does not grow with their number. Method: one life after another.
#include "server/coordinator/run_totals.h"

#include "absl/strings/str_cat.h"
#include "common/metrics/histogram.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::ElementsAre;

run::WorkerStats Worker(int64_t clock, uint64_t pushed) {
  run::WorkerStats stats;
  stats.set_clock(clock);
  stats.set_examples(10 * clock);
  stats.set_bytes_pushed(pushed);
  stats.set_bytes_resent(pushed / 10);
  return stats;
}

TEST(RunTotalsTest, AThousandLivesCountOnceEach) {
  RunTotals totals;
  for (int life = 0; life < 1000; ++life) {
    totals.AddGone(life % 2, Worker(life, 100));
    totals.AddLost(absl::StrCat("life ", life));
  }
  const run::WorkerStats present = Worker(7, 50);
  run::Summary summary;
  EXPECT_EQ(totals.Put({{.rank = 1, .stats = &present}}, {}, &summary),
            10 * (999 * 1000 / 2 + 7));
  EXPECT_EQ(summary.bytes_pushed(), 100050);
  EXPECT_EQ(summary.bytes_resent(), 10005);
  EXPECT_EQ(summary.steps(), 999);
  ASSERT_EQ(summary.worker_size(), 2);
  EXPECT_EQ(summary.worker(0).steps(), 998) << "the rank's last life";
  EXPECT_EQ(summary.worker(1).steps(), 7);
  ASSERT_EQ(summary.workers_lost_size(), RunTotals::kLostMax + 1);
  EXPECT_EQ(summary.workers_lost(0), "life 0");
  EXPECT_EQ(summary.workers_lost(RunTotals::kLostMax), "and 744 more");
}

TEST(RunTotalsTest, ServersThatHaveLeftCountLikeThoseThatStay) {
  run::ServerStats stats;
  stats.set_pushes(100);
  stats.set_duplicates(5);
  stats.set_dropped(3);
  stats.set_held(2);
  stats.mutable_refused()->set_no_key(3);
  AddToHistogram(4, stats.mutable_missed_clocks());
  run::NonfiniteGradients& bad = *stats.add_nonfinite();
  bad.set_rank(1);
  bad.set_gradients(6);
  run::OversizedGradients& large = *stats.add_oversized();
  large.set_rank(1);
  large.set_gradients(4);
  RunTotals totals;
  totals.AddGone(stats);
  const run::WorkerStats present = Worker(7, 50);
  run::Summary summary;
  totals.Put({{.rank = 1, .stats = &present}}, {&stats}, &summary);
  EXPECT_EQ(summary.pushes(), 200);
  EXPECT_EQ(summary.duplicates(), 10);
  EXPECT_EQ(summary.dropped(), 6);
  EXPECT_EQ(summary.held(), 4);
  EXPECT_EQ(summary.nonfinite(), 12);
  EXPECT_EQ(summary.refused().no_key(), 6);
  EXPECT_EQ(totals.Refused({&stats}).no_key(), 6);
  EXPECT_EQ(summary.worker(0).nonfinite(), 12);
  EXPECT_EQ(summary.oversized(), 8);
  EXPECT_EQ(summary.worker(0).oversized(), 8);
  EXPECT_THAT(summary.missed_clocks_histogram(), ElementsAre(0, 0, 0, 0, 2));
}

}  // namespace
}  // namespace slackline
