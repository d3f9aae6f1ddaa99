// Goal: what a worker does next, at every clock and with every view; and that
// what several workers decide apart fits together.
// Method: views by hand, one decision at a time.
#include "worker/core/phase_follower.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/modes.h"

namespace slackline::phase_follower_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Clock kSteps = 100;

std::string CallText(const wire::Call& call) {
  if (call.has_step_limit()) {
    return absl::StrCat("limit ", call.step_limit().clock(), " for ",
                        call.step_limit().change());
  }
  if (call.has_arrive()) return absl::StrCat("arrive ", call.arrive().clock());
  if (call.has_entered())
    return absl::StrCat("entered ", call.entered().from());
  if (call.has_regroup())
    return absl::StrCat("regroup ", call.regroup().group());
  return "?";
}

// "limit 9 for 5, step over servers", "wait for all workers to ...".
std::string Text(const PhaseFollower::Decision& decision) {
  using Do = PhaseFollower::Do;
  std::vector<std::string> parts;
  for (const wire::Call& call : decision.calls) parts.push_back(CallText(call));
  switch (decision.what) {
    case Do::kStep:
      parts.push_back(decision.step == StepKind::kOverServers
                          ? "step over servers"
                          : "step by all-reduce");
      break;
    case Do::kWait:
      parts.push_back(absl::StrCat("wait for ", decision.waiting_for));
      break;
    case Do::kTakeState:
      parts.push_back("take state");
      break;
    case Do::kConnect:
      parts.push_back("connect");
      break;
    case Do::kGiveState:
      parts.push_back("give state");
      break;
    case Do::kFinish:
      parts.push_back("finish");
      break;
  }
  if (decision.what != Do::kWait) {
    EXPECT_EQ(decision.waiting_for, "");
  }
  return absl::StrJoin(parts, ", ");
}

class PhaseFollowerTest : public ::testing::Test {
 protected:
  // Workers 1, 4 and 6, six shards; the group is that of view 7.
  PhaseFollowerTest() {
    view_.set_number(7);
    view_.set_state(wire::RUNNING);
    view_.set_group(7);
    view_.set_steps_total(kSteps);
    view_.add_server()->add_thread();
    wire::Table& table = *view_.add_table();
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.set_name("weight");
    table.add_shape(kShards);
    table.set_shard_elements(1);
    for (int shard = 0; shard < kShards; ++shard) {
      view_.add_owner_server(0);
      view_.add_owner_thread(0);
    }
    for (const int rank : {1, 4, 6}) AddWorker(rank);
  }
  static constexpr int kShards = 6;

