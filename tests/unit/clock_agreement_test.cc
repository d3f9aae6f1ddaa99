// Goal: the workers agree on a clock that none of them has passed, and nobody
// waits for what a worker that is gone, or another agreement, has promised.
// Method: promises of a few workers, by hand.
#include "server/coordinator/clock_agreement.h"

#include <functional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::clock_agreement_test {

using ::testing::ElementsAre;

class ClockAgreementTest : public testing::Test {
 protected:
  ClockAgreementTest() : editor_(FirstView("bsp")) {}

  static wire::View FirstView(absl::string_view mode) {
    wire::View view;
    view.set_number(1);
    view.set_state(wire::RUNNING);
    view.set_steps_total(100);
    *view.add_phase()->mutable_mode() = ModeOf(mode);
    wire::ServerMember& server = *view.add_server();
    server.set_incarnation(1);
    server.add_thread();
    view.add_owner_server(0);
    view.add_owner_thread(0);
    return view;
  }

  void Open() {
    ClockAgreement::Wish wish;
    wish.to.mutable_ending();
    agreement_.Want(std::move(wish));
    EXPECT_TRUE(agreement_.Open(&editor_));
    editor_.Commit();
  }
  void Promise(Incarnation incarnation, Clock clock, uint64_t change = 0) {
    wire::StepLimit limit;
    limit.set_change(change == 0 ? editor_.view().change().id() : change);
    limit.set_clock(clock);
    agreement_.OnStepLimit(incarnation, limit, editor_.view());
  }
  ClockAgreement::Limits Limits() const {
    return agreement_.LimitsOf(workers_, editor_);
  }

  ViewEditor editor_;
  std::vector<ClockAgreement::Worker> workers_ = {
      {.rank = 0, .incarnation = 10}, {.rank = 1, .incarnation = 11}};
  ClockAgreement agreement_;
};

TEST_F(ClockAgreementTest, TheLargestPromiseIsOneThatNobodyHasPassed) {
  Open();
  Promise(10, 7);
  EXPECT_FALSE(Limits().all);
  Promise(11, 9);
  EXPECT_TRUE(Limits().all);
  EXPECT_EQ(Limits().largest, 9);
  EXPECT_THAT(Limits().of, ElementsAre(7, 9));
}

TEST_F(ClockAgreementTest, APromiseThatComesAgainOrLateTakesNothingBack) {
  Open();
  Promise(10, 7);
  Promise(10, 5);
  Promise(11, 6);
  EXPECT_THAT(Limits().of, ElementsAre(7, 6));
}

TEST_F(ClockAgreementTest, WhatIsWantedWaitsForShardsThatMove) {
  wire::View view = editor_.view();
  view.add_move()->set_shard(0);
  editor_ = ViewEditor(view);
  ClockAgreement::Wish wish;
  wish.to.mutable_cutting();
  agreement_.Want(std::move(wish));
  EXPECT_FALSE(agreement_.Open(&editor_));
  view.clear_move();
  editor_ = ViewEditor(view);
  EXPECT_TRUE(agreement_.Open(&editor_));
  EXPECT_FALSE(agreement_.Open(&editor_)) << "the view has it";
}

TEST_F(ClockAgreementTest, PromisesToAnotherAgreementDoNotCount) {
  Open();
  const uint64_t first = editor_.view().change().id();
  Promise(10, 7);
  agreement_.Close(&editor_);
  editor_.Commit();
  EXPECT_FALSE(agreement_.wish().has_value());
  Open();
  ASSERT_NE(editor_.view().change().id(), first);
  Promise(10, 70, first);
  Promise(11, 20);
  EXPECT_FALSE(Limits().all);
  EXPECT_EQ(Limits().largest, 20);
}

TEST_F(ClockAgreementTest, WhoIsDoneIsAtTheEndAndPromisesNothing) {
  Open();
  workers_[0].done = true;
  Promise(11, 20);
  EXPECT_TRUE(Limits().all);
  EXPECT_EQ(Limits().largest, 100);
}

