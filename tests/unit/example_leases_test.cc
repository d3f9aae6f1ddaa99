// Goal: a worker asks for examples when it has none, once, and tells the truth
// about those that it had. Method: answers by hand, one at a time.
#include "worker/core/example_leases.h"

#include <optional>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace slackline::example_leases_test {

constexpr Clock kEnd = 10;

class ExampleLeasesTest : public ::testing::Test {
 protected:
  // Over servers.
  std::optional<wire::Call> Ask(Clock clock, bool all_arrived = true) {
    std::optional<wire::Call> call = leases_.Ask({.clock = clock,
                                                  .end = kEnd,
                                                  .by_all_reduce = false,
                                                  .all_arrived = all_arrived});
    if (call.has_value()) leases_.OnAsked(++last_call_);
    return call;
  }
  void Answer(const wire::Leased& leased) {
    wire::CallReply reply;
    reply.set_code(wire::OK);
    *reply.mutable_leased() = leased;
    ASSERT_TRUE(leases_.Awaits(last_call_));
    ASSERT_TRUE(leases_.OnAnswer(reply).ok());
    EXPECT_FALSE(leases_.Awaits(last_call_));
  }
  void Give() {
    wire::Leased leased;
    leased.mutable_examples()->set_end(4);
    Answer(leased);
  }
  void SkipTo(Clock clock) {
    wire::Leased leased;
    leased.set_skip_to(clock);
    Answer(leased);
  }

  ExampleLeases leases_{/*elastic=*/true};
  uint64_t last_call_ = 0;
};

TEST_F(ExampleLeasesTest, WithoutElasticSamplingNothingIsAsked) {
  ExampleLeases all(/*elastic=*/false);
  EXPECT_TRUE(all.HasForStep());
  EXPECT_FALSE(all.Ask({.clock = 0,
                        .end = kEnd,
                        .by_all_reduce = false,
                        .all_arrived = true})
                   .has_value());
  EXPECT_FALSE(all.examples().has_value());
}

TEST_F(ExampleLeasesTest, OneQuestionAtATimeUntilThereAreExamples) {
  EXPECT_FALSE(leases_.HasForStep());
  ASSERT_TRUE(Ask(0).has_value());
  EXPECT_FALSE(Ask(0).has_value());
  Give();
  EXPECT_TRUE(leases_.HasForStep());
  EXPECT_FALSE(Ask(0).has_value());
  leases_.OnStep(/*by_all_reduce=*/false);
  EXPECT_TRUE(Ask(1).has_value());
}

TEST_F(ExampleLeasesTest, NothingIsAskedAtTheEnd) {
  EXPECT_FALSE(Ask(kEnd).has_value());
}

TEST_F(ExampleLeasesTest, OverServersARangeIsDoneWhenItsGradientsHaveArrived) {
  ASSERT_TRUE(Ask(0).has_value());
  Give();
  leases_.OnStep(/*by_all_reduce=*/false);
  std::optional<wire::Call> call = Ask(1, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->lease().received(), 1);
  EXPECT_EQ(call->lease().done(), 0);
  Give();
  // The parameters have the gradients of the step before.
  leases_.OnParameters(/*with_last=*/true);
  leases_.OnStep(/*by_all_reduce=*/false);
  call = Ask(2, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->lease().received(), 2);
  EXPECT_EQ(call->lease().done(), 1);
}

TEST_F(ExampleLeasesTest, ByAllReduceTheStepBeforeIsDone) {
  const ExampleLeases::Place place = {
      .clock = 0, .end = kEnd, .by_all_reduce = true, .all_arrived = false};
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(leases_.Ask(place).has_value());
    leases_.OnAsked(++last_call_);
    Give();
    leases_.OnStep(/*by_all_reduce=*/true);
  }
  const std::optional<wire::Call> call = leases_.Ask(place);
  ASSERT_TRUE(call.has_value());
  EXPECT_TRUE(call->lease().reduced());
  EXPECT_EQ(call->lease().received(), 2);
  EXPECT_EQ(call->lease().done(), 1);
}

TEST_F(ExampleLeasesTest, AStepThatOthersHaveIsDone) {
  ASSERT_TRUE(Ask(0).has_value());
  Give();
  leases_.OnStepWithOthers();
  EXPECT_FALSE(leases_.HasForStep());
  const std::optional<wire::Call> call = Ask(1, /*all_arrived=*/false);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->lease().done(), 1);
}

TEST_F(ExampleLeasesTest, NoneNowIsAskedAgainWhenTheLastGradientsHaveArrived) {
  ASSERT_TRUE(Ask(0).has_value());
  Answer({});
  EXPECT_FALSE(Ask(0, /*all_arrived=*/false).has_value());
  EXPECT_TRUE(Ask(0).has_value());
}

TEST_F(ExampleLeasesTest, ASkipIsTakenOnceAndOnlyForward) {
  ASSERT_TRUE(Ask(2).has_value());
  SkipTo(5);
  EXPECT_TRUE(leases_.HasSkip(2));
  EXPECT_FALSE(Ask(2).has_value()) << "there are none before clock 5";
  EXPECT_EQ(leases_.TakeSkip(2), 5);
  EXPECT_EQ(leases_.TakeSkip(2), std::nullopt);
  ASSERT_TRUE(Ask(5).has_value());
  SkipTo(6);
  EXPECT_EQ(leases_.TakeSkip(6), std::nullopt);
}

TEST_F(ExampleLeasesTest, ALaterClockIsToldOnceToThoseWhoFindNone) {
  ASSERT_TRUE(Ask(2).has_value());
  EXPECT_FALSE(leases_.TellClock(3).has_value()) << "it has no examples";
  Give();
  EXPECT_FALSE(leases_.TellClock(2).has_value()) << "it asked at this clock";
  const std::optional<wire::Call> call = leases_.TellClock(3);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->has_examples().clock(), 3);
  EXPECT_FALSE(leases_.TellClock(3).has_value());
}

TEST_F(ExampleLeasesTest, ARefusalIsAnErrorWithTheReason) {
  ASSERT_TRUE(Ask(0).has_value());
  wire::CallReply reply;
  reply.set_code(wire::REJECTED);
  reply.set_error("no such epoch");
  const absl::Status status = leases_.OnAnswer(reply);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_FALSE(leases_.Awaits(last_call_));
}

TEST_F(ExampleLeasesTest, AtTheEndTheOpenCallIsGivenBackOnce) {
  ASSERT_TRUE(Ask(0).has_value());
  EXPECT_EQ(leases_.Close(), last_call_);
  EXPECT_EQ(leases_.Close(), 0u);
  EXPECT_FALSE(leases_.Awaits(0)) << "no call has the number 0";
}

}  // namespace slackline::example_leases_test
