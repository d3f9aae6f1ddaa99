// Goal: members are named as people write them, and what a process says of
// itself is shown under its name.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/job/stacks.h"

namespace slackline::stacks_text_test {

TEST(StacksTextTest, MembersHaveTheirNamesOrThoseOfTheirLogs) {
  for (const char* const text : {"worker 2", "worker-2"}) {
    const auto name = ParseMemberName(text);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(MemberText(*name), "worker 2");
  }
  EXPECT_EQ(MemberText(*ParseMemberName("server-0")), "server 0");
  for (const char* const text :
       {"", "worker", "worker-", "worker 2 3", "worker--2", "worker-+2",
        "chief-1", "run", "worker-99999999999", "worker-2x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseMemberName(text).status()))
        << text;
  }
}

TEST(StacksTextTest, WhatAProcessSaysIsBelowItsName) {
  wire::Inspected inspected;
  inspected.mutable_of()->set_worker(true);
  inspected.mutable_of()->set_index(2);
  inspected.set_host("node7");
  inspected.set_pid(4711);
  inspected.mutable_stacks()->set_text("main thread:\n  File 1\n");
  EXPECT_EQ(StacksText(inspected),
            "worker 2 (node7, pid 4711)\n  main thread:\n    File 1\n");
  inspected.mutable_stacks()->set_where("train.py line 41, in load");
  EXPECT_EQ(StacksText(inspected),
            "worker 2 (node7, pid 4711), in train.py line 41, in load\n  main "
            "thread:\n    File 1\n");
  inspected.set_error("it cannot");
  EXPECT_EQ(StacksText(inspected),
            "worker 2 (node7, pid 4711): its stacks are not known: it "
            "cannot\n");
}

}  // namespace slackline::stacks_text_test