  void AddWorker(int rank) {
    wire::WorkerMember& worker = *view_.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(10 + rank);
    // Views list them in this order.
    std::sort(
        view_.mutable_worker()->pointer_begin(),
        view_.mutable_worker()->pointer_end(),
        [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  }
  void RemoveWorker(int rank) {
    for (int i = 0; i < view_.worker_size(); ++i) {
      if (view_.worker(i).rank() != rank) continue;
      view_.mutable_worker()->DeleteSubrange(i, 1);
      return;
    }
  }
  void AddPhase(absl::string_view mode, Clock from) {
    wire::Phase& phase = *view_.add_phase();
    *phase.mutable_mode() = ModeOf(mode);
    phase.set_from(from);
  }
  void Change(uint64_t id, absl::string_view mode) {
    view_.mutable_change()->set_id(id);
    *view_.mutable_change()->mutable_mode() = ModeOf(mode);
  }
  std::shared_ptr<const View> Seen() const { return *View::Create(view_); }

  PhaseFollower Follower(bool has_model = false, int rank = 4) const {
    return PhaseFollower({.rank = Rank{rank}}, has_model);
  }
  // One that is connected as the view's group.
  PhaseFollower Connected() const {
    PhaseFollower follower = Follower(/*has_model=*/true);
    follower.Connected(view_.group());
    return follower;
  }
  std::vector<std::string> Promised(PhaseFollower& follower) const {
    std::vector<std::string> calls;
    for (const wire::Call& call : follower.Promise(*Seen()))
      calls.push_back(CallText(call));
    return calls;
  }
  std::string Next(PhaseFollower& follower, Clock clock) const {
    return Text(follower.Next(*Seen(), clock));
  }
  // By all-reduce from 0 on, then by SSP from 20 on.
  void UseAllReduceThenSsp() {
    AddPhase("allreduce", 0);
    AddPhase("ssp:3", 20);
  }

  wire::View view_;
};

const char kAllArrive[] = "wait for all workers to complete step ";
const char kNewGroup[] = "wait for the coordinator to name a new group";

// ---- Over servers -----------------------------------------------------------

TEST_F(PhaseFollowerTest, StepsOverServersUntilTheJobEnds) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  EXPECT_EQ(Next(follower, 0), "step over servers");
  EXPECT_EQ(Next(follower, kSteps - 1), "step over servers");
  EXPECT_EQ(Next(follower, kSteps), "finish");
}

TEST_F(PhaseFollowerTest, TellsOnceThatAPhaseIsEntered) {
  AddPhase("bsp", 0);
  AddPhase("asp", 5);
  AddPhase("ssp:2", 8);
  PhaseFollower follower = Follower();
  EXPECT_EQ(Next(follower, 4), "step over servers");
  EXPECT_EQ(Next(follower, 5), "entered 5, step over servers");
  EXPECT_EQ(Next(follower, 6), "step over servers");
  EXPECT_EQ(Next(follower, 8), "entered 8, step over servers");
}

TEST_F(PhaseFollowerTest, ForACheckpointItWaitsAtItsLimitAndGoesOn) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  view_.mutable_change()->set_id(9);
  view_.mutable_change()->mutable_cutting();
  EXPECT_EQ(Next(follower, 3), "limit 7 for 9, step over servers");
  EXPECT_EQ(Next(follower, 6), "step over servers");
  EXPECT_EQ(Next(follower, 7), "wait for the clock of the checkpoint");
  view_.clear_change();
  view_.mutable_cut()->set_number(1);
  view_.mutable_cut()->set_clock(9);
  EXPECT_EQ(Next(follower, 7), "step over servers");
}

// Others may have to end steps before it gets its first parameters.
TEST_F(PhaseFollowerTest, WhoKnowsWhereItBeginsPromisesBeforeItsFirstStep) {
  AddPhase("bsp", 0);
  view_.mutable_change()->set_id(9);
  view_.mutable_change()->mutable_cutting();
  PhaseFollower knows({.rank = Rank{4}, .begins_at = 7}, false);
  EXPECT_THAT(Promised(knows), ElementsAre("limit 11 for 9"));
  EXPECT_THAT(Promised(knows), IsEmpty()) << "once";
  EXPECT_EQ(Next(knows, 7), "step over servers");
  PhaseFollower joins = Follower();
  EXPECT_THAT(Promised(joins), IsEmpty());
}

TEST_F(PhaseFollowerTest, WhoJoinsInALaterPhaseEntersItAtOnce) {
  AddPhase("bsp", 0);
  AddPhase("asp", 5);
  PhaseFollower follower = Follower();
  EXPECT_EQ(Next(follower, 40), "entered 5, step over servers");
}

TEST_F(PhaseFollowerTest, TakesTheStateWhereAllReduceBegins) {
  AddPhase("bsp", 0);
  AddPhase("allreduce", 5);
  PhaseFollower follower = Follower();
  EXPECT_EQ(Next(follower, 4), "step over servers");
  EXPECT_EQ(Next(follower, 5), "take state");
  EXPECT_EQ(Next(follower, 5), "take state") << "until it has it";
  EXPECT_FALSE(follower.has_model());
  follower.TookState();
  EXPECT_TRUE(follower.has_model());
  EXPECT_EQ(Next(follower, 5), "connect");
  follower.Connected(7);
  EXPECT_EQ(Next(follower, 5), "entered 5, step by all-reduce");
  EXPECT_EQ(Next(follower, 6), "step by all-reduce");
}

TEST_F(PhaseFollowerTest, AChangeThatIsDueLaterIsNotTakenUpWhilePullingAhead) {
  AddPhase("asp", 0);
  AddPhase("allreduce", 5);
  PhaseFollower follower = Follower();
  // At clock 4 the parameters of 5 would be asked for ahead.
  EXPECT_EQ(Next(follower, 5), "take state");
  EXPECT_EQ(Next(follower, 4), "step over servers");
  EXPECT_EQ(Next(follower, 5), "take state");
}

