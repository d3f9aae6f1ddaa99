#include "tools/cli/job/load_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/modes.h"
#include "tools/cli/job/status_table.h"

namespace slackline::load_tables_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Load {
  int shard = 0;
  float busy = 0;
  float pushes = 0;
};

void AddThread(double utilisation, double queue_ms,
               const std::vector<Load>& loads, run::ServerStats* server) {
  run::ThreadLoad& thread = *server->add_thread();
  thread.set_thread(server->thread_size() - 1);
  thread.set_utilisation(utilisation);
  thread.set_queue_ms(queue_ms);
  for (const Load& load : loads) {
    run::ShardLoad& shard = *thread.add_shard();
    shard.set_shard(load.shard);
    shard.set_busy(load.busy);
    shard.set_pushes(load.pushes);
    shard.set_bytes_in(2500000);
  }
}

// A table of three shards: 0 on server 0, 1 and 2 on thread 1 of server 1.
wire::StatusReply MakeStatus() {
  wire::StatusReply status;
  wire::View& view = *status.mutable_view();
  view.set_job("digits");
  view.set_state(wire::RUNNING);
  *view.add_phase()->mutable_mode() = ModeOf("asp");
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("weight");
  table.add_shape(700);
  table.set_shard_elements(250);
  for (const int owner : {0, 1, 1}) {
    view.add_owner_server(owner);
    view.add_owner_thread(owner);
  }
  for (const int index : {0, 1}) {
    view.add_server()->set_index(index);
    view.mutable_server(index)->add_thread();
    run::ServerStats& server = *status.add_server();
    server.set_index(index);
    server.set_alive(true);
    server.set_shards(index + 1);
  }
  view.mutable_server(1)->add_thread();
  AddThread(0.2, 0.5, {{.shard = 0, .busy = 0.2, .pushes = 40}},
            status.mutable_server(0));
  AddThread(0, 0, {}, status.mutable_server(1));
  AddThread(0.6, 12.25,
            {{.shard = 1, .busy = 0.1, .pushes = 0.001},
             {.shard = 2, .busy = 0.5, .pushes = 1234}},
            status.mutable_server(1));
  return status;
}

TEST(LoadOfTest, IsTheBusiestThreadAndTheShareOfAllWork) {
  const wire::StatusReply status = MakeStatus();
  const ServerLoad load = LoadOf(status, status.server(1));
  EXPECT_TRUE(load.known);
  EXPECT_DOUBLE_EQ(load.busiest, 0.6);
  EXPECT_DOUBLE_EQ(load.share, 0.75);
  EXPECT_DOUBLE_EQ(load.queue_ms, 12.25);
}

// Server 0, whose one thread is busy 20 % of the time, needs 40 % to move its
// bytes: to be busy means that in every column, and so do the shards.
TEST(LoadOfTest, MovingTheBytesCountsInEveryColumn) {
  wire::StatusReply status = MakeStatus();
  status.mutable_server(0)->set_io_utilisation(0.4);
  const ServerLoad load = LoadOf(status, status.server(0));
  EXPECT_DOUBLE_EQ(load.busiest, 0.4);
  EXPECT_DOUBLE_EQ(load.share, 0.4);  // Of 0.4 and 0.6.
  EXPECT_THAT(ShardsTable(status, 20), HasSubstr("    0.00  40.0 %\n"));
  status.mutable_server(1)->set_io_utilisation(0.1);  // Less than its thread.
  EXPECT_DOUBLE_EQ(LoadOf(status, status.server(1)).busiest, 0.6);
}

TEST(LoadOfTest, IsUnknownBeforeTheFirstReport) {
  wire::StatusReply status;
  status.add_server();
  EXPECT_FALSE(LoadOf(status, status.server(0)).known);
}

TEST(LoadOfTest, AnIdleJobHasNoShares) {
  wire::StatusReply status;
  status.add_server()->add_thread();
  EXPECT_EQ(LoadOf(status, status.server(0)).share, 0);
}

TEST(ShardsTableTest, BeginsWithTheMostLoaded) {
  EXPECT_EQ(
      ShardsTable(MakeStatus(), 20),
      "shard  name               at   values  pushes/s  pulls/s  MB/s in  "
      "MB/s out    busy\n"
      "-----  ----------------  ---  -------  --------  -------  -------  "
      "--------  ------\n"
      "    2  weight[500, 700)  1.1    800 B    1.23 k        0     2.50  "
      "    0.00  50.0 %\n"
      "    0  weight[0, 250)    0.0  1.00 kB        40        0     2.50  "
      "    0.00  20.0 %\n"
      "    1  weight[250, 500)  1.1  1.00 kB         0        0     2.50  "
      "    0.00  10.0 %\n"
      "busy: part of the time of the shard's thread\n");
}