TEST_F(ClockAgreementTest, APromiseOfWhoIsGoneDoesNotHoldForItsNextLife) {
  Open();
  Promise(10, 50);
  Promise(11, 20);
  agreement_.OnGone(10, 3);
  agreement_.OnServer(0, /*seen_view=*/3, 5);
  workers_[0].incarnation = 12;
  EXPECT_FALSE(Limits().all);
  Promise(12, 21);
  EXPECT_TRUE(Limits().all);
  EXPECT_EQ(Limits().largest, 21);
}

// In BACKUP shards are where the fastest were, and in BSP the gradient of who
// was one step ahead waits there for those of the others.
TEST_F(ClockAgreementTest, WhereTheGoneHaveGotToIsWaitedForIfGradientsWait) {
  for (const char* const mode : {"backup:1", "bsp"}) {
    SCOPED_TRACE(mode);
    agreement_ = ClockAgreement();
    editor_ = ViewEditor(FirstView(mode));
    workers_ = {{.rank = 0, .incarnation = 10}, {.rank = 1, .incarnation = 11}};
    Open();
    agreement_.OnServer(0, /*seen_view=*/2, 30);
    agreement_.OnGone(10, 3);
    workers_.erase(workers_.begin());
    Promise(11, 20);
    EXPECT_FALSE(Limits().all) << "shards have not seen that it is gone";
    agreement_.OnServer(0, /*seen_view=*/3, 31);
    EXPECT_TRUE(Limits().all);
    EXPECT_EQ(Limits().largest, 31);
  }
}

// A server that gets a shard has said before how far its other shards are.
TEST_F(ClockAgreementTest, WhoHasGotAShardSaysWhereItIsOnceItHasSeenThat) {
  const auto moves = [](ViewEditor* editor) {
    editor->OrderMove(0, {.server = 1, .thread = 0});
    editor->Commit();
    editor->FinishMove(0);
  };
  const auto is_promoted = [](ViewEditor* editor) { editor->Promote(0, 1); };
  const auto inherits = [](ViewEditor* editor) {
    editor->RemoveServer(0, {{0, 1}});
  };
  for (const auto& gets_it : std::vector<std::function<void(ViewEditor*)>>{
           moves, is_promoted, inherits}) {
    wire::View view = FirstView("bsp");
    wire::ServerMember& server = *view.add_server();
    server.set_index(1);
    server.set_incarnation(2);
    server.add_thread();
    view.add_owner_server(1);
    view.add_owner_thread(0);
    wire::Follower& follower = *view.add_follower();
    follower.set_server(1);
    follower.set_in_sync(true);
    editor_ = ViewEditor(view);
    agreement_ = ClockAgreement();
    agreement_.OnGone(12, 2);
    editor_.RemoveWorker(2);
    editor_.Regroup();
    editor_.Commit();
    agreement_.OnServer(0, /*seen_view=*/2, 30);
    agreement_.OnServer(1, /*seen_view=*/2, 12);
    gets_it(&editor_);
    editor_.Commit();
    Open();
    Promise(10, 20);
    Promise(11, 20);
    EXPECT_FALSE(Limits().all) << "where shard 0 is nobody has said yet";
    agreement_.OnServer(1, editor_.owners_since() - 1, 12);
    EXPECT_FALSE(Limits().all);
    agreement_.OnServer(0, editor_.owners_since(), 12);
    agreement_.OnServer(1, editor_.owners_since(), 30);
    EXPECT_TRUE(Limits().all);
    EXPECT_EQ(Limits().largest, 30);
  }
}

TEST_F(ClockAgreementTest, WhereNoGradientWaitsNobodyHasToBeWhereTheGoneWere) {
  editor_ = ViewEditor(FirstView("asp"));
  Open();
  agreement_.OnGone(10, 3);
  workers_.erase(workers_.begin());
  Promise(11, 20);
  EXPECT_TRUE(Limits().all);
  EXPECT_EQ(Limits().largest, 20);
}

TEST_F(ClockAgreementTest, ItGoesOnWithAnotherCoordinator) {
  Open();
  Promise(10, 7);
  coordinator::ModesState state;
  agreement_.Keep(&state);
  agreement_ = ClockAgreement();
  agreement_.Load(state);
  EXPECT_TRUE(agreement_.wish()->to.has_ending());
  Promise(11, 9);
  EXPECT_THAT(Limits().of, ElementsAre(7, 9));
}

}  // namespace slackline::clock_agreement_test
