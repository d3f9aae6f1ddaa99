// Goal: what a process is asked about itself is answered once, at its time, and
// without keeping its driver waiting.
#include "common/inspection/inspector.h"

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::inspector_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch();

wire::Inspection StacksAs(uint64_t number) {
  wire::Inspection inspection;
  inspection.set_number(number);
  inspection.mutable_stacks();
  return inspection;
}

wire::Inspection TimelineAs(uint64_t number, int32_t ms) {
  wire::Inspection inspection;
  inspection.set_number(number);
  inspection.mutable_timeline()->set_ms(ms);
  inspection.mutable_timeline()->set_bytes_max(100);
  return inspection;
}

TEST(Inspector, StacksAreTakenOnAnotherThread) {
  std::promise<void> may_go_on;
  std::thread::id taken_on;
  Inspector inspector({.stacks =
                           [&] {
                             may_go_on.get_future().wait();
                             taken_on = std::this_thread::get_id();
                             wire::Stacks stacks;
                             stacks.set_text("here");
                             return stacks;
                           },
                       .begin_timeline = {},
                       .end_timeline = {}});
  EXPECT_EQ(inspector.NextWakeup(kNow), absl::InfiniteFuture());
  inspector.Ask(StacksAs(7), kNow);
  EXPECT_THAT(inspector.TakeAnswers(kNow), IsEmpty());
  EXPECT_LT(inspector.NextWakeup(kNow), kNow + absl::Seconds(1));
  may_go_on.set_value();
  std::vector<Inspector::Answer> answers;
  while (answers.empty()) answers = inspector.TakeAnswers(kNow);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].inspected.number(), 7u);
  EXPECT_EQ(answers[0].inspected.stacks().text(), "here");
  EXPECT_NE(taken_on, std::this_thread::get_id());
  EXPECT_THAT(inspector.TakeAnswers(kNow), IsEmpty());
}

// What was recorded is written down on a thread of its own.
std::vector<Inspector::Answer> AwaitAnswers(Inspector* inspector,
                                            absl::Time now) {
  std::vector<Inspector::Answer> answers;
  while (answers.empty()) answers = inspector->TakeAnswers(now);
  return answers;
}

struct Recorded {
  std::vector<std::string> calls;
  Inspector::Sources Sources() {
    return {.stacks = {},
            .begin_timeline =
                [this](absl::Duration time) {
                  calls.push_back("begin " + absl::FormatDuration(time));
                },
            .end_timeline =
                [this](int64_t bytes_max) {
                  calls.push_back("end " + std::to_string(bytes_max));
                  return std::string("part");
                }};
  }
};

TEST(Inspector, ATimelineEndsWhenItsTimeIsOver) {
  Recorded recorded;
  Inspector inspector(recorded.Sources());
  inspector.Ask(TimelineAs(3, 1000), kNow);
  EXPECT_EQ(inspector.NextWakeup(kNow), kNow + absl::Seconds(1));
  EXPECT_THAT(inspector.TakeAnswers(kNow + absl::Milliseconds(999)), IsEmpty());
  const auto answers = AwaitAnswers(&inspector, kNow + absl::Seconds(1));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_TRUE(answers[0].inspected.has_timeline());
  EXPECT_EQ(answers[0].frame.size(), 4u);
  EXPECT_THAT(recorded.calls, ElementsAre("begin 1s", "end 100"));
}

TEST(Inspector, TheEndOfTheJobEndsATimeline) {
  Recorded recorded;
  Inspector inspector(recorded.Sources());
  inspector.Ask(TimelineAs(3, 60000), kNow);
  inspector.End();
  EXPECT_THAT(inspector.TakeAnswers(kNow), SizeIs(1));
}

TEST(Inspector, ASecondTimelineIsRefusedWhileOneIsRecorded) {
  Recorded recorded;
  Inspector inspector(recorded.Sources());
  inspector.Ask(TimelineAs(3, 1000), kNow);
  inspector.Ask(TimelineAs(4, 1000), kNow);
  const auto answers = inspector.TakeAnswers(kNow);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].inspected.number(), 4u);
  EXPECT_THAT(answers[0].inspected.error(), HasSubstr("another timeline"));
  EXPECT_THAT(recorded.calls, SizeIs(1));
}

TEST(Inspector, WhatIsUnderWayIsNotAskedAgain) {
  Recorded recorded;
  Inspector inspector(recorded.Sources());
  inspector.Ask(TimelineAs(3, 1000), kNow);
  inspector.Ask(TimelineAs(3, 1000), kNow);
  EXPECT_THAT(inspector.TakeAnswers(kNow), IsEmpty());
  EXPECT_THAT(AwaitAnswers(&inspector, kNow + absl::Seconds(1)), SizeIs(1));
}

TEST(Inspector, ATimelineThatIsWrittenDownHoldsNobodyUp) {
  std::promise<std::string> written;
  Inspector inspector(
      {.stacks = {},
       .begin_timeline = [](absl::Duration) {},
       .end_timeline = [&](int64_t) { return written.get_future().get(); }});
  inspector.Ask(TimelineAs(3, 1000), kNow);
  const absl::Time over = kNow + absl::Seconds(1);
  EXPECT_THAT(inspector.TakeAnswers(over), IsEmpty());
  EXPECT_GT(inspector.NextWakeup(over), over) << "it does not spin meanwhile";
  inspector.Ask(TimelineAs(3, 1000), over);
  written.set_value("part");
  EXPECT_THAT(AwaitAnswers(&inspector, over), SizeIs(1));
  EXPECT_EQ(inspector.NextWakeup(over), absl::InfiniteFuture());
}

TEST(Inspector, ATimelineIsEndedWithIt) {
  Recorded recorded;
  {
    Inspector inspector(recorded.Sources());
    inspector.Ask(TimelineAs(3, 1000), kNow);
  }
  EXPECT_THAT(recorded.calls, ElementsAre("begin 1s", "end 0"));
}

TEST(Inspector, ASourceThatFailsIsAnError) {
  Inspector inspector({.stacks = []() -> wire::Stacks {
                         throw std::runtime_error("no /proc here");
                       },
                       .begin_timeline = {},
                       .end_timeline = {}});
  inspector.Ask(StacksAs(1), kNow);
  EXPECT_EQ(AwaitAnswers(&inspector, kNow)[0].inspected.error(),
            "no /proc here");
}

TEST(Inspector, WhoCannotTellSaysSo) {
  Inspector inspector({});
  inspector.Ask(StacksAs(1), kNow);
  inspector.Ask(TimelineAs(2, 10), kNow);
  inspector.Ask(wire::Inspection(), kNow);
  const auto answers = inspector.TakeAnswers(kNow);
  ASSERT_THAT(answers, SizeIs(3));
  for (const Inspector::Answer& answer : answers)
    EXPECT_FALSE(answer.inspected.error().empty());
}

}  // namespace slackline::inspector_test