TEST(ShardsTableTest, SaysWhereTheCopiesAre) {
  wire::StatusReply status = MakeStatus();
  const auto add = [&status](int shard, int server, int thread, bool in_sync) {
    wire::Follower& follower = *status.mutable_view()->add_follower();
    follower.set_shard(shard);
    follower.set_server(server);
    follower.set_thread(thread);
    follower.set_in_sync(in_sync);
  };
  add(0, 1, 1, true);
  add(2, 0, 0, false);
  const std::string table = ShardsTable(status, 20);
  EXPECT_THAT(table, HasSubstr("50.0 %  (0.0)"));
  EXPECT_THAT(table, HasSubstr("20.0 %  1.1"));
  EXPECT_THAT(table, HasSubstr("in parentheses while it is copied\n"));
}

TEST(ShardsTableTest, SaysHowManyAreLeftOut) {
  const std::string table = ShardsTable(MakeStatus(), 1);
  EXPECT_THAT(table, HasSubstr("weight[500, 700)"));
  EXPECT_THAT(table, Not(HasSubstr("weight[0, 250)")));
  EXPECT_THAT(table,
              HasSubstr("and 2 shards that are less busy; --top shows more\n"));
}

TEST(ShardsTableTest, ShardsOfWhichNothingIsReportedAreIdle) {
  wire::StatusReply status = MakeStatus();
  for (run::ServerStats& server : *status.mutable_server()) {
    server.clear_thread();
  }
  EXPECT_THAT(ShardsTable(status, 20),
              HasSubstr("    0  weight[0, 250)    0.0  1.00 kB         0"));
}

TEST(ShardsTableTest, SumsTheReportsOfAShardThatMoves) {
  wire::StatusReply status = MakeStatus();
  AddThread(0.3, 0, {{.shard = 0, .busy = 0.8, .pushes = 60}},
            status.mutable_server(1));
  const std::string table = ShardsTable(status, 1);
  EXPECT_THAT(table,
              HasSubstr("    0  weight[0, 250)  0.0  1.00 kB       100"));
  EXPECT_THAT(table, HasSubstr("100.0 %"));
}

TEST(ShardsTableTest, ALoadOfAShardThatTheViewDoesNotKnowIsIgnored) {
  wire::StatusReply status = MakeStatus();
  AddThread(0.3, 0, {{.shard = 3, .busy = 0.8}, {.shard = -1, .busy = 1}},
            status.mutable_server(1));
  EXPECT_EQ(ShardsTable(status, 20), ShardsTable(MakeStatus(), 20));
}

TEST(ShardsTableTest, AJobWithoutShardsHasNone) {
  EXPECT_EQ(ShardsTable(wire::StatusReply(), 20), "");
}

TEST(StatusLoadTest, ServersShowLoadAndWhetherTheyDrain) {
  wire::StatusReply status = MakeStatus();
  status.mutable_view()->mutable_server(1)->set_draining(true);
  const std::string table = StatusTable(status);
  EXPECT_THAT(table, HasSubstr("     0    0  alive     0.0 s ago       1  20 %"
                               "   25 %   0.50 ms"));
  EXPECT_THAT(table, HasSubstr("     1    0  draining  0.0 s ago       2  60 %"
                               "   75 %  12.25 ms"));
}

TEST(StatusLoadTest, ServersWithoutAReportShowNoLoad) {
  wire::StatusReply status = MakeStatus();
  for (run::ServerStats& server : *status.mutable_server()) {
    server.clear_thread();
  }
  EXPECT_THAT(StatusTable(status), HasSubstr("       2     -      -      -"));
}

TEST(StatusLoadTest, MovesAndShardsShowOnlyWhenThereAreAnyOrTheyAreAskedFor) {
  wire::StatusReply status = MakeStatus();
  std::string table = StatusTable(status);
  EXPECT_THAT(table, Not(HasSubstr("moves")));
  EXPECT_THAT(table, Not(HasSubstr("weight[")));
  status.mutable_plan()->add_move()->set_name("weight[0, 250)");
  table = StatusTable(status);
  EXPECT_THAT(table, HasSubstr("\nmoves to come:\n"));
  EXPECT_THAT(table, HasSubstr("weight[0, 250)"));
  EXPECT_THAT(table, Not(HasSubstr("last moves")));
  for (int shard = 0; shard < 3; ++shard) {
    status.add_moved()->set_name(absl::StrCat("moved ", shard));
  }
  table = StatusTable(status, {}, {.shards = true, .top = 2});
  EXPECT_THAT(table, HasSubstr("\nlast moves:\n"));
  EXPECT_THAT(table, Not(HasSubstr("moved 0"))) << "the oldest is left out";
  EXPECT_THAT(table, HasSubstr("moved 2"));
  EXPECT_THAT(table, HasSubstr("weight[500, 700)"));
}

}  // namespace slackline::load_tables_test
