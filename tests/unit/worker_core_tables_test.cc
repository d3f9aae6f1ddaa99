// Goal: a step over servers begins with the first table that has come, and
// where it must not; each gradient has the version of the parameters that it
// was computed from, also if shards are split in two meanwhile; what the
// computation waits for has a deadline. Method: as worker_core_test, with two
// tables.
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker_core_fixture.h"
#include "worker/core/worker_core.h"

namespace slackline::worker_core_tables_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Two tables of four elements, a shard each, on the only shard thread.
class StepByTableTest : public WorkerCoreTest {
 protected:
  StepByTableTest() { options_.step_by_table = true; }

  wire::View TwoTables(uint64_t number, absl::string_view mode = "asp") const {
    wire::View view = RunningView(number, mode);
    wire::Table& table = *view.add_table();
    table = view.table(0);
    table.set_name("bias");
    table.set_first_shard(1);
    view.add_owner_server(0);
    view.add_owner_thread(0);
    return view;
  }
  // The shard keeps its first element, and shard 2 has the others.
  void CutInTwo(int32_t shard) {
    wire::View cut = TwoTables(3);
    wire::Split& split = *cut.add_split();
    split.set_shard(shard);
    split.set_at(1);
    split.set_since(3);
    cut.add_owner_server(0);
    cut.add_owner_thread(0);
    Show(cut);
  }
  // Has done the step of clock 0, and asked for the parameters of the next.
  void Begin(absl::string_view mode = "asp") {
    Join([&](uint64_t number) { return TwoTables(number, mode); });
    Answer({{0, 1}, {1, 1}});
    for (const int32_t table : {1, 0}) Give(table);
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnComputed(/*loss=*/1, now, effects);
    });
    ASSERT_EQ(Count<WorkerCore::Compute>(), 1);
    ASSERT_NE(Last<WorkerCore::Compute>().parameters, nullptr)
        << "everything has come together";
    ASSERT_THAT(tables_, IsEmpty());
    to_shards_.erase(to_shards_.begin(), to_shards_.end() - 1);
  }
  struct Version {
    int32_t shard;
    uint64_t version;
    int elements = 4;
  };
  // The shard thread answers the last pull in part.
  void Answer(const std::vector<Version>& shards, uint64_t view_number = 2) {
    Message message;
    message.header.set_view_number(view_number);
    for (const Version& shard : shards) {
      wire::PullAnswer& answer =
          *message.header.mutable_pull_reply()->add_answer();
      answer.set_pull(LastPull());
      answer.set_shard(shard.shard);
      answer.mutable_values()->set_version(shard.version);
      const std::vector<float> values(static_cast<size_t>(shard.elements),
                                      static_cast<float>(shard.version));
      message.payloads.push_back(
          Payload::Copy(values.data(), values.size() * sizeof(float)));
    }
    FromShard(message);
  }
  void Give(int32_t table) {
    const std::vector<float> gradient(4, 1.0f);
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      EXPECT_TRUE(core.OnGradient(TableId{table},
                                  Payload::Copy(gradient.data(), 16),
                                  StepOptions(), now, effects)
                      .ok());
    });
  }
  void Need(WorkerCore::Need need) {
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.SetNeed(need, now);
    });
  }
  // Of the pushes since Begin(), by shard.
  std::map<int32_t, uint64_t> PushedFrom() const {
    std::map<int32_t, uint64_t> versions;
    for (const Message& message : to_shards_) {
      for (const wire::Push& push : message.header.push_request().push())
        versions[push.shard()] = push.gradient();
    }
    return versions;
  }
};

TEST_F(StepByTableTest, AStepBeginsWithTheFirstTable) {
  Begin();
  Answer({{0, 2}});
  ASSERT_EQ(Count<WorkerCore::Compute>(), 2);
  EXPECT_EQ(Last<WorkerCore::Compute>().parameters, nullptr);
  ASSERT_THAT(tables_, SizeIs(1));
  EXPECT_EQ(tables_[0].table, TableId{0});
  EXPECT_EQ(core_->counts().begun_by_table, 1);
  Answer({{1, 3}});
  ASSERT_THAT(tables_, SizeIs(2));
  EXPECT_EQ(tables_[1].table, TableId{1});
  ASSERT_THAT(tables_[1].pieces, SizeIs(1));
  EXPECT_EQ(tables_[1].pieces[0].version, 3u);
  EXPECT_EQ(tables_[1].pieces[0].values.size(), 16u);
  for (const int32_t table : {1, 0}) Give(table);
  EXPECT_THAT(PushedFrom(), ElementsAre(Pair(0, 2u), Pair(1, 3u)));
}

