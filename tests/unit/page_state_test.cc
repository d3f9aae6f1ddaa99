#include "tools/cli/page/page_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/modes.h"
#include "tools/cli/page/earlier_points.h"

namespace slackline::page_state_test {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A running job of a server and the workers of these ranks, at this time.
wire::StatusReply PageStatus(double seconds, const std::vector<int>& ranks) {
  wire::StatusReply status;
  wire::View& view = *status.mutable_view();
  view.set_job("digits");
  view.set_state(wire::RUNNING);
  *view.add_phase()->mutable_mode() = ModeOf("asp");
  wire::Table& table = *view.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("weight");
  table.add_shape(100);
  table.set_shard_elements(100);
  view.add_owner_server(0);
  view.add_owner_thread(0);
  view.add_server()->add_thread();
  status.set_run_seconds(seconds);
  run::ServerStats& server = *status.add_server();
  run::ThreadLoad& thread = *server.add_thread();
  thread.set_utilisation(0.25);
  thread.add_shard()->set_busy(0.25);
  for (const int rank : ranks) {
    run::WorkerStats& worker = *status.add_worker();
    worker.set_rank(rank);
    worker.set_clock(static_cast<int64_t>(10 * seconds));
    worker.set_train_loss(0.5 + rank);
    worker.set_examples(100);
    worker.set_compute_seconds(seconds / 2);
  }
  return status;
}

std::vector<std::string> EventsOf(const PageState& page) {
  std::vector<std::string> texts;
  const Json now = page.Now();
  for (const Json& event : now["events"])
    texts.push_back(event["text"].get<std::string>());
  return texts;
}

TEST(PageStateTest, APointHasItsMembersByIndex) {
  PageState page(Configured{});
  page.Update(PageStatus(2, {0, 2}));
  const Json now = page.Now();
  EXPECT_EQ(now["history"]["count"], 1);
  const Json& point = now["history"]["last"];
  EXPECT_EQ(point["t"], 2);
  EXPECT_EQ(point["clock"], (Json{20, nullptr, 20}));
  EXPECT_EQ(point["work"], (Json{1.0, nullptr, 1.0}));
  EXPECT_EQ(point["busy"], (Json{0.25}));
  EXPECT_EQ(point["loss"], 1.5);
  EXPECT_TRUE(point["test_loss"].is_null());
  EXPECT_EQ(page.History()["points"], (Json::array({point})));
}

// However long it is looked at: from the first reply to the last, evenly.
TEST(PageStateTest, HistoryIsBounded) {
  constexpr int kReplies = 2000;
  PageState page(Configured{});
  size_t count = 0;
  uint64_t every = 1;
  for (int i = 0; i < kReplies; ++i) {
    page.Update(PageStatus(i, {0}));
    const Json history = page.Now()["history"];
    const auto now = history["count"].get<size_t>();
    ASSERT_LE(now, 720u);
    if (history["every"] == every) {
      // A browser that has them all takes the newest, and needs no other.
      ASSERT_LE(now, count + 1);
      ASSERT_GE(now, count);
    }
    count = now;
    every = history["every"].get<uint64_t>();
  }
  const Json history = page.History();
  const Json& points = history["points"];
  EXPECT_GE(points.size(), 360u);
  for (size_t i = 0; i < points.size(); ++i)
    ASSERT_EQ(points[i]["t"], static_cast<double>(i * every));
  EXPECT_GE(points.back()["t"].get<double>(), kReplies - every);
}

std::string TrainLine(int rank, double seconds, double loss, double rate) {
  return absl::StrFormat(
      "{\"kind\":\"train\",\"rank\":%d,\"step\":10,\"seconds\":%g,"
      "\"loss\":%g,\"examples_per_second\":%g}\n",
      rank, seconds, loss, rate);
}

TEST(PageStateTest, CurvesBeginWhereTheJobDid) {
  std::istringstream metrics(absl::StrCat(
      TrainLine(0, 0.5, 2, 100), TrainLine(2, 0.75, 4, 50),
      "{\"kind\":\"eval\",\"rank\":0,\"seconds\":1.25,\"loss\":1.5,"
      "\"accuracy\":0.25}\n",
      TrainLine(0, 2.5, 1, 300), TrainLine(0, 2.75, 0.5, 100),
      // Of later than the first reply, nobody's, and not written to its end.
      TrainLine(0, 3, 9, 9), TrainLine(0, -1, 9, 9), TrainLine(-1, 2.5, 0, 9),
      "{\"kind\":\"train\",\"seconds\":\"2\",\"loss\":9}\n[]\nno JSON\n",
      // Of no kind.
      "{\"kind\":7,\"seconds\":2.5}\n",
      "{\"kind\":\"train\",\"rank\":0,\"seconds\":2.9,\"lo"));
  PageState page(Configured{}, EarlierPoints(metrics, 3, 360));
  page.Update(PageStatus(3, {0}));
  const Json points = page.History()["points"];
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(page.Now()["history"]["count"], 4);
  EXPECT_EQ(page.Now()["history"]["last"], points[3]);
  EXPECT_EQ(points[0]["t"], 0.75);
  EXPECT_EQ(points[0]["loss"], 3.0);
  EXPECT_EQ(points[0]["rate"], (Json{100.0, nullptr, 50.0}));
  EXPECT_TRUE(points[0]["test_accuracy"].is_null());
  EXPECT_EQ(points[1]["t"], 1.25);
  EXPECT_TRUE(points[1]["loss"].is_null());
  EXPECT_EQ(points[1]["test_accuracy"], 0.25);
  EXPECT_THAT(points[1]["rate"], IsEmpty());
  // The last evaluation holds until another one.
  EXPECT_EQ(points[2]["test_loss"], 1.5);
  EXPECT_EQ(points[2]["loss"], 0.5);
  EXPECT_EQ(points[2]["rate"], (Json{200.0}));
  EXPECT_EQ(points[3]["t"], 3);
  EXPECT_EQ(points[3]["loss"], 0.5);
}

// Records of workers come at times of their own, and stop when one is gone.
TEST(PageStateTest, EarlierRatesAreThoseOfAllWorkers) {
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    if (i < 15 || i % 3 != 2) lines += TrainLine(i % 3, i, 1, 100);
  }
  std::istringstream metrics(lines);
  const std::vector<Json> points = EarlierPoints(metrics, 30, 360);
  const auto sum_at = [&](size_t i) {
    double sum = 0;
    for (const Json& rate : points[i]["rate"])
      sum += rate.is_null() ? 0 : rate.get<double>();
    return sum;
  };
  for (const size_t i : {5, 6, 7, 14, 15, 16}) EXPECT_EQ(sum_at(i), 300) << i;
  EXPECT_EQ(sum_at(points.size() - 1), 200);
}

