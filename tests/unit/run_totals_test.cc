// Goal: sums over a run are exact whether its members have gone or not, and
// what is kept does not grow with their number. Method: one life after another.
#include "server/coordinator/run_totals.h"

#include "absl/strings/str_cat.h"
#include "common/metrics/histogram.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::run_totals_test {

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
  totals.Put({{.rank = 1, .stats = &present}}, {}, &summary);
  EXPECT_EQ(totals.examples_of_gone(), 10 * 999 * 1000 / 2);
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

// What metric_table.h says that a summary has.
TEST(RunTotalsTest, EachFigureIsWhereTheTableHasIt) {
  run::WorkerStats stats = Worker(7, 50);
  stats.set_bytes_pulled(40);
  stats.set_retries(3);
  stats.set_compute_seconds(0.5);
  stats.set_wait_seconds(0.25);
  stats.mutable_phase_seconds()->set_loading(2);
  run::ServerStats server;
  server.set_applied(9);
  server.set_bytes_to_followers(80);
  server.set_bytes_to_followers_resent(8);
  server.mutable_phase_seconds()->set_apply(3);
  RunTotals totals;
  totals.AddGone(1, stats);
  run::Summary summary;
  totals.Put({{.rank = 0, .stats = &stats}}, {&server, &server}, &summary);
  EXPECT_EQ(summary.bytes_pulled(), 80);
  EXPECT_EQ(summary.retries(), 6);
  EXPECT_EQ(summary.applied(), 18);
  EXPECT_EQ(summary.bytes_to_followers(), 160);
  EXPECT_EQ(summary.bytes_to_followers_resent(), 16);
  EXPECT_EQ(summary.server_phase_seconds().apply(), 6);
  ASSERT_EQ(summary.worker_size(), 2);
  for (const run::WorkerSummary& worker : summary.worker()) {
    EXPECT_EQ(worker.examples(), 70);
    EXPECT_EQ(worker.bytes_pushed(), 50);
    EXPECT_EQ(worker.bytes_pulled(), 40);
    EXPECT_EQ(worker.bytes_resent(), 5);
    EXPECT_EQ(worker.compute_seconds(), 0.5);
    EXPECT_EQ(worker.wait_seconds(), 0.25);
    EXPECT_EQ(worker.phase_seconds().loading(), 2);
  }
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

}  // namespace slackline::run_totals_test
