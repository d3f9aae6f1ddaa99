#include "tools/cli/job/plan_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace slackline::plan_tables_test {

using ::testing::HasSubstr;
using ::testing::Not;

void AddMove(int shard, bool ordered, run::Plan* plan) {
  run::PlannedMove& move = *plan->add_move();
  move.set_shard(shard);
  move.set_name("w[0, 65536)");
  move.set_from_server(0);
  move.set_from_thread(1);
  move.set_to_server(2);
  move.set_to_thread(0);
  move.set_bytes(524288);
  move.set_load(0.125);
  move.set_reason("0.1 is busy");
  move.set_ordered(ordered);
}

run::Plan MakePlan() {
  run::Plan plan;
  AddMove(3, true, &plan);
  plan.set_bytes(524288);
  plan.set_worst_before(0.81);
  plan.set_mean(0.5);
  plan.set_worst_after(0.53);
  plan.set_summary("one move brings the busiest thread to 0.53");
  return plan;
}

TEST(PlanTextTest, ShowsMovesReasonsAndWhatTheyAreGoodFor) {
  EXPECT_EQ(PlanText(MakePlan()),
            "shard  name         from   to    size    busy  reason\n"
            "-----  -----------  ----  ---  ------  ------  -----------\n"
            "    3  w[0, 65536)   0.1  2.0  524 kB  12.5 %  0.1 is busy\n"
            "524 kB to move\n"
            "busiest shard thread now: 81 %, 1.62 times the mean\n"
            "predicted after the moves: 53 %, 1.06 times the mean\n"
            "one move brings the busiest thread to 0.53\n");
}

TEST(PlanTextTest, NamesTheShardsThatAreCut) {
  run::Plan plan = MakePlan();
  run::PlannedSplit& split = *plan.add_split();
  split.set_shard(3);
  split.set_new_shard(44);
  split.set_at(32768);
  split.set_reason("it is half of the load");
  EXPECT_THAT(PlanText(plan),
              HasSubstr("shard 3 is split at element 32768, the rest becomes "
                        "shard 44: it is half of the load\n"));
}

TEST(PlanTextTest, WithoutMovesThereIsNoTable) {
  run::Plan plan;
  plan.set_worst_before(0.3);
  plan.set_mean(0.29);
  plan.set_summary("nothing to do");
  EXPECT_EQ(PlanText(plan),
            "busiest shard thread now: 30 %, 1.03 times the mean\n"
            "nothing to do\n");
}

TEST(PendingMovesTest, ThoseUnderWayComeFirst) {
  run::Plan plan;
  AddMove(5, false, &plan);
  AddMove(3, true, &plan);
  const std::string table = PendingMovesText(plan, 20);
  ASSERT_THAT(table, HasSubstr("under way"));
  ASSERT_THAT(table, HasSubstr("queued"));
  EXPECT_LT(table.find("under way"), table.find("queued"));
  EXPECT_LT(table.find("    3  w"), table.find("    5  w"));
}

TEST(PendingMovesTest, SaysHowManyAreLeftOut) {
  run::Plan plan;
  for (int shard = 0; shard < 5; ++shard) AddMove(shard, shard == 4, &plan);
  const std::string table = PendingMovesText(plan, 2);
  EXPECT_THAT(table, HasSubstr("    4  w"));
  EXPECT_THAT(table, HasSubstr("    0  w"));
  EXPECT_THAT(table, Not(HasSubstr("    1  w")));
  EXPECT_THAT(table, HasSubstr("and 3 more moves\n"));
}

TEST(PendingMovesTest, NoMovesAreNoText) {
  EXPECT_EQ(PendingMovesText(run::Plan(), 20), "");
}

run::MoveRecord MakeRecord(int shard, int64_t bytes, int64_t pause_micros) {
  run::MoveRecord record;
  record.set_seconds(75);
  record.set_shard(shard);
  record.set_name("w[0, 65536)");
  record.set_to_server(1);
  record.set_shard_bytes(524288);
  record.set_bytes(bytes);
  record.set_copy_micros(8250);
  record.set_pause_micros(pause_micros);
  return record;
}

TEST(MovesTableTest, ShowsBytesAndPause) {
  EXPECT_EQ(MovesTable({MakeRecord(3, 600000, 1230)}),
            "moved at  shard  name         from   to    size    sent  copying  "
            "  pause\n"
            "--------  -----  -----------  ----  ---  ------  ------  -------  "
            "-------\n"
            "    1:15      3  w[0, 65536)   0.0  1.0  524 kB  600 kB  8.25 ms  "
            "1.23 ms\n");
}

TEST(MovesTotalTest, SumsBytesAndRanksPauses) {
  EXPECT_EQ(
      MovesTotal({MakeRecord(0, 1000000, 5000), MakeRecord(1, 2000000, 1000),
                  MakeRecord(2, 500000, 2000)}),
      "3 shards moved, 3.50 MB sent; pause p50 2.00 ms, longest 5.00 ms");
  EXPECT_EQ(MovesTotal({MakeRecord(0, 1000, 10)}),
            "1 shard moved, 1.00 kB sent; pause p50 0.01 ms, longest 0.01 ms");
  EXPECT_EQ(MovesTotal({}), "no shard moved");
}

}  // namespace slackline::plan_tables_test