// Of a job that has run for a day, and is looked at for hours.
TEST(PageStateTest, EarlierPointsAreBoundedAndStay) {
  constexpr int kDay = 86400;
  std::string lines;
  for (int i = 0; i < kDay; i += 20) lines += TrainLine(0, i, 1, 100);
  std::istringstream metrics(lines);
  PageState page(Configured{},
                 EarlierPoints(metrics, kDay, PageState::kEarlierPointsMax));
  const Json earlier = page.History()["points"];
  ASSERT_EQ(earlier.size(), 360u);
  for (size_t i = 0; i < earlier.size(); ++i)
    ASSERT_EQ(earlier[i]["t"], 240.0 * static_cast<double>(i) + 220);
  for (int i = 0; i < 2500; ++i) {
    page.Update(PageStatus(kDay + i, {0}));
    ASSERT_LE(page.Now()["history"]["count"], 720u);
  }
  const Json points = page.History()["points"];
  EXPECT_GE(points.size(), 540u);
  for (size_t i = 0; i < earlier.size(); ++i) ASSERT_EQ(points[i], earlier[i]);
  for (size_t i = 1; i < points.size(); ++i)
    ASSERT_GT(points[i]["t"], points[i - 1]["t"]);
}

TEST(PageStateTest, WhatGrowsWithTheModelStaysWithTheJob) {
  PageState page(Configured{});
  page.Update(PageStatus(1, {0}));
  const Json now = page.Now();
  EXPECT_THAT(now["status"]["view"]["table"], IsEmpty());
  EXPECT_THAT(now["status"]["view"]["owner_server"], IsEmpty());
  EXPECT_THAT(now["status"]["server"][0]["thread"][0]["shard"], IsEmpty());
  ASSERT_EQ(now["shards"].size(), 1u);
  EXPECT_EQ(now["shards"][0]["at"], "0.0");
  EXPECT_EQ(now["status"]["server"][0]["load"]["busiest"], 0.25);
}

TEST(PageStateTest, StalenessIsCountedOverServersAndCut) {
  wire::StatusReply status = PageStatus(1, {0});
  *status.add_server() = status.server(0);
  status.mutable_server(1)->set_index(1);
  for (run::ServerStats& server : *status.mutable_server()) {
    for (int i = 0; i < 100; ++i) server.mutable_missed_clocks()->add_bin(1);
    server.mutable_missed_clocks()->set_max(99);
  }
  PageState page(Configured{});
  page.Update(status);
  const Json staleness = page.Now()["staleness"];
  ASSERT_EQ(staleness["bins"].size(), 48u);
  EXPECT_EQ(staleness["bins"][0], 2);
  EXPECT_EQ(staleness["bins"][47], 2 * 53);
  EXPECT_EQ(staleness["max"], 99);
}

