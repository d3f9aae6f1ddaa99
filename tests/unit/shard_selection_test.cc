#include "tools/cli/job/shard_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace slackline::shard_selection_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tables a (shards 0 to 2, ten elements in shards of four) and b.c (shard 3);
// server 0 with one thread, server 2 with two. Shard 1 was cut at 6, which made
// shard 4.
std::shared_ptr<const View> MakeView() {
  wire::View view;
  view.set_state(wire::RUNNING);
  const auto add_table = [&](const std::string& name, int64_t elements,
                             int64_t shard_elements, int first_shard) {
    wire::Table& table = *view.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name(name);
    table.add_shape(elements);
    table.set_shard_elements(shard_elements);
    table.set_first_shard(first_shard);
  };
  add_table("a", 10, 4, 0);
  add_table("b.c", 4, 4, 3);
  for (const int index : {0, 2}) {
    wire::ServerMember& server = *view.add_server();
    server.set_index(index);
    server.add_thread();
    if (index == 2) server.add_thread();
  }
  for (int shard = 0; shard < 5; ++shard) {
    view.add_owner_server(0);
    view.add_owner_thread(0);
  }
  wire::Split& split = *view.add_split();
  split.set_shard(1);
  split.set_at(6);
  split.set_since(7);
  view.set_number(7);
  const auto created = View::Create(view);
  EXPECT_TRUE(created.ok()) << created.status();
  return *created;
}

std::vector<int32_t> Selected(const std::vector<std::string>& words) {
  const auto shards = SelectShards(*MakeView(), words);
  EXPECT_TRUE(shards.ok()) << shards.status();
  return shards.ok() ? *shards : std::vector<int32_t>();
}

std::string SelectionError(const std::string& word) {
  const absl::Status status = SelectShards(*MakeView(), {word}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << word << ": " << status;
  return std::string(status.message());
}

TEST(SelectShardsTest, TakesIdsAndRangesWithBothEnds) {
  EXPECT_THAT(Selected({"3"}), ElementsAre(3));
  EXPECT_THAT(Selected({"1-3"}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Selected({"2-2"}), ElementsAre(2));
}

TEST(SelectShardsTest, ATableIsAllItsShardsInElementOrder) {
  EXPECT_THAT(Selected({"a"}), ElementsAre(0, 1, 4, 2));
  EXPECT_THAT(Selected({"b.c"}), ElementsAre(3));
}

TEST(SelectShardsTest, AShardCanBeNamedAsItIsShownOrWithoutTheSpace) {
  EXPECT_THAT(Selected({"a[4, 6)"}), ElementsAre(1));
  EXPECT_THAT(Selected({"a[6,8)"}), ElementsAre(4));
}

TEST(SelectShardsTest, EachShardIsTakenOnce) {
  EXPECT_THAT(Selected({"2", "1-3", "a", "a[8, 10)"}),
              ElementsAre(2, 1, 3, 0, 4));
}

TEST(SelectShardsTest, AnUnknownShardNamesThoseThereAre) {
  EXPECT_EQ(SelectionError("5"),
            "SHARD '5': there is no shard 5; the job has shards 0 to 4");
  EXPECT_THAT(SelectionError("3-9"),
              HasSubstr("'3-9': there is no shard 9; the job has shards 0 to "
                        "4"));
  EXPECT_THAT(SelectionError("99999999999"),
              HasSubstr("no shard 99999999999;"));
}

TEST(SelectShardsTest, ARangeThatRunsBackwardsIsTurnedAround) {
  EXPECT_THAT(SelectionError("3-1"), HasSubstr("write 1-3"));
}

TEST(SelectShardsTest, AnUnknownNameNamesThoseThereAre) {
  EXPECT_EQ(SelectionError("c"),
            "SHARD 'c': there is no table 'c'; the tables are a, b.c");
  EXPECT_THAT(SelectionError("c[0, 4)"), HasSubstr("the tables are a, b.c"));
  EXPECT_EQ(SelectionError("a[0, 10)"),
            "SHARD 'a[0, 10)': no shard of table 'a' has this range; there are "
            "a[0, 4), a[4, 6), a[6, 8), a[8, 10)");
  for (const char* const word : {"", "-", "-3", "3-", "1-2-3", "0x3"}) {
    EXPECT_THAT(SelectionError(word), HasSubstr("there is no table"));
  }
}

TEST(SelectShardsTest, AJobWithoutShardsSaysSo) {
  const auto view = View::Create(wire::View());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_THAT(std::string(SelectShards(**view, {"0"}).status().message()),
              HasSubstr("the job has no shards"));
  EXPECT_THAT(std::string(SelectShards(**view, {"a"}).status().message()),
              HasSubstr("the job has none"));
}

std::string TargetError(const std::string& text) {
  const absl::Status status = SelectTarget(*MakeView(), text).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
  return std::string(status.message());
}

TEST(SelectTargetTest, IsAServerWithOrWithoutAThread) {
  const std::shared_ptr<const View> view = MakeView();
  EXPECT_EQ(*SelectTarget(*view, "2"), (Owner{.server = 2, .thread = -1}));
  EXPECT_EQ(*SelectTarget(*view, "2.1"), (Owner{.server = 2, .thread = 1}));
}

TEST(SelectTargetTest, OthersAreRefusedWithThoseThereAre) {
  EXPECT_EQ(TargetError("1"),
            "--to: server 1 is not in the job; its servers are 0, 2");
  EXPECT_EQ(TargetError("2.2"),
            "--to: server 2 has no thread 2; it has threads 0 to 1");
  EXPECT_EQ(TargetError("0.1"),
            "--to: server 0 has no thread 1; its only thread is 0");
  for (const char* const text : {"", ".", "2.", ".1", "2.1.0", "-1", "x"}) {
    EXPECT_THAT(TargetError(text), HasSubstr("as in 1.0, is required"));
  }
}

}  // namespace slackline::shard_selection_test
