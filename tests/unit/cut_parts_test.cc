// Goal: each cut of a shard thread becomes one part that is told: written,
// without a file, or with the reason why there is none. Method: real files in a
// folder of the test.
#include "server/cut_parts.h"

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/part_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/floats.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::cut_parts_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

ShardCore::CutState OneShard() {
  ShardCore::CutState state{.number = 4, .run = 77};
  state.shards.push_back({.table = "w",
                          .region = {8, 12},
                          .version = 6,
                          .values = Floats(3, 4),
                          .slots = {Floats(5, 4)}});
  return state;
}

// What is told of the cut of thread 2 of server 1.
wire::CutPart PartOf(const std::string& root, ShardCore::CutState state) {
  std::promise<wire::CutPart> told;
  CutParts parts({.server = 1, .root = root, .told = [&](wire::CutPart part) {
                    told.set_value(std::move(part));
                  }});
  parts.OnCut(2, std::move(state));
  std::future<wire::CutPart> arrives = told.get_future();
  if (arrives.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
    ADD_FAILURE() << "nothing is told";
    return {};
  }
  return arrives.get();
}

TEST(CutPartsTest, ShardsAreInAFileOfTheirThread) {
  const TempFolder folder;
  const wire::CutPart told = PartOf(folder.path(), OneShard());
  EXPECT_EQ(told.cut(), 4);
  EXPECT_EQ(told.thread(), 2);
  ASSERT_TRUE(told.has_part()) << told.error();
  EXPECT_EQ(told.part().file(), "server-1-thread-2.safetensors");
  EXPECT_EQ(told.part().shards(), 1);
  const auto file =
      Must(PartFile::Open(PartialFolder(folder.path(), 77, 4), told.part()));
  ASSERT_EQ(file->pieces().size(), 1u);
  const ShardState read = Must(file->Read(file->pieces()[0]));
  EXPECT_EQ(read.table, "w");
  EXPECT_EQ(read.region, Region(8, 12));
  EXPECT_EQ(read.version, 6u);
  EXPECT_EQ(First(read.values), 3);
  EXPECT_EQ(First(read.slots.at(0)), 5);
}

TEST(CutPartsTest, AThreadWithoutShardsHasAPartWithoutAFile) {
  const TempFolder folder;
  const wire::CutPart told = PartOf(folder.path(), {.number = 4, .run = 77});
  EXPECT_TRUE(told.has_part());
  EXPECT_EQ(told.part().file(), "");
  EXPECT_EQ(told.part().shards(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CutPartsTest, WithoutAFolderItSaysWhatIsMissing) {
  const wire::CutPart told = PartOf("", OneShard());
  EXPECT_EQ(told.cut(), 4);
  EXPECT_EQ(told.thread(), 2);
  EXPECT_THAT(told.error(), AllOf(HasSubstr("server 1"), HasSubstr("--out")));
}

TEST(CutPartsTest, WhatCannotBeWrittenIsToldWithItsReason) {
  const TempFolder folder;
  const std::string in_the_way = folder.Write("checkpoints", "a file");
  const wire::CutPart told = PartOf(in_the_way, OneShard());
  EXPECT_THAT(told.error(), HasSubstr(in_the_way));
}

TEST(CutPartsTest, ShardsWithoutAStateAreToldWithTheirReason) {
  const TempFolder folder;
  const wire::CutPart told = PartOf(
      folder.path(), {.number = 4, .run = 77, .error = "shard w has moved"});
  EXPECT_EQ(told.error(), "shard w has moved");
}

}  // namespace slackline::cut_parts_test