TEST_F(StepByTableTest, ALaterTableAloneBeginsNoStep) {
  Begin();
  Answer({{1, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 1);
  Answer({{0, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 2);
  EXPECT_NE(Last<WorkerCore::Compute>().parameters, nullptr)
      << "there is nothing left to wait for";
  EXPECT_THAT(tables_, IsEmpty());
}

TEST_F(StepByTableTest, ATableIsUsedBeforeTheOthersHaveCome) {
  Begin();
  Answer({{0, 2}});
  Give(0);
  Answer({{1, 3}});
  Give(1);
  EXPECT_THAT(PushedFrom(), ElementsAre(Pair(0, 2u), Pair(1, 3u)));
}

TEST_F(StepByTableTest, WhatIsCutOffATableThatHasComeHasItsVersion) {
  Begin();
  Answer({{0, 2}});
  CutInTwo(0);
  Answer({{1, 3}}, 3);
  for (const int32_t table : {1, 0}) Give(table);
  EXPECT_THAT(PushedFrom(), ElementsAre(Pair(0, 2u), Pair(1, 3u), Pair(2, 2u)));
}

TEST_F(StepByTableTest, WhatIsCutBeforeItHasComeHasTwoVersions) {
  Begin();
  Answer({{0, 2}});
  CutInTwo(1);
  Answer({{1, 3, 1}}, 3);
  EXPECT_THAT(tables_, SizeIs(1)) << "its other shard is missing";
  Answer({{2, 4, 3}}, 3);
  ASSERT_THAT(tables_, SizeIs(2));
  EXPECT_THAT(tables_[1].pieces, SizeIs(2));
  for (const int32_t table : {1, 0}) Give(table);
  EXPECT_THAT(PushedFrom(), ElementsAre(Pair(0, 2u), Pair(1, 3u), Pair(2, 4u)));
}

TEST_F(StepByTableTest, TheChiefWaitsForWhatItHasToEvaluate) {
  options_.evaluate_every = 1;
  Begin();
  Answer({{0, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 1);
  Answer({{1, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 2);
  EXPECT_EQ(Last<WorkerCore::Evaluate>().clock, 1);
}

// It may find the others ahead when all shards have answered.
TEST_F(StepByTableTest, InBackupAStepBeginsWithAllTables) {
  Begin("backup");
  Answer({{0, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 1);
  Answer({{1, 2}});
  EXPECT_EQ(Count<WorkerCore::Compute>(), 2);
}

TEST_F(StepByTableTest, WhatTheComputationNeedsHasADeadline) {
  Begin();
  Answer({{0, 2}});
  Pass(2 * kWaitTimeout);
  ASSERT_TRUE(core_->ending().ok()) << core_->ending();
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  Need(WorkerCore::Need::kParameters);
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WAITING_FOR_SERVER);
  Pass(kWaitTimeout - absl::Seconds(1));
  ASSERT_TRUE(core_->ending().ok()) << core_->ending();
  Pass(absl::Seconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(core_->ending())) << core_->ending();
  EXPECT_THAT(std::string(core_->ending().message()),
              HasSubstr("for parameters"));
}

TEST_F(StepByTableTest, TheNextPullGoesAheadWhenThisOneIsComplete) {
  options_.pull_ahead = true;
  Join([&](uint64_t number) { return TwoTables(number); });
  Answer({{0, 1}, {1, 1}});
  const uint64_t of_clock_1 = LastPull();
  for (const int32_t table : {1, 0}) Give(table);
  Answer({{0, 2}});
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnComputed(/*loss=*/1, now, effects);
  });
  ASSERT_EQ(Count<WorkerCore::Compute>(), 2);
  EXPECT_EQ(Last<WorkerCore::Compute>().parameters, nullptr);
  EXPECT_EQ(LastPull(), of_clock_1);
  Answer({{1, 2}});
  EXPECT_NE(LastPull(), of_clock_1);
}

}  // namespace slackline::worker_core_tables_test