TEST(PageStateTest, TellsWhatIsNew) {
  PageState page(Configured{});
  page.Update(PageStatus(1, {0, 1}));
  EXPECT_THAT(EventsOf(page), ElementsAre("the job is running"));
  wire::StatusReply status = PageStatus(2, {0, 2});
  status.add_held_up("worker 2 is loading, without progress for 4 s");
  status.mutable_last_checkpoint()->set_folder("c/100");
  status.mutable_last_checkpoint()->set_clock(100);
  run::MoveRecord& move = *status.add_moved();
  move.set_name("weight");
  move.set_to_server(1);
  status.set_moves(1);
  run::ModeRecord& change = *status.add_mode_changed();
  *change.mutable_from() = ModeOf("asp");
  *change.mutable_to() = ModeOf("bsp");
  change.set_seconds(1.5);
  page.Update(status);
  EXPECT_THAT(EventsOf(page),
              ElementsAre("the job is running", "worker 2 has joined",
                          "worker 1 is gone",
                          "worker 2 is loading, without progress for 4 s",
                          HasSubstr("the mode has changed from asp to bsp"),
                          "shard weight has moved from 0.0 to 1.0",
                          "a checkpoint of step 100 is in c/100"));
  // The same again, but for how long it has been so, is nothing new.
  status.set_held_up(0, "worker 2 is loading, without progress for 5 s");
  page.Update(status);
  EXPECT_EQ(EventsOf(page).size(), 7u);
  status.mutable_view()->set_state(wire::FAILED);
  status.mutable_view()->mutable_end()->set_reason("worker 2 is gone");
  page.Update(status);
  EXPECT_EQ(EventsOf(page).back(), "the job has failed: worker 2 is gone");
}

TEST(PageStateTest, TellsOnceWhereAMemberStandsStill) {
  PageState page(Configured{});
  wire::StatusReply status = PageStatus(20, {0, 1});
  wire::MemberStacks& stacks = *status.add_stacks();
  stacks.mutable_of()->set_worker(true);
  stacks.mutable_of()->set_index(1);
  stacks.set_seconds(12);
  page.Update(status);
  EXPECT_THAT(EventsOf(page), ElementsAre("the job is running"))
      << "it is not known where";
  stacks.mutable_stacks()->set_where("train.py line 41, in load");
  stacks.mutable_stacks()->set_text("main thread:");
  page.Update(status);
  stacks.set_seconds(22);
  page.Update(status);
  EXPECT_THAT(
      EventsOf(page),
      ElementsAre("the job is running",
                  "worker 1 stands still in train.py line 41, in load"));
  EXPECT_EQ(page.Now()["status"]["stacks"][0]["stacks"]["text"],
            "main thread:");
}

TEST(PageStateTest, TellsWhoIsSlowAndWhenThatIsOver) {
  PageState page(Configured{});
  wire::StatusReply status = PageStatus(1, {0, 1});
  run::Straggler& slow = *status.add_straggler();
  slow.set_rank(1);
  slow.set_sentence("worker 1 is 2.0 times slower than the others");
  page.Update(status);
  slow.set_sentence("worker 1 is 2.1 times slower than the others");
  page.Update(status);
  page.Update(PageStatus(3, {0, 1}));
  EXPECT_THAT(EventsOf(page),
              ElementsAre("the job is running",
                          "worker 1 is 2.0 times slower than the others",
                          "no longer slow: worker 1"));
}

TEST(PageStateTest, TellsWhichServerIsSlow) {
  PageState page(Configured{});
  wire::StatusReply status = PageStatus(1, {0});
  run::Straggler& slow = *status.add_straggler();
  slow.set_server(1);
  slow.set_sentence("server 1 is 9.0 times slower than before");
  page.Update(status);
  EXPECT_EQ(page.Now()["status"]["straggler"][0]["server"], 1);
  page.Update(PageStatus(2, {0}));
  EXPECT_THAT(EventsOf(page),
              ElementsAre("the job is running",
                          "server 1 is 9.0 times slower than before",
                          "no longer slow: server 1"));
}

TEST(PageStateTest, SilenceIsToldOnceAndTheStatusStays) {
  PageState page(Configured{});
  page.Update(PageStatus(3, {0}));
  page.SetSilence("nobody answers");
  page.SetSilence("nobody answers");
  EXPECT_EQ(page.Now()["silence"], "nobody answers");
  EXPECT_EQ(page.Now()["status"]["view"]["job"], "digits");
  EXPECT_EQ(EventsOf(page).size(), 2u);
  page.Update(PageStatus(4, {0}));
  EXPECT_EQ(page.Now()["silence"], "");
  EXPECT_EQ(page.Now()["over"], false);
  page.SetEnd("the job has ended: finished");
  EXPECT_EQ(page.Now()["over"], true);
  EXPECT_EQ(EventsOf(page).back(), "the job has ended: finished");
}

TEST(PageStateTest, MembersThatCannotBeAreLeftOut) {
  PageState page(Configured{});
  page.Update(PageStatus(1, {-1, 0, std::numeric_limits<int>::max()}));
  EXPECT_EQ(page.Now()["history"]["last"]["clock"].size(), 1u);
}

TEST(PageStateTest, EventsAreBounded) {
  PageState page(Configured{});
  for (int i = 0; i < 500; ++i) page.Update(PageStatus(i, {0, 1 + i % 2}));
  EXPECT_EQ(page.Now()["events"].size(), 200u);
}

}  // namespace slackline::page_state_test