// ---- Changes ----------------------------------------------------------------

TEST_F(PhaseFollowerTest, PromisesAChangeOnceAndWaitsAtTheLimit) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  Change(8, "ssp:3");
  EXPECT_EQ(Next(follower, 10), "limit 14 for 8, step over servers");
  for (const Clock clock : {10, 11, 12, 13})
    EXPECT_EQ(Next(follower, clock), "step over servers");
  EXPECT_EQ(Next(follower, 14), "wait for the clock from which ssp:3 holds");
  EXPECT_EQ(Next(follower, 14), "wait for the clock from which ssp:3 holds");
}

TEST_F(PhaseFollowerTest, GoesOnBeyondItsLimitUpToTheClockOfTheChange) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  Change(8, "asp");
  Next(follower, 10);
  view_.clear_change();
  AddPhase("asp", 17);  // Somebody else was further.
  for (const Clock clock : {14, 15, 16})
    EXPECT_EQ(Next(follower, clock), "step over servers");
  EXPECT_EQ(Next(follower, 17), "entered 17, step over servers");
}

TEST_F(PhaseFollowerTest, GoesOnWhenAChangeIsDropped) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  Change(8, "asp");
  Next(follower, 10);
  view_.clear_change();
  EXPECT_EQ(Next(follower, 14), "step over servers");
  EXPECT_EQ(Next(follower, 30), "step over servers");
}

TEST_F(PhaseFollowerTest, PromisesTheNextChangeAnew) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  Change(8, "asp");
  Next(follower, 10);
  Change(9, "ssp:1");
  EXPECT_EQ(Next(follower, 12), "limit 16 for 9, step over servers");
  EXPECT_EQ(Next(follower, 15), "step over servers");
  EXPECT_EQ(Next(follower, 16), "wait for the clock from which ssp:1 holds");
}

TEST_F(PhaseFollowerTest, WhoIsHeldUpInAStepPromisesAtOnce) {
  AddPhase("bsp", 0);
  PhaseFollower follower = Follower();
  EXPECT_THAT(Promised(follower), IsEmpty()) << "it has no clock yet";
  Next(follower, 10);
  EXPECT_THAT(Promised(follower), IsEmpty()) << "nothing changes";
  Change(8, "asp");
  EXPECT_THAT(Promised(follower), ElementsAre("limit 14 for 8"));
  EXPECT_THAT(Promised(follower), IsEmpty());
  EXPECT_EQ(Next(follower, 11), "step over servers") << "promised already";
  EXPECT_EQ(Next(follower, 14), "wait for the clock from which asp holds");
}

TEST_F(PhaseFollowerTest,
       WhoDoesNotKnowItsClockPromisesNothingWhileConnecting) {
  AddPhase("allreduce", 0);
  PhaseFollower follower = Follower(/*has_model=*/true);
  Next(follower, -1);
  Change(8, "bsp");
  EXPECT_THAT(Promised(follower), IsEmpty());
}

TEST_F(PhaseFollowerTest, TheEndOfTheJobIsTheLastLimit) {
  AddPhase("bsp", 0);
  Change(8, "asp");
  PhaseFollower near_the_end = Follower();
  EXPECT_EQ(Next(near_the_end, kSteps - 2),
            absl::StrCat("limit ", kSteps, " for 8, step over servers"));
  EXPECT_EQ(Next(near_the_end, kSteps), "finish") << "it does not wait there";
  PhaseFollower at_the_end = Follower();
  EXPECT_EQ(Next(at_the_end, kSteps),
            absl::StrCat("limit ", kSteps, " for 8, finish"));
}

TEST_F(PhaseFollowerTest, PromisesWhileItStepsByAllReduce) {
  AddPhase("allreduce", 0);
  PhaseFollower follower = Connected();
  Change(8, "bsp");
  EXPECT_EQ(Next(follower, 10), "limit 14 for 8, step by all-reduce");
  EXPECT_EQ(Next(follower, 14), "wait for the clock from which bsp holds");
  view_.clear_change();
  AddPhase("bsp", 15);
  EXPECT_EQ(Next(follower, 14), "step by all-reduce");
  EXPECT_EQ(Next(follower, 15), absl::StrCat("arrive 15, ", kAllArrive, 15));
}

