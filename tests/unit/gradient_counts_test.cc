// Goal: the balance of a server's counters is what it has accepted less all
// that it knows the end of.
#include "common/metrics/gradient_counts.h"

#include "gtest/gtest.h"

namespace slackline::gradient_counts_test {

TEST(GradientCountsTest, EveryEndOfAGradientCounts) {
  run::ServerStats stats;
  stats.set_pushes(20);
  stats.set_duplicates(100);
  stats.set_updates(100);
  EXPECT_EQ(UnaccountedGradients(stats), 20);
  stats.set_applied(5);
  EXPECT_EQ(UnaccountedGradients(stats), 15);
  stats.set_held(4);
  EXPECT_EQ(UnaccountedGradients(stats), 11);
  stats.set_dropped(3);
  EXPECT_EQ(UnaccountedGradients(stats), 8);
  stats.add_nonfinite()->set_gradients(6);
  stats.add_nonfinite()->set_gradients(3);
  EXPECT_EQ(NonfiniteGradients(stats), 9u);
  EXPECT_EQ(UnaccountedGradients(stats), -1) << "more than there were";
  stats.add_oversized()->set_gradients(2);
  stats.add_oversized()->set_gradients(5);
  EXPECT_EQ(OversizedGradients(stats), 7u);
  EXPECT_EQ(UnaccountedGradients(stats), -8);
}

}  // namespace slackline::gradient_counts_test
