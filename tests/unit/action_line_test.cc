// What goes on in a worker while its program stands at a gather.
#include "worker/core/action_line.h"

#include <memory>
#include <variant>

#include "gtest/gtest.h"
#include "tests/unit/worker_core_fixture.h"

namespace slackline::action_line_test {
namespace {

class ActionLineTest : public WorkerCoreTest {
 protected:
  // What the core asked for since the last call.
  void AddNew() {
    for (WorkerCore::Action& action : actions_) line_.Add(std::move(action));
    actions_.clear();
  }
  template <typename Action>
  void TakeA() {
    ASSERT_FALSE(line_.empty());
    ASSERT_TRUE(std::holds_alternative<Action>(*line_.Take()));
  }
  // The worker is in its group, and is to do its first step.
  void JoinGroup() {
    Join("allreduce");
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
      core.OnCaughtUp(0, /*took_state=*/false, now, effects);
    });
    AddNew();
    TakeA<WorkerCore::Initialize>();
    TakeA<WorkerCore::Connect>();
    TakeA<WorkerCore::CatchUp>();
  }
  void ShowGroup(uint64_t group) {
    wire::View next = RunningView(2 + group, "allreduce");
    next.set_group(group);
    Show(next);
    AddNew();
  }
  void LoseGroup() {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnGroupLost(absl::UnavailableError("rank 1 is gone"), now, effects);
    });
    AddNew();
  }
  void ExpectNothingToDo() {
    const ActionLine::AtGather next = line_.NextAtGather(*core_);
    EXPECT_EQ(next.action, nullptr);
    EXPECT_TRUE(next.lost.ok()) << next.lost;
  }
  void ExpectToConnect() {
    const ActionLine::AtGather next = line_.NextAtGather(*core_);
    EXPECT_TRUE(next.lost.ok()) << next.lost;
    ASSERT_NE(next.action, nullptr);
    EXPECT_TRUE(std::holds_alternative<WorkerCore::Connect>(*next.action));
  }

  ActionLine line_;
};

TEST_F(ActionLineTest, AStepWaitsForTheProgram) {
  JoinGroup();
  ExpectNothingToDo();
  TakeA<WorkerCore::Reduce>();
  ExpectNothingToDo();
}

TEST_F(ActionLineTest, AStepWhoseGroupIsOverIsLostAndTheWorkerFollows) {
  for (const bool in_step : {false, true}) {
    SCOPED_TRACE(in_step);
    line_ = ActionLine();
    JoinGroup();
    if (in_step) TakeA<WorkerCore::Reduce>();
    ShowGroup(2);
    EXPECT_FALSE(line_.NextAtGather(*core_).lost.ok());
    LoseGroup();
    ExpectToConnect();
    ExpectNothingToDo();
  }
}

TEST_F(ActionLineTest, AStepThatIsFinishedIsNotLost) {
  JoinGroup();
  TakeA<WorkerCore::Reduce>();
  line_.OnStepOver();
  ShowGroup(2);
  ExpectNothingToDo();
}

TEST_F(ActionLineTest, AStepOverServersIsNoGroups) {
  Join("asp");
  AnswerPull();
  AddNew();
  ShowGroup(2);
  ExpectNothingToDo();
  TakeA<WorkerCore::Compute>();
  ExpectNothingToDo();
}

TEST_F(ActionLineTest, TheSumOfGradientsThatAreThereNeedsNoProgram) {
  JoinGroup();
  TakeA<WorkerCore::Reduce>();
  line_.OnStepOver();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnReducing(now);
  });
  LoseGroup();
  ShowGroup(2);
  ExpectToConnect();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConnected(now, effects);
    core.OnCaughtUp(0, /*took_state=*/false, now, effects);
  });
  AddNew();
  TakeA<WorkerCore::CatchUp>();
  const ActionLine::AtGather next = line_.NextAtGather(*core_);
  ASSERT_NE(next.action, nullptr);
  EXPECT_TRUE(std::get<WorkerCore::Reduce>(*next.action).again);
}

// The others may have lost the sum that this worker has: they connect anew with
// it before they come to the gather after that step.
TEST_F(ActionLineTest, AnEvaluationThatIsOwedHoldsUpNobody) {
  options_.evaluate_every = 1;
  JoinGroup();
  TakeA<WorkerCore::Reduce>();
  line_.OnStepOver();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnReducing(now);
    core.OnReduced({.loss = 1, .nonfinite = false, .culprits = {}}, now,
                   effects);
  });
  AddNew();
  ExpectNothingToDo();  // The program evaluates, and does its next step.
  ShowGroup(2);
  const ActionLine::AtGather next = line_.NextAtGather(*core_);
  ASSERT_NE(next.action, nullptr);
  EXPECT_TRUE(next.lost.ok()) << next.lost;
  EXPECT_EQ(std::get<WorkerCore::Evaluate>(*next.action).clock, 1);
  EXPECT_FALSE(line_.NextAtGather(*core_).lost.ok());
  LoseGroup();
  ExpectToConnect();
  ExpectNothingToDo();
}

TEST_F(ActionLineTest, NothingGoesOnInAWorkerThatEnds) {
  JoinGroup();
  ShowGroup(2);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Fail(absl::CancelledError("the user wishes it"), now, effects);
  });
  ExpectNothingToDo();
}

TEST_F(ActionLineTest, WhatIsPutBackComesAgain) {
  JoinGroup();
  line_.PutBack(line_.Take());
  ExpectNothingToDo();
  TakeA<WorkerCore::Reduce>();
}

}  // namespace
}  // namespace slackline::action_line_test