TEST_F(PhaseFollowerTest, WaitingAtTheLimitItStillConnectsWithANewGroup) {
  AddPhase("allreduce", 0);
  PhaseFollower follower = Connected();
  Change(8, "bsp");
  Next(follower, 10);
  view_.set_group(9);
  EXPECT_EQ(Next(follower, 14), "connect");
  follower.Connected(9);
  EXPECT_EQ(Next(follower, 14), "wait for the clock from which bsp holds");
}

// ---- The end of all-reduce --------------------------------------------------

TEST_F(PhaseFollowerTest, ArrivesOnceWaitsForAllAndGivesTheState) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Connected();
  EXPECT_EQ(Next(follower, 19), "step by all-reduce");
  EXPECT_EQ(Next(follower, 20), absl::StrCat("arrive 20, ", kAllArrive, 20));
  EXPECT_EQ(Next(follower, 20), absl::StrCat(kAllArrive, 20));
  view_.set_arrived(20);
  EXPECT_EQ(Next(follower, 20), "give state");
  follower.GaveState();
  EXPECT_FALSE(follower.has_model());
  EXPECT_EQ(Next(follower, 20), "entered 20, step over servers");
  EXPECT_EQ(Next(follower, kSteps), "finish");
}

TEST_F(PhaseFollowerTest, WhatAllArrivedAtEarlierDoesNotCount) {
  AddPhase("allreduce", 0);
  AddPhase("bsp", 20);
  AddPhase("allreduce", 30);
  AddPhase("bsp", 40);
  view_.set_arrived(20);
  PhaseFollower follower = Connected();
  EXPECT_EQ(Next(follower, 40), absl::StrCat("arrive 40, ", kAllArrive, 40));
}

TEST_F(PhaseFollowerTest, AllReduceMayComeTwice) {
  AddPhase("allreduce", 0);
  AddPhase("bsp", 20);
  AddPhase("allreduce", 30);
  AddPhase("bsp", 40);
  PhaseFollower follower = Connected();
  Next(follower, 20);
  view_.set_arrived(20);
  EXPECT_EQ(Next(follower, 20), "give state");
  follower.Share(*Seen());
  follower.GaveState();
  EXPECT_EQ(Next(follower, 30), "take state");
  follower.TookState();
  EXPECT_EQ(Next(follower, 30), "connect") << "the old connections are gone";
  follower.Connected(7);
  EXPECT_EQ(Next(follower, 30), "entered 30, step by all-reduce");
  EXPECT_EQ(Next(follower, 40), absl::StrCat("arrive 40, ", kAllArrive, 40));
  view_.set_arrived(40);
  EXPECT_EQ(Next(follower, 40), "give state");
  EXPECT_THAT(follower.Share(*Seen()), ElementsAre(ShardId{1}, ShardId{4}));
}

TEST_F(PhaseFollowerTest, TheEndOfTheJobIsReachedTogether) {
  AddPhase("allreduce", 0);
  PhaseFollower follower = Connected();
  EXPECT_EQ(Next(follower, kSteps - 1), "step by all-reduce");
  EXPECT_EQ(Next(follower, kSteps),
            absl::StrCat("arrive ", kSteps, ", ", kAllArrive, kSteps));
  view_.set_group(9);
  EXPECT_EQ(Next(follower, kSteps), "connect") << "others may need its state";
  follower.Connected(9);
  EXPECT_EQ(Next(follower, kSteps), absl::StrCat(kAllArrive, kSteps));
  view_.set_arrived(kSteps);
  EXPECT_EQ(Next(follower, kSteps), "finish");
}

TEST_F(PhaseFollowerTest, AtTheEndOfTheJobNothingIsTaken) {
  AddPhase("bsp", 0);
  AddPhase("allreduce", kSteps);
  PhaseFollower follower = Follower();
  EXPECT_EQ(Next(follower, kSteps), "finish");
}

// ---- Groups -----------------------------------------------------------------

