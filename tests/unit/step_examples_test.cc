// Goal: a worker asks for examples when it has none, once, and tells the truth
// about those that it had. Method: answers by hand, one at a time.
#include "worker/core/step_examples.h"

#include <optional>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace slackline::step_examples_test {

constexpr Clock kEnd = 10;

class StepExamplesTest : public ::testing::Test {
 protected:
  // Over servers.
  std::optional<wire::Call> Ask(Clock clock, bool all_arrived = true) {
    std::optional<wire::Call> call =
        step_examples_.Ask({.clock = clock,
                            .end = kEnd,
                            .is_done_together = false,
                            .all_arrived = all_arrived});
    if (call.has_value()) step_examples_.OnAsked(++last_call_);
    return call;
  }
  void Answer(const wire::GrantedExamples& granted) {
    wire::CallReply reply;
    reply.set_code(wire::OK);
    *reply.mutable_granted() = granted;
    ASSERT_TRUE(step_examples_.Awaits(last_call_));
    ASSERT_TRUE(step_examples_.OnAnswer(reply).ok());
    EXPECT_FALSE(step_examples_.Awaits(last_call_));
  }
  void Give() {
    wire::GrantedExamples granted;
    granted.mutable_examples()->set_end(4);
    Answer(granted);
  }
  void SkipTo(Clock clock) {
    wire::GrantedExamples granted;
    granted.set_skip_to(clock);
    Answer(granted);
  }

  StepExamples step_examples_{/*elastic=*/true};
  uint64_t last_call_ = 0;
};

TEST_F(StepExamplesTest, WithoutElasticSamplingNothingIsAsked) {
  StepExamples all(/*elastic=*/false);
  EXPECT_TRUE(all.HasForStep());
  EXPECT_FALSE(all.Ask({.clock = 0,
                        .end = kEnd,
                        .is_done_together = false,
                        .all_arrived = true})
                   .has_value());
  EXPECT_FALSE(all.examples().has_value());
}

TEST_F(StepExamplesTest, OneQuestionAtATimeUntilThereAreExamples) {
  EXPECT_FALSE(step_examples_.HasForStep());
  ASSERT_TRUE(Ask(0).has_value());
  EXPECT_FALSE(Ask(0).has_value());
  Give();
  EXPECT_TRUE(step_examples_.HasForStep());
  EXPECT_FALSE(Ask(0).has_value());
  step_examples_.OnStep(/*is_done_together=*/false);
  EXPECT_TRUE(Ask(1).has_value());
}

TEST_F(StepExamplesTest, NothingIsAskedAtTheEnd) {
  EXPECT_FALSE(Ask(kEnd).has_value());
}

TEST_F(StepExamplesTest, OverServersARangeIsDoneWhenItsGradientsHaveArrived) {
  ASSERT_TRUE(Ask(0).has_value());
  Give();
  step_examples_.OnStep(/*is_done_together=*/false);
  std::optional<wire::Call> call = Ask(1, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->next_examples().received(), 1);
  EXPECT_EQ(call->next_examples().done(), 0);
  Give();
  // The parameters have the gradients of the step before.
  step_examples_.OnParameters(/*with_last=*/true);
  step_examples_.OnStep(/*is_done_together=*/false);
  call = Ask(2, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->next_examples().received(), 2);
  EXPECT_EQ(call->next_examples().done(), 1);
}

TEST_F(StepExamplesTest, ByAllReduceTheStepBeforeIsDone) {
  const StepExamples::Place place = {
      .clock = 0, .end = kEnd, .is_done_together = true, .all_arrived = false};
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(step_examples_.Ask(place).has_value());
    step_examples_.OnAsked(++last_call_);
    Give();
    step_examples_.OnStep(/*is_done_together=*/true);
  }
  const std::optional<wire::Call> call = step_examples_.Ask(place);
  ASSERT_TRUE(call.has_value());
  EXPECT_TRUE(call->next_examples().reduced());
  EXPECT_EQ(call->next_examples().received(), 2);
  EXPECT_EQ(call->next_examples().done(), 1);
}

TEST_F(StepExamplesTest, AStepThatOthersHaveIsDone) {
  ASSERT_TRUE(Ask(0).has_value());
  Give();
  step_examples_.OnStepWithOthers();
  EXPECT_FALSE(step_examples_.HasForStep());
  const std::optional<wire::Call> call = Ask(1, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->next_examples().done(), 1);
}

TEST_F(StepExamplesTest, NoneNowIsAskedAgainWhenTheLastGradientsHaveArrived) {
  ASSERT_TRUE(Ask(0).has_value());
  Answer({});
  EXPECT_FALSE(Ask(0, /*all_arrived=*/false).has_value());
  EXPECT_TRUE(Ask(0).has_value());
}

TEST_F(StepExamplesTest, ASkipIsTakenOnceAndOnlyForward) {
  ASSERT_TRUE(Ask(2).has_value());
  SkipTo(5);
  EXPECT_TRUE(step_examples_.HasSkip(2));
  EXPECT_FALSE(Ask(2).has_value()) << "there are none before clock 5";
  EXPECT_EQ(step_examples_.TakeSkip(2), 5);
  EXPECT_EQ(step_examples_.TakeSkip(2), std::nullopt);
  ASSERT_TRUE(Ask(5).has_value());
  SkipTo(6);
  EXPECT_EQ(step_examples_.TakeSkip(6), std::nullopt);
}

TEST_F(StepExamplesTest, ALaterClockIsToldOnceToThoseWhoFindNone) {
  ASSERT_TRUE(Ask(2).has_value());
  EXPECT_FALSE(step_examples_.TellClock(3).has_value()) << "it has no examples";
  Give();
  EXPECT_FALSE(step_examples_.TellClock(2).has_value())
      << "it asked at this clock";
  const std::optional<wire::Call> call = step_examples_.TellClock(3);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->has_examples().clock(), 3);
  EXPECT_FALSE(step_examples_.TellClock(3).has_value());
}

TEST_F(StepExamplesTest, ARefusalIsAnErrorWithTheReason) {
  ASSERT_TRUE(Ask(0).has_value());
  wire::CallReply reply;
  reply.set_code(wire::REJECTED);
  reply.set_error("no such epoch");
  const absl::Status status = step_examples_.OnAnswer(reply);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_FALSE(step_examples_.Awaits(last_call_));
}

TEST_F(StepExamplesTest, AtTheEndTheOpenCallIsGivenBackOnce) {
  ASSERT_TRUE(Ask(0).has_value());
  EXPECT_EQ(step_examples_.Close(), last_call_);
  EXPECT_EQ(step_examples_.Close(), 0u);
  EXPECT_FALSE(step_examples_.Awaits(0)) << "no call has the number 0";
}

}  // namespace slackline::step_examples_test