TEST_F(PhaseFollowerTest, ConnectsBeforeTheFirstStepAndWhenTheGroupChanges) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Follower(/*has_model=*/true);
  EXPECT_EQ(follower.group(), 0u);
  EXPECT_EQ(Next(follower, 0), "connect");
  follower.Connected(7);
  EXPECT_EQ(follower.group(), 7u);
  EXPECT_EQ(Next(follower, 0), "step by all-reduce");
  view_.set_group(9);
  EXPECT_EQ(Next(follower, 3), "connect");
  follower.Connected(9);
  EXPECT_EQ(Next(follower, 3), "step by all-reduce");
}

TEST_F(PhaseFollowerTest, AfterALostConnectionItWaitsForANewGroup) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Connected();
  EXPECT_EQ(CallText(follower.ConnectionLost(7)), "regroup 7");
  EXPECT_EQ(Next(follower, 3), kNewGroup);
  view_.set_group(9);
  EXPECT_EQ(Next(follower, 3), "connect");
  EXPECT_EQ(CallText(follower.ConnectionLost(9)), "regroup 9")
      << "it did not come to stand";
  EXPECT_EQ(Next(follower, 3), kNewGroup);
}

TEST_F(PhaseFollowerTest, AGroupThatIsNewAlreadyIsConnectedAtOnce) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Connected();
  view_.set_group(9);
  follower.ConnectionLost(7);
  EXPECT_EQ(Next(follower, 3), "connect");
}

TEST_F(PhaseFollowerTest,
       AtTheEndOfAllReduceAGroupIsConnectedWithoutASecondCall) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Connected();
  Next(follower, 20);
  follower.ConnectionLost(7);
  EXPECT_EQ(Next(follower, 20), kNewGroup);
  view_.set_group(9);
  EXPECT_EQ(Next(follower, 20), "connect");
  follower.Connected(9);
  EXPECT_EQ(Next(follower, 20), absl::StrCat(kAllArrive, 20));
}

TEST_F(PhaseFollowerTest, OnceAllHaveArrivedNoConnectionIsNeeded) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Connected();
  Next(follower, 20);
  follower.ConnectionLost(7);
  view_.set_arrived(20);
  EXPECT_EQ(Next(follower, 20), "give state");
  view_.set_group(9);
  EXPECT_EQ(Next(follower, 20), "give state");
}

TEST_F(PhaseFollowerTest, WhoIsBehindCannotGiveWhatAllHaveArrivedAt) {
  UseAllReduceThenSsp();
  view_.set_arrived(20);
  PhaseFollower follower = Connected();
  EXPECT_EQ(Next(follower, 19), "step by all-reduce");
}

// ---- Who joins by all-reduce ------------------------------------------------

TEST_F(PhaseFollowerTest, WhoDoesNotKnowItsClockConnectsAndPromisesNothing) {
  UseAllReduceThenSsp();
  Change(8, "bsp");
  PhaseFollower follower = Follower(/*has_model=*/true);
  EXPECT_EQ(Next(follower, -1), "connect");
  follower.ConnectionLost(7);
  EXPECT_EQ(Next(follower, -1), kNewGroup);
  view_.set_group(9);
  EXPECT_EQ(Next(follower, -1), "connect");
  follower.Connected(9);
  // From the others it has learned the clock.
  EXPECT_EQ(Next(follower, 12), "limit 16 for 8, step by all-reduce");
}

TEST_F(PhaseFollowerTest, WhoJoinsAtTheEndOfAllReduceArrivesAfterConnecting) {
  AddPhase("bsp", 0);
  AddPhase("allreduce", 5);
  AddPhase("asp", 20);
  PhaseFollower follower = Follower(/*has_model=*/true);
  EXPECT_EQ(Next(follower, -1), "connect");
  follower.Connected(7);
  EXPECT_EQ(Next(follower, 20), absl::StrCat("arrive 20, ", kAllArrive, 20));
}

TEST_F(PhaseFollowerTest, JoinsWorkersWithModelWhileTheOthersStepSo) {
  AddPhase("bsp", 0);
  EXPECT_FALSE(JoinsWorkersWithModel(*Seen()));
  AddPhase("allreduce", 5);
  EXPECT_FALSE(JoinsWorkersWithModel(*Seen())) << "not all have begun it";
  view_.set_entered(1);
  EXPECT_TRUE(JoinsWorkersWithModel(*Seen()));
  AddPhase("asp", 20);
  EXPECT_TRUE(JoinsWorkersWithModel(*Seen())) << "not all have left it";
  view_.set_arrived(20);
  EXPECT_FALSE(JoinsWorkersWithModel(*Seen()));
  view_.set_entered(2);
  EXPECT_FALSE(JoinsWorkersWithModel(*Seen()));
}

TEST_F(PhaseFollowerTest, JoinsASecondAllReduceWhateverAllArrivedAtBefore) {
  AddPhase("allreduce", 0);
  AddPhase("bsp", 20);
  AddPhase("allreduce", 30);
  AddPhase("bsp", 40);
  view_.set_arrived(20);
  view_.set_entered(2);
  EXPECT_TRUE(JoinsWorkersWithModel(*Seen()));
}

// ---- Shares -----------------------------------------------------------------

std::vector<int> Numbers(const std::vector<ShardId>& shards) {
  std::vector<int> numbers;
  for (const ShardId shard : shards) numbers.push_back(static_cast<int>(shard));
  return numbers;
}

TEST_F(PhaseFollowerTest, TheWorkersShareEachShardOnce) {
  UseAllReduceThenSsp();
  for (int workers = 3; workers <= 8; ++workers) {
    std::vector<int> all;
    for (const wire::WorkerMember& worker : view_.worker()) {
      PhaseFollower follower = Follower(true, worker.rank());
      const std::vector<int> share = Numbers(follower.Share(*Seen()));
      all.insert(all.end(), share.begin(), share.end());
    }
    EXPECT_THAT(all, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5))
        << workers << " workers";
    AddWorker(10 + workers);
  }
}

TEST_F(PhaseFollowerTest, ASharedShardIsThatOfTheRankInOrder) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Follower(true, 4);
  EXPECT_THAT(Numbers(follower.Share(*Seen())), ElementsAre(1, 4));
  EXPECT_THAT(follower.Share(*Seen()), IsEmpty()) << "given";
}

TEST_F(PhaseFollowerTest, WhatADeadWorkerWasToGiveIsSharedByTheOthers) {
  UseAllReduceThenSsp();
  for (const int dead : {1, 4, 6}) {
    SCOPED_TRACE(absl::StrCat("rank ", dead, " dies"));
    const wire::View before = view_;
    std::vector<int> given_before[2];
    std::vector<int> given_after[2];
    std::vector<PhaseFollower> followers;
    for (const int rank : {1, 4, 6}) {
      if (rank != dead) followers.push_back(Follower(true, rank));
    }
    for (int i = 0; i < 2; ++i)
      given_before[i] = Numbers(followers[i].Share(*Seen()));
    RemoveWorker(dead);
    for (int i = 0; i < 2; ++i)
      given_after[i] = Numbers(followers[i].Share(*Seen()));
    std::vector<int> all;
    for (int i = 0; i < 2; ++i) {
      all.insert(all.end(), given_before[i].begin(), given_before[i].end());
      all.insert(all.end(), given_after[i].begin(), given_after[i].end());
      for (const int shard : given_after[i]) {
        EXPECT_EQ(
            std::count(given_before[i].begin(), given_before[i].end(), shard),
            0)
            << "twice by one worker";
      }
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5));
    view_ = before;
  }
}

TEST_F(PhaseFollowerTest, TheLastWorkerGivesWhatItHasNotYet) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Follower(true, 6);
  EXPECT_THAT(Numbers(follower.Share(*Seen())), ElementsAre(2, 5));
  RemoveWorker(1);
  EXPECT_THAT(Numbers(follower.Share(*Seen())), ElementsAre(1, 3));
  RemoveWorker(4);
  EXPECT_THAT(Numbers(follower.Share(*Seen())), ElementsAre(0, 4));
}

TEST_F(PhaseFollowerTest, WhoIsNoMemberGivesNothing) {
  UseAllReduceThenSsp();
  PhaseFollower follower = Follower(true, 3);
  EXPECT_THAT(follower.Share(*Seen()), IsEmpty());
}

}  // namespace slackline::phase_follower_test
