// Goal: what a worker does when something goes wrong or comes to its end: whom
// it believes, how long it waits, what it tries again, how it leaves, and what
// it says of itself meanwhile.
// Method: the coordinator and one shard thread are played by hand, on virtual
// time. What happens when everything goes well, and in every mode, is the
// simulation's (tests/sim), which drives the same core.
#include "worker/core/worker_core.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker_core_fixture.h"

namespace slackline::worker_core_test {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

// ---- Whom it believes -------------------------------------------------------

TEST_F(WorkerCoreTest, AJobThatHasFinishedEndsWellThoughAShardFencesFirst) {
  Join();
  AnswerPull();
  Compute(1);
  const size_t before = to_coordinator_.size();
  FencePush();
  EXPECT_FALSE(core_->ended()) << "the shard may know more than the worker";
  ASSERT_GT(to_coordinator_.size(), before) << "so it asks the coordinator";
  EXPECT_TRUE(to_coordinator_.back().header.has_heartbeat());
  wire::View finished = RunningView(3);
  finished.set_state(wire::FINISHED);
  Show(finished);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsOutOfRange(core_->ending())) << core_->ending();
}

TEST_F(WorkerCoreTest, WhoIsFencedByAShardAndHearsNothingJoinsAgain) {
  Join();
  AnswerPull();
  Compute(1);
  FencePush();
  Pass(2 * kLease);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsAborted(core_->ending())) << core_->ending();
}

TEST_F(WorkerCoreTest, AViewWithoutThisWorkerMeansThatItJoinsAgain) {
  Join();
  wire::View without = RunningView(3);
  without.mutable_worker()->DeleteSubrange(0, 1);
  Show(without);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsAborted(core_->ending())) << core_->ending();
}

// ---- Examples, with elastic sampling ----------------------------------------

class ElasticWorkerTest : public WorkerCoreTest {
 protected:
  ElasticWorkerTest() { options_.member.join.mutable_elastic()->set_total(1); }
  void Begin() {
    Join();
    wire::View view = RunningView(3);
    view.set_elastic(true);
    Show(view);
    AnswerPull();
  }
  std::vector<wire::Call> Asked() const {
    std::vector<wire::Call> leases;
    for (const wire::Call& call : Calls()) {
      if (call.has_next_examples() &&
          (leases.empty() || leases.back().call_id() != call.call_id())) {
        leases.push_back(call);
      }
    }
    return leases;
  }
  void AnswerNext(const std::function<void(wire::CallReply&)>& fill) {
    Message message;
    wire::CallReply& reply = *message.header.mutable_call_reply();
    reply.set_call_id(Asked().back().call_id());
    reply.set_code(wire::OK);
    fill(reply);
    FromCoordinator(message);
  }
  void GiveExamples(int64_t begin) {
    AnswerNext([&](wire::CallReply& reply) {
      reply.mutable_granted()->mutable_examples()->set_begin(begin);
      reply.mutable_granted()->mutable_examples()->set_end(begin + 4);
    });
  }
};

TEST_F(ElasticWorkerTest, NoStepBeginsWithoutExamples) {
  Begin();
  EXPECT_EQ(Count<WorkerCore::Compute>(), 0);
  ASSERT_THAT(Asked(), SizeIs(1));
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WAITING_FOR_WORKERS);
  EXPECT_THAT(Progress().what(), HasSubstr("examples"));
  GiveExamples(8);
  ASSERT_EQ(Count<WorkerCore::Compute>(), 1);
  EXPECT_EQ(Last<WorkerCore::Compute>().examples->begin, 8);
  // The next are asked for with the next parameters, not after them.
  Compute(1);
  ASSERT_THAT(Asked(), SizeIs(2));
  EXPECT_EQ(Asked()[1].next_examples().clock(), 1);
  EXPECT_EQ(Asked()[1].next_examples().received(), 1);
  EXPECT_EQ(Asked()[1].next_examples().done(), 0) << "the push is on its way";
}

TEST_F(ElasticWorkerTest, WhoWaitsSaysWhenItsLastPushHasArrived) {
  Begin();
  GiveExamples(0);
  Compute(1);
  ASSERT_THAT(Asked(), SizeIs(2));
  AnswerNext([](wire::CallReply& reply) { reply.mutable_granted(); });
  EXPECT_THAT(Asked(), SizeIs(2));
  AnswerPull();  // It has the worker's own push.
  ASSERT_THAT(Asked(), SizeIs(3));
  EXPECT_EQ(Asked()[2].next_examples().received(), 1);
  EXPECT_EQ(Asked()[2].next_examples().done(), 1);
  Pass(kWaitTimeout / 2);
  EXPECT_THAT(Asked(), SizeIs(3));
}

TEST_F(ElasticWorkerTest, ANewerViewIsNoProgressOfWhoHasTheLastExamples) {
  Begin();
  for (uint64_t number = 4; number < 8; ++number) {
    Pass(absl::Seconds(1));
    wire::View view = RunningView(number);
    view.set_elastic(true);
    Show(view);
  }
  EXPECT_EQ(Progress().for_ms(), 4000);
}

TEST_F(ElasticWorkerTest, WhoLeavesStepsOutSaysSoToTheShards) {
  Begin();
  AnswerNext(
      [](wire::CallReply& reply) { reply.mutable_granted()->set_skip_to(5); });
  EXPECT_EQ(core_->clock(), 5);
  EXPECT_EQ(core_->counts().left_out, 5);
  const auto advanced = std::find_if(
      to_shards_.begin(), to_shards_.end(), [](const auto& message) {
        return message.header.has_push_request() &&
               message.header.push_request().push(0).has_advance();
      });
  ASSERT_NE(advanced, to_shards_.end());
  EXPECT_EQ(advanced->header.push_request().push(0).clock(), 5);
  AnswerPull(5);
  ASSERT_THAT(Asked(), SizeIs(2));
  EXPECT_EQ(Asked()[1].next_examples().clock(), 5);
  EXPECT_EQ(Count<WorkerCore::Compute>(), 0);
}

TEST_F(ElasticWorkerTest, AtTheEndThatTheViewNamesNothingIsAskedFor) {
  Begin();
  GiveExamples(0);
  Compute(1);
  AnswerPull();
  AnswerPush(1);
  wire::View view = RunningView(4);
  view.set_elastic(true);
  view.set_end_clock(3);
  Show(view);
  // Before it, there may be examples: of a job that is ended early.
  EXPECT_EQ(core_->clock(), 1);
  const size_t leases = Asked().size();
  AnswerNext(
      [](wire::CallReply& reply) { reply.mutable_granted()->set_skip_to(3); });
  EXPECT_EQ(core_->clock(), 3);
  AnswerPull(3);
  EXPECT_THAT(Asked(), SizeIs(leases));
  EXPECT_TRUE(Calls().back().has_leave());
  EXPECT_TRUE(Calls().back().leave().failure().empty());
}

TEST_F(ElasticWorkerTest, ByAllReduceAModelIsEvaluatedWhenAnotherStepBegins) {
  options_.evaluate_every = 1;
  Join("allreduce");
  wire::View view = RunningView(3, "allreduce");
  view.set_elastic(true);
  Show(view);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
    core.OnConnected(now, effects);
    core.OnCaughtUp(0, /*took_state=*/false, now, effects);
  });
  GiveExamples(0);
  ASSERT_EQ(Count<WorkerCore::Reduce>(), 1);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnReducing(now);
    core.OnReduced({.loss = 1, .culprits = {}}, now, effects);
  });
  EXPECT_EQ(core_->clock(), 1);
  EXPECT_EQ(Count<WorkerCore::Evaluate>(), 0) << "it may be the trained model";
  GiveExamples(4);
  ASSERT_EQ(Count<WorkerCore::Evaluate>(), 1);
  EXPECT_EQ(Last<WorkerCore::Evaluate>().clock, 1);
  EXPECT_EQ(Count<WorkerCore::Reduce>(), 2);
}

TEST_F(ElasticWorkerTest, ACoordinatorThatRefusesEndsTheWorkerWithItsReason) {
  Begin();
  AnswerNext([](wire::CallReply& reply) {
    reply.set_code(wire::REJECTED);
    reply.set_error("no such thing");
  });
  EXPECT_THAT(std::string(core_->ending().message()),
              HasSubstr("no such thing"));
}

// ---- How long it waits ------------------------------------------------------

TEST_F(WorkerCoreTest, AWaitEndsWithTheNameOfWhatWasWaitedFor) {
  Join();
  AnswerPull();
  Compute(1);
  AnswerPush(1);
  Pass(kWaitTimeout - absl::Milliseconds(1));
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
  Pass(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(core_->ending())) << core_->ending();
  EXPECT_THAT(std::string(core_->ending().message()),
              HasSubstr("server 0 thread 0"));
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_EQ(Calls()[0].leave().failure(), core_->ending().message());
}

// Its peer is behind a wall: nothing comes of the first pull.
TEST_F(WorkerCoreTest, ForWhomItWaitsIsSaidAfterSomeLeasesAndThenMoreRarely) {
  coordinator_answers_ = true;
  Join();
  log_.clear();
  std::vector<int64_t> seconds;
  const absl::Time begin = now_;
  for (size_t said = 0; now_ < begin + absl::Seconds(55);) {
    Pass(absl::Milliseconds(500));
    if (log_.size() == said) continue;
    said = log_.size();
    seconds.push_back(absl::ToInt64Seconds(now_ - begin));
    EXPECT_THAT(
        log_.back(),
        AllOf(HasSubstr("clock 0: waiting for parameters: the pull of "),
              HasSubstr(" from server "),
              HasSubstr(", without progress for ")));
  }
  // Three leases of 2 s, and then twice as long each time, as often as it
  // looks.
  ASSERT_THAT(seconds, SizeIs(4));
  EXPECT_THAT(seconds[0], AllOf(Ge(6), Le(7)));
  EXPECT_THAT(seconds[1], AllOf(Ge(12), Le(14)));
  EXPECT_THAT(seconds[2], AllOf(Ge(24), Le(28)));
  EXPECT_THAT(seconds[3], AllOf(Ge(48), Le(55)));
}

TEST_F(WorkerCoreTest, WhoIsRemovedHearsWhyAtOnce) {
  Join();
  Message reply;
  wire::HeartbeatReply& fenced = *reply.header.mutable_heartbeat_reply();
  fenced.set_incarnation(kSelf);
  fenced.set_code(wire::FENCED);
  fenced.set_error("was removed, because it held up worker 1");
  FromCoordinator(reply);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsAborted(core_->ending()));
  EXPECT_THAT(warnings_,
              testing::ElementsAre("the coordinator gave this worker up: it "
                                   "was removed, because it held up worker 1"));
}

TEST_F(WorkerCoreTest, ANewerViewIsAReasonToWaitOn) {
  Join();
  AnswerPull();
  Compute(1);
  AnswerPush(1);
  Pass(kWaitTimeout - absl::Seconds(1));
  Show(RunningView(3));
  Pass(kWaitTimeout - absl::Seconds(1));
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
}

TEST_F(WorkerCoreTest, APhaseOfNoKnownModeIsTrainedOverServers) {
  Join();
  wire::View view = RunningView(3);
  view.add_phase()->set_from(1);  // Without a mode.
  Show(view);
  for (const Clock clock : {0, 1}) {
    AnswerPull();
    Compute(1);
    AnswerPush(static_cast<uint64_t>(clock) + 1);
  }
  EXPECT_EQ(Count<WorkerCore::Compute>(), 2);
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
}

TEST_F(WorkerCoreTest, ThatTheOneItWaitsForGoesOnIsAReasonToWaitOn) {
  Join("bsp");
  AnswerPull();
  Compute(1);
  AnswerPush(1);
  const auto wait = [&](Clock clock, absl::Duration time) {
    for (absl::Duration t; t < time; t += absl::Seconds(1)) {
      ParkPull(clock);
      Pass(absl::Seconds(1));
    }
  };
  // The other one is so slow that each of its steps takes most of the time-out.
  // Who waits says how long ago it went on: else the coordinator would take it
  // for one that stands still.
  wait(0, kWaitTimeout - absl::Seconds(20));
  wait(1, absl::Seconds(10));
  EXPECT_EQ(Progress().rank(), 1);
  EXPECT_LE(Progress().for_ms(), 11000);
  for (Clock clock = 2; clock < 5; ++clock) {
    wait(clock, kWaitTimeout - absl::Seconds(2));
    ASSERT_TRUE(core_->ending().ok()) << core_->ending();
  }
  wait(4, absl::Seconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(core_->ending())) << core_->ending();
}

TEST_F(WorkerCoreTest, ItsOwnWorkHasNoDeadline) {
  Join();
  AnswerPull();
  ASSERT_EQ(Count<WorkerCore::Compute>(), 1);
  Pass(10 * kWaitTimeout);
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
}

// ---- The end ----------------------------------------------------------------

TEST_F(WorkerCoreTest, AfterItsLastStepItLeavesWhenItsProgramAsksForMore) {
  asks_at_once_ = false;
  Join();
  AnswerPull();
  for (Clock clock = 0; clock < kSteps; ++clock) {
    Compute(/*loss=*/1);
    AnswerPush(static_cast<uint64_t>(clock) + 1);
    if (clock + 1 < kSteps) AnswerPull();
  }
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_TRUE(core_->has_trained());
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  Pass(10 * kWaitTimeout);
  // A change that is wanted meanwhile does not wait for the program.
  wire::View wanted = RunningView(3);
  wanted.mutable_change()->set_id(9);
  wanted.mutable_change()->mutable_cutting();
  Show(wanted);
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_EQ(Calls()[0].step_limit().clock(), kSteps);
  // Nor does the program miss the state.
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.AskState(StateParts::kAll, now, effects);
    core.SetNeed(WorkerCore::Need::kState, now);
  });
  AnswerWithState(7);
  ASSERT_NE(state_, nullptr);
  EXPECT_FALSE(Calls().back().has_leave());
  AskNext();
  EXPECT_TRUE(Calls().back().has_leave());
  EXPECT_TRUE(Calls().back().leave().failure().empty());
  EXPECT_FALSE(core_->has_trained());
}

TEST_F(WorkerCoreTest, WhoAsksBeforeItsLastGradientsHaveArrivedLeavesThen) {
  Join();
  AnswerPull();
  for (Clock clock = 0; clock < kSteps; ++clock) {
    Compute(/*loss=*/1);
    if (clock + 1 == kSteps) break;
    AnswerPush(static_cast<uint64_t>(clock) + 1);
    AnswerPull();
  }
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_FALSE(core_->has_trained());
  AnswerPush(kSteps);
  ASSERT_THAT(Calls(), Not(IsEmpty()));
  EXPECT_TRUE(Calls().back().has_leave());
}

TEST_F(WorkerCoreTest, TheChiefConcludesWhenAllAreDone) {
  TrainToTheFinalModel();
  ASSERT_EQ(Count<WorkerCore::Conclude>(), 1);
  run::Result result;
  result.set_steps(kSteps);
  result.set_model_sha256("abc");
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConcluded(result, now, effects);
  });
  EXPECT_EQ(Calls().back().leave().result().model_sha256(), "abc");
}

TEST_F(WorkerCoreTest, AModelThatCannotBeWrittenIsTriedAgainUntilItIs) {
  TrainToTheFinalModel();
  const auto fail = [](WorkerCore& core, absl::Time now,
                       WorkerCore::Effects* effects) {
    core.OnSaveFailed(absl::ResourceExhaustedError("no space left"), now,
                      effects);
  };
  Tell(fail);
  EXPECT_EQ(Count<WorkerCore::Save>(), 0);
  EXPECT_THAT(Progress().what(), HasSubstr("no space left"));
  Pass(options_.save_retry);
  EXPECT_EQ(Count<WorkerCore::Save>(), 1);
  Tell(fail);
  Pass(options_.save_retry);
  EXPECT_EQ(Count<WorkerCore::Save>(), 2);
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConcluded(run::Result(), now, effects);
  });
  EXPECT_TRUE(Calls().back().leave().has_result());
  EXPECT_EQ(core_->counts().saves_failed, 2);
}

TEST_F(WorkerCoreTest, TheJobFailsIfThereIsNoRoomForTheModelForTooLong) {
  TrainToTheFinalModel();
  const absl::Time first = now_;
  while (!Calls().back().has_stop()) {
    ASSERT_LT(now_ - first, 2 * kSaveTimeout);
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnSaveFailed(absl::ResourceExhaustedError("no space left"), now,
                        effects);
    });
    Pass(options_.save_retry);
  }
  EXPECT_GE(now_ - first, kSaveTimeout);
  EXPECT_THAT(Calls().back().stop().reason(), HasSubstr("no space left"));
  EXPECT_THAT(Calls().back().stop().reason(), HasSubstr("save_timeout_ms"));
  wire::View failed = RunningView(4);
  failed.set_state(wire::FAILED);
  failed.mutable_end()->set_reason(Calls().back().stop().reason());
  Show(failed);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsFailedPrecondition(core_->ending())) << core_->ending();
}

TEST_F(WorkerCoreTest, AnInterruptedWorkerSaysSoAndEnds) {
  Join();
  AnswerPull();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Fail(absl::CancelledError("interrupted"), now, effects);
  });
  EXPECT_TRUE(absl::IsCancelled(core_->ending()));
  EXPECT_FALSE(core_->ended()) << "the coordinator has to hear of it";
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_EQ(Calls()[0].leave().failure(), "interrupted");
  Message reply;
  reply.header.mutable_call_reply()->set_call_id(Calls()[0].call_id());
  reply.header.mutable_call_reply()->set_code(wire::OK);
  FromCoordinator(reply);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsCancelled(core_->ending()));
}

TEST_F(WorkerCoreTest, ASuspendedWorkerAsksForACheckpointAndGoesOn) {
  Join();
  AnswerPull();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Suspend("its time is over", now, effects);
  });
  EXPECT_TRUE(core_->ending().ok());
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_TRUE(Calls()[0].has_suspend());
  EXPECT_EQ(Calls()[0].suspend().reason(), "its time is over");
  wire::View last = RunningView(4);
  last.set_state(wire::FAILED);
  last.mutable_end()->set_cause(wire::JobEnd::SUSPENDED);
  Show(last);
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(IsSuspended(core_->ending())) << core_->ending();
}

TEST_F(WorkerCoreTest, ASuspendedWorkerThatHasNotJoinedEnds) {
  core_.emplace(options_);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Start(now, effects);
  });
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Suspend("its time is over", now, effects);
  });
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsCancelled(core_->ending()));
}

// It was a member until its lease ran out, so its machine goes with the same
// notice as that of any member.
TEST_F(WorkerCoreTest, ASuspendedWorkerThatJoinsAgainAsksWhenItHasJoined) {
  options_.joins_again = true;
  core_.emplace(options_);
  const auto suspend = [](WorkerCore& core, absl::Time now,
                          WorkerCore::Effects* effects) {
    core.Suspend("its time is over", now, effects);
  };
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Start(now, effects);
  });
  Tell(suspend);
  EXPECT_TRUE(core_->ending().ok());
  EXPECT_THAT(Calls(), IsEmpty());
  Admit();
  Show(RunningView(2));
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_TRUE(Calls()[0].has_suspend());
  EXPECT_EQ(Calls()[0].suspend().reason(), "its time is over");
  Pass(2 * WorkerCore::kSuspendJoinMax);
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
}

TEST_F(WorkerCoreTest, ASuspendedWorkerThatCannotJoinAgainEndsInTime) {
  options_.joins_again = true;
  core_.emplace(options_);
  coordinator_answers_ = false;
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Start(now, effects);
  });
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Suspend("its time is over", now, effects);
  });
  Pass(WorkerCore::kSuspendJoinMax - absl::Seconds(1));
  EXPECT_FALSE(core_->ended());
  Pass(absl::Seconds(1));
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsCancelled(core_->ending()));
}

TEST_F(WorkerCoreTest, WhoLeavesDoesNotWaitLongForACoordinatorThatIsSilent) {
  Join();
  coordinator_answers_ = false;
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Fail(absl::CancelledError("interrupted"), now, effects);
  });
  Pass(absl::Seconds(2));
  EXPECT_TRUE(core_->ended());
  EXPECT_TRUE(absl::IsCancelled(core_->ending()));
}

TEST_F(WorkerCoreTest, ItSaysOnceWhereItBegins) {
  Join();
  EXPECT_THAT(Places(), IsEmpty());
  AnswerPull();
  Compute(1);
  AnswerPull();
  Compute(1);
  EXPECT_THAT(Places(), testing::ElementsAre(1));
}

TEST_F(WorkerCoreTest, ItDoesNotGoOnBeforeItsProgramHasComeBack) {
  Join();
  uint64_t gather = 0;
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    wire::Call call;
    call.mutable_gather()->set_place(1);
    gather = core.Call(std::move(call), Payload(), now, effects);
  });
  AnswerPull();
  EXPECT_THAT(Places(), IsEmpty()) << "it would not be waited for any more";
  Message reply;
  reply.header.mutable_call_reply()->set_call_id(gather);
  reply.header.mutable_call_reply()->set_code(wire::OK);
  FromCoordinator(reply);
  EXPECT_THAT(Places(), testing::ElementsAre(1));
}

TEST_F(WorkerCoreTest, NothingHappensAfterTheEnd) {
  Join();
  wire::View finished = RunningView(3);
  finished.set_state(wire::FINISHED);
  Show(finished);
  const size_t sent = to_coordinator_.size();
  AnswerPull();
  Compute(1);
  Show(RunningView(4));
  Pass(kWaitTimeout * 2);
  EXPECT_EQ(to_coordinator_.size(), sent);
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_TRUE(absl::IsOutOfRange(core_->ending()));
}

// ---- Losses and evaluations -------------------------------------------------

TEST_F(WorkerCoreTest, ALossThatIsNoNumberEndsTheJob) {
  Join();
  AnswerPull();
  Compute(std::numeric_limits<double>::quiet_NaN());
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_THAT(Calls()[0].stop().reason(), HasSubstr("worker 0"));
  EXPECT_THAT(Calls()[0].stop().reason(), HasSubstr("learning rate"));
  ASSERT_TRUE(Calls()[0].stop().has_diverged());
  EXPECT_EQ(Calls()[0].stop().diverged().clock(), 0);
  EXPECT_THAT(Calls()[0].stop().diverged().worker(), testing::ElementsAre(0));
}

TEST_F(WorkerCoreTest, ALossThatIsNoNumberMayBeSkipped) {
  options_.train.set_nonfinite(config::Train::SKIP);
  Join();
  AnswerPull();
  Compute(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_EQ(core_->clock(), 1);
}

TEST_F(WorkerCoreTest, OnlyTheFirstModelThatMeetsAStopRuleIsKept) {
  options_.train.mutable_stop()->set_test_accuracy(0.9);
  Join();
  EXPECT_FALSE(core_->KeepsModel(0.5, 0.89));
  EXPECT_TRUE(core_->KeepsModel(0.5, 0.91));
  EXPECT_FALSE(core_->KeepsModel(0.5, 0.95));
}

TEST_F(WorkerCoreTest, TheChiefEvaluatesWhereItIsDueAndNobodyElse) {
  options_.evaluate_every = 1;
  Join();
  AnswerPull();
  Compute(1);
  AnswerPush(1);
  AnswerPull();
  ASSERT_EQ(Count<WorkerCore::Evaluate>(), 1);
  const auto evaluate =
      std::find_if(actions_.begin(), actions_.end(), [](const auto& action) {
        return std::holds_alternative<WorkerCore::Evaluate>(action);
      });
  EXPECT_EQ(std::get<WorkerCore::Evaluate>(*evaluate).clock, 1);
}

// ---- Groups -----------------------------------------------------------------

TEST_F(WorkerCoreTest, WhoCannotConnectGivesUpAfterSomeAttempts) {
  Join("allreduce");
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
  });
  for (uint64_t attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_TRUE(core_->ending().ok()) << attempt;
    ASSERT_EQ(Count<WorkerCore::Connect>(), static_cast<int>(attempt));
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnGroupLost(absl::UnavailableError("rank 1 refused"), now, effects);
    });
    wire::View next = RunningView(2 + attempt, "allreduce");
    next.set_group(1 + attempt);
    Show(next);
  }
  EXPECT_THAT(std::string(core_->ending().message()),
              HasSubstr("worker 0 failed 5 times in a row"));
  EXPECT_THAT(std::string(core_->ending().message()),
              HasSubstr("rank 1 refused"));
}

// A server that sums gradients has died: each attempt takes a second to find
// that out, and the view names it until its lease has run out.
TEST_F(WorkerCoreTest, AttemptsThatTakeTheirTimeGoOnForTwoLeases) {
  Join("allreduce");
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
  });
  const absl::Time begin = now_;
  uint64_t attempt = 0;
  while (core_->ending().ok()) {
    ++attempt;
    ASSERT_LE(now_ - begin, 2 * kLease + absl::Milliseconds(300));
    Pass(absl::Milliseconds(300));
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnGroupLost(absl::UnavailableError("server 1 has ended"), now,
                       effects);
    });
    wire::View next = RunningView(2 + attempt, "allreduce");
    next.set_group(1 + attempt);
    Show(next);
  }
  EXPECT_GT(now_ - begin, 2 * kLease);
  EXPECT_GT(attempt, 5u);
}

TEST_F(WorkerCoreTest, WhatIsUnderWayInAGroupEndsWhenTheViewHasAnother) {
  Join("allreduce");
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
  });
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConnected(now, effects);
  });
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnCaughtUp(0, /*took_state=*/false, now, effects);
  });
  EXPECT_TRUE(core_->WhyGroupIsOver(1).ok());
  EXPECT_TRUE(core_->WhyStepIsLost().ok());
  wire::View next = RunningView(3, "allreduce");
  next.set_group(2);
  Show(next);
  EXPECT_FALSE(core_->WhyGroupIsOver(1).ok());
  EXPECT_TRUE(core_->WhyGroupIsOver(2).ok());
  EXPECT_FALSE(core_->WhyStepIsLost().ok());
}

TEST_F(WorkerCoreTest, ALostGroupIsToldUnlessItWasTheEndOfTheJob) {
  enum class Next { kEnd, kOtherGroup, kNothing };
  for (const Next next : {Next::kEnd, Next::kOtherGroup, Next::kNothing}) {
    SCOPED_TRACE(static_cast<int>(next));
    warnings_.clear();
    Join("allreduce");
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
      core.OnCaughtUp(0, /*took_state=*/false, now, effects);
    });
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnGroupLost(absl::UnavailableError("rank 1 is gone"), now, effects);
    });
    EXPECT_THAT(warnings_, IsEmpty());
    wire::View view = RunningView(3, "allreduce");
    if (next == Next::kEnd) view.set_state(wire::FINISHED);
    if (next == Next::kOtherGroup) view.set_group(2);
    if (next != Next::kNothing) Show(view);
    Pass(absl::Seconds(2));
    if (next == Next::kEnd) {
      EXPECT_TRUE(core_->ended());
      EXPECT_THAT(warnings_, IsEmpty());
    } else {
      EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr("rank 1 is gone")));
    }
  }
}

// ---- What it says of itself -------------------------------------------------

wire::View RunningIn(const std::string& mode, uint64_t number) {
  wire::View view = RunningView(number);
  *view.mutable_phase(0)->mutable_mode() = ModeOf(mode);
  return view;
}

TEST_F(WorkerCoreTest, TheNextParametersAreAskedForBehindTheGradients) {
  for (const std::string mode : {"bsp", "ssp:0", "backup:1"}) {
    SCOPED_TRACE(mode);
    Join([&](uint64_t number) { return RunningIn(mode, number); });
    AnswerPull();
    to_shards_.clear();
    const int computed = Count<WorkerCore::Compute>();
    Push();
    ASSERT_EQ(to_shards_.size(), 2u);
    EXPECT_TRUE(to_shards_[0].header.has_push_request());
    const wire::Pull& pull = to_shards_[1].header.pull_request().pull(0);
    EXPECT_EQ(pull.step().clock(), 1);
    EXPECT_EQ(pull.step().own_clock(), 1);
    // It may be answered while the step is under way, and is not used before.
    AnswerPush(1);
    AnswerPull(1);
    EXPECT_EQ(Count<WorkerCore::Compute>(), computed);
    Computed();
    EXPECT_EQ(Count<WorkerCore::Compute>(), computed + 1);
    EXPECT_EQ(Last<WorkerCore::Compute>().clock, 1);
    EXPECT_EQ(to_shards_.size(), 2u);
  }
}

// Behind its gradients they would miss those that others push meanwhile.
TEST_F(WorkerCoreTest, ParametersThatWaitForNobodyAreAskedForAfterTheStep) {
  for (const std::string mode : {"ssp:1", "dssp:2:8", "asp"}) {
    SCOPED_TRACE(mode);
    Join([&](uint64_t number) { return RunningIn(mode, number); });
    AnswerPull();
    to_shards_.clear();
    Push();
    ASSERT_EQ(to_shards_.size(), 1u);
    EXPECT_TRUE(to_shards_[0].header.has_push_request());
    Computed();
    ASSERT_EQ(to_shards_.size(), 2u);
    EXPECT_TRUE(to_shards_[1].header.has_pull_request());
  }
}

TEST_F(WorkerCoreTest, AWorkerAloneAsksBehindItsGradientsInEveryMode) {
  for (const std::string mode : {"ssp:1", "dssp:2:8", "asp"}) {
    SCOPED_TRACE(mode);
    Join([&](uint64_t number) {
      wire::View view = RunningIn(mode, number);
      while (view.worker_size() > 1) view.mutable_worker()->RemoveLast();
      return view;
    });
    AnswerPull();
    to_shards_.clear();
    Push();
    ASSERT_EQ(to_shards_.size(), 2u);
    EXPECT_TRUE(to_shards_[0].header.has_push_request());
    EXPECT_EQ(to_shards_[1].header.pull_request().pull(0).step().clock(), 1);
  }
}

TEST_F(WorkerCoreTest, NothingIsAskedForBehindTheGradientsOfALastStep) {
  for (const bool last_of_phase : {true, false}) {
    SCOPED_TRACE(last_of_phase);
    Join([&](uint64_t number) {
      wire::View view = RunningIn("bsp", number);
      if (last_of_phase) {
        wire::Phase& next = *view.add_phase();
        next.set_from(1);
        *next.mutable_mode() = ModeOf("allreduce");
      } else {
        view.set_steps_total(1);
      }
      return view;
    });
    AnswerPull();
    to_shards_.clear();
    Push();
    ASSERT_EQ(to_shards_.size(), 1u);
    EXPECT_TRUE(to_shards_[0].header.has_push_request());
  }
}

TEST_F(WorkerCoreTest, HeartbeatsTellWhatItDoesAndForHowLong) {
  Join();
  AnswerPull();
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  EXPECT_EQ(Progress().for_ms(), 0);
  Pass(absl::Seconds(5));
  EXPECT_EQ(Progress().for_ms(), 5000) << "a trainer that stands still";
  Show(RunningView(3));
  EXPECT_EQ(Progress().for_ms(), 5000) << "that others move is no progress";
  Compute(1);
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WAITING_FOR_SERVER);
  EXPECT_EQ(Progress().clock(), 1);
  Pass(absl::Seconds(1));
  const auto last = std::find_if(
      to_coordinator_.rbegin(), to_coordinator_.rend(),
      [](const Message& message) { return message.header.has_heartbeat(); });
  ASSERT_NE(last, to_coordinator_.rend());
  EXPECT_EQ(last->header.heartbeat().worker().progress().activity(),
            run::WorkerProgress::WAITING_FOR_SERVER);
}

TEST_F(WorkerCoreTest, WhoSkipsTheLastStepsHasCompletedThem) {
  Join("backup:1");
  AnswerPull();  // Of joining.
  Compute(/*loss=*/1);
  AnswerPush(1);
  AnswerPull(/*shard_clock=*/kSteps);
  EXPECT_EQ(Count<WorkerCore::Compute>(), 1);
  wire::View finished = RunningView(3, "backup:1");
  finished.set_state(wire::FINISHED);
  Show(finished);
  const wire::Heartbeat& last = to_coordinator_.back().header.heartbeat();
  EXPECT_EQ(last.worker().clock(), kSteps);
}

TEST_F(WorkerCoreTest, WhatCameAfterAPauseIsNotInTheFuture) {
  Join();
  Pass(absl::Seconds(2));
  now_ += absl::Seconds(30);  // In which the process was stopped.
  AnswerPull();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnTick(now, effects);
  });
  EXPECT_EQ(Progress().for_ms(), 0);
}

TEST_F(WorkerCoreTest, HeartbeatsAreTrueAlsoWhenViewsComeAllTheTime) {
  Join();
  AnswerPull();
  ASSERT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  for (uint64_t number = 3; number < 103; ++number) {
    Pass(absl::Milliseconds(100));
    Show(RunningView(number));
  }
  const auto last =
      std::find_if(to_coordinator_.rbegin(), to_coordinator_.rend(),
                   [](const Message& message) {
                     return message.header.heartbeat().has_worker();
                   });
  ASSERT_NE(last, to_coordinator_.rend());
  // The last one is at most a fifth of the lease old.
  EXPECT_GE(last->header.heartbeat().worker().progress().for_ms(), 9000);
}

TEST_F(WorkerCoreTest, WhoHasReducedItsPartWaitsForTheOthers) {
  Join("allreduce");
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
    core.OnConnected(now, effects);
    core.OnCaughtUp(0, /*took_state=*/false, now, effects);
  });
  ASSERT_EQ(Count<WorkerCore::Reduce>(), 1);
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnReducing(now);
  });
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WAITING_FOR_WORKERS);
}

TEST_F(WorkerCoreTest, WhoMadeAModelByAllReduceEvaluatesIt) {
  options_.evaluate_every = 1;
  for (const bool founder : {false, true}) {
    SCOPED_TRACE(founder);
    const auto view_of = [&](uint64_t number) {
      wire::View view = RunningView(number, "allreduce");
      view.mutable_worker(0)->set_founder(founder);
      return view;
    };
    actions_.clear();
    Join(view_of);
    const Clock first = founder ? 0 : 3;
    Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
      core.OnCaughtUp(first, /*took_state=*/false, now, effects);
    });
    ASSERT_EQ(Last<WorkerCore::Reduce>().clock, first);
    EXPECT_EQ(Count<WorkerCore::Evaluate>(), 0);
    // Somebody joins during the step, who may be the chief in the next one.
    wire::View next = view_of(3);
    next.set_group(3);
    Show(next);
    actions_.clear();
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnReducing(now);
      core.OnReduced({.loss = 1, .culprits = {}}, now, effects);
    });
    ASSERT_EQ(Count<WorkerCore::Evaluate>(), 1);
    EXPECT_EQ(Last<WorkerCore::Evaluate>().clock, first + 1);
    EXPECT_EQ(Count<WorkerCore::Reduce>(), 0);
    EXPECT_EQ(Count<WorkerCore::Connect>(), 1);
  }
}

TEST_F(WorkerCoreTest, AFirstStepMayOnlyBringTheValuesOfOneWorkerToAll) {
  for (const bool only_first : {false, true}) {
    SCOPED_TRACE(only_first);
    Join([&](uint64_t number) {
      wire::View view = RunningView(number, "allreduce");
      if (!only_first) return view;
      wire::Phase& next = *view.add_phase();
      next.set_from(1);
      *next.mutable_mode() = ModeOf("bsp");
      return view;
    });
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
      core.OnCaughtUp(0, /*took_state=*/false, now, effects);
    });
    ASSERT_EQ(Last<WorkerCore::Reduce>().clock, 0);
    EXPECT_EQ(Last<WorkerCore::Reduce>().keeps_model, !only_first);
  }
}

TEST_F(WorkerCoreTest, GradientsOfAStepThatFailedCountWhereTheStateIsTheSame) {
  for (const bool took_state : {false, true}) {
    Join("allreduce");
    const auto form = [&](bool took) {
      Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnConnected(now, effects);
        core.OnCaughtUp(took ? 1 : 0, took, now, effects);
      });
    };
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
    });
    form(false);
    EXPECT_FALSE(Last<WorkerCore::Reduce>().again);
    // Before it has computed its part there is nothing to be summed again.
    for (const bool computed : {false, true}) {
      Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        if (computed) core.OnReducing(now);
        core.OnGroupLost(absl::UnavailableError("gone"), now, effects);
      });
      wire::View view = RunningView(computed ? 4 : 3, "allreduce");
      view.set_group(view.number());
      Show(view);
      form(computed && took_state);
      EXPECT_EQ(Count<WorkerCore::Reduce>(),
                (took_state ? 3 : 0) + (computed ? 3 : 2));
      EXPECT_EQ(Last<WorkerCore::Reduce>().again, computed && !took_state);
    }
    EXPECT_EQ(core_->counts().reduced_again, took_state ? 0 : 1);
  }
}

TEST_F(WorkerCoreTest, ValuesOfAWorkerAreItsOwnUntilAGroupHasAgreed) {
  for (const bool of_worker : {false, true}) {
    wire::View view;
    Join([&](uint64_t number) {
      view = RunningView(number, "allreduce");
      for (wire::Table& table : *view.mutable_table()) {
        if (of_worker)
          table.mutable_initializer()->set_kind(wire::Initializer::OF_WORKER);
      }
      return view;
    });
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
    });
    EXPECT_EQ(Last<WorkerCore::CatchUp>().standing.own_values, of_worker);
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnCaughtUp(0, /*took_state=*/false, now, effects);
      core.OnGroupLost(absl::UnavailableError("gone"), now, effects);
    });
    view.set_number(3);
    view.set_group(3);
    Show(view);
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnConnected(now, effects);
    });
    EXPECT_EQ(Last<WorkerCore::CatchUp>().standing.clock, 0);
    EXPECT_FALSE(Last<WorkerCore::CatchUp>().standing.own_values);
  }
}

TEST_F(WorkerCoreTest, AGradientWaitsForRoom) {
  options_.unacknowledged_bytes_max = 20;
  Join();
  EXPECT_TRUE(core_->HasRoom(1000)) << "one always has";
  AnswerPull();
  Compute(1);
  EXPECT_TRUE(core_->HasRoom(4));
  EXPECT_FALSE(core_->HasRoom(5));
  AnswerPush(1);
  EXPECT_TRUE(core_->HasRoom(5));
}

// ---- The optimizer's state --------------------------------------------------

class AskStateTest : public WorkerCoreTest {
 protected:
  // Computes the step of clock 2.
  void BeginStepTwo(absl::string_view mode) {
    Join(mode);
    AnswerPull();
    for (const Clock clock : {0, 1}) {
      Compute(/*loss=*/1);
      AnswerPush(static_cast<uint64_t>(clock) + 1);
      AnswerPull(clock + 1);
    }
    ASSERT_EQ(Last<WorkerCore::Compute>().clock, 2);
    to_shards_.clear();
    Ask();
  }
  int Pulls() const {
    return static_cast<int>(absl::c_count_if(to_shards_, [](const Message& m) {
      return m.header.has_pull_request();
    }));
  }
  void Ask(StateParts what = StateParts::kAll) {
    Tell([=](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.AskState(what, now, effects);
      core.SetNeed(WorkerCore::Need::kState, now);
    });
  }
};

TEST_F(AskStateTest, ItWaitsForWhomAPullWouldWait) {
  for (const auto& [mode, clock] : {std::pair<const char*, Clock>{"bsp", 2},
                                    {"ssp:1", 1},
                                    {"ssp:3", 0},
                                    {"asp", 0}}) {
    SCOPED_TRACE(mode);
    BeginStepTwo(mode);
    ASSERT_EQ(to_shards_.size(), 1u);
    const wire::PullRequest& request = to_shards_[0].header.pull_request();
    ASSERT_TRUE(request.pull(0).has_state());
    EXPECT_EQ(request.pull(0).state().clock(), clock);
  }
}

TEST_F(AskStateTest, TheAnswerIsForTheDriverAndBeginsNothing) {
  BeginStepTwo("bsp");
  ParkPull(1);
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WAITING_FOR_WORKERS);
  EXPECT_THAT(Progress().what(), HasSubstr("the optimizer's state"));
  EXPECT_EQ(Progress().rank(), 1);
  const int steps = Count<WorkerCore::Compute>();
  EXPECT_EQ(state_, nullptr);
  AnswerWithState(4);
  ASSERT_NE(state_, nullptr);
  EXPECT_EQ(state_->shards[0].version, 4u);
  EXPECT_EQ(Count<WorkerCore::Compute>(), steps);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.SetNeed(WorkerCore::Need::kNothing, now);
  });
  EXPECT_EQ(Progress().activity(), run::WorkerProgress::WORKING);
  // And once more.
  state_ = nullptr;
  Ask();
  AnswerWithState(4);
  EXPECT_NE(state_, nullptr);
}

TEST_F(AskStateTest, OnePullIsUnderWayAtATime) {
  options_.pull_ahead = true;
  Join("ssp:3");
  AnswerPull();
  ASSERT_EQ(Pulls(), 2) << "of joining, and ahead for step 1";
  Ask();
  EXPECT_EQ(Pulls(), 2);
  AnswerPull(1);
  ASSERT_EQ(Pulls(), 3);
  EXPECT_TRUE(to_shards_.back().header.pull_request().pull(0).has_state());
  AnswerWithState(1);
  EXPECT_NE(state_, nullptr);
  EXPECT_EQ(Pulls(), 3) << "the parameters of step 1 are there";
  Compute(/*loss=*/1);
  EXPECT_EQ(Last<WorkerCore::Compute>().clock, 1);
  EXPECT_EQ(Pulls(), 4) << "ahead for step 2";
}

TEST_F(AskStateTest, WhoWantsTheValuesAloneAsksForNoSlots) {
  Join("bsp");
  AnswerPull();
  for (Clock clock = 0; clock < kSteps; ++clock) {
    Compute(/*loss=*/1);
    AnswerPush(static_cast<uint64_t>(clock) + 1);
    if (clock + 1 < kSteps) AnswerPull(clock + 1);
  }
  to_shards_.clear();
  Ask(StateParts::kValues);
  ASSERT_EQ(Pulls(), 1);
  const wire::Pull& pull = to_shards_[0].header.pull_request().pull(0);
  ASSERT_TRUE(pull.has_step());
  EXPECT_TRUE(pull.step().exact());
  EXPECT_EQ(pull.step().clock(), kSteps);
  EXPECT_EQ(pull.step().own_clock(), kSteps);
  AnswerPull(kSteps);
  ASSERT_NE(state_, nullptr);
  EXPECT_TRUE(state_->shards[0].slots.empty());
}

// The program stands still between two gradients of a step, whose parameters
// are asked for behind them.
TEST_F(AskStateTest, APullBehindTheStepsOwnPushesDoesNotHoldItUp) {
  Join("bsp");
  AnswerPull();
  Push();
  ASSERT_EQ(Pulls(), 2) << "of joining, and behind the push";
  Ask();
  ASSERT_EQ(Pulls(), 3);
  EXPECT_TRUE(to_shards_.back().header.pull_request().pull(0).has_state());
  AnswerWithState(1);
  EXPECT_NE(state_, nullptr);
  EXPECT_EQ(core_->counts().pulls_forgotten, 1);
  Computed();
  ASSERT_EQ(Pulls(), 4) << "once more";
  AnswerPush(1);
  AnswerPull(1);
  EXPECT_EQ(Last<WorkerCore::Compute>().clock, 1);
}

TEST_F(AskStateTest, TheFirstPullOfAPhaseIsNotAhead) {
  options_.pull_ahead = true;
  Join([](uint64_t number) {
    wire::View view = RunningView(number, "asp");
    wire::Phase& next = *view.add_phase();
    next.set_from(1);
    *next.mutable_mode() = ModeOf("ssp:3");
    return view;
  });
  AnswerPull();
  ASSERT_EQ(Count<WorkerCore::Compute>(), 1);
  EXPECT_EQ(Pulls(), 1);
  Ask();
  EXPECT_EQ(Pulls(), 2);
}

TEST_F(AskStateTest, WhoseAnswerDoesNotComeNamesWhomItWaitsFor) {
  BeginStepTwo("bsp");
  ParkPull(1);
  Pass(kWaitTimeout + kLease);
  EXPECT_EQ(core_->ending().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(core_->ending().message(), HasSubstr("the optimizer's state"));
  EXPECT_THAT(core_->ending().message(), HasSubstr("waits for rank 1"));
}

// ---- Checkpoints ------------------------------------------------------------

class KeepStateTest : public WorkerCoreTest {
 protected:
  void BeginByAllReduce() {
    Join([&](uint64_t number) { return ViewOf(number); });
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnInitialized(now, effects);
      core.OnConnected(now, effects);
      core.OnCaughtUp(0, /*took_state=*/false, now, effects);
    });
  }
  wire::View ViewOf(uint64_t number) const {
    wire::View view = RunningView(number, "allreduce");
    if (!other_is_chief_) return view;
    view.mutable_worker(0)->set_incarnation(kOther);
    view.mutable_worker(1)->set_incarnation(kSelf);
    return view;
  }
  wire::View WithCut(uint64_t number, Clock clock) const {
    wire::View view = ViewOf(number);
    view.mutable_cut()->set_number(1);
    view.mutable_cut()->set_clock(clock);
    view.mutable_cut()->set_by_worker(true);
    return view;
  }
  // The step that is under way.
  void Reduce() {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnReducing(now);
      core.OnReduced({.loss = 1, .culprits = {}}, now, effects);
    });
  }
  void BeOtherThanChief() {
    other_is_chief_ = true;
    options_.member.join.set_index(1);
  }
  // "reduce 4", "keep 5": what was to be done with a clock, in order.
  std::vector<std::string> Steps() const {
    std::vector<std::string> steps;
    for (const WorkerCore::Action& action : actions_) {
      if (const auto* const reduce = std::get_if<WorkerCore::Reduce>(&action))
        steps.push_back(absl::StrCat("reduce ", reduce->clock));
      if (const auto* const keep = std::get_if<WorkerCore::KeepState>(&action))
        steps.push_back(absl::StrCat("keep ", keep->clock));
    }
    return steps;
  }

  bool other_is_chief_ = false;
};

TEST_F(KeepStateTest, TheChiefKeepsTheStateOfTheCutOnceAndGoesOn) {
  BeginByAllReduce();
  Reduce();
  wire::View wanted = ViewOf(3);
  wanted.mutable_change()->set_id(9);
  wanted.mutable_change()->mutable_cutting();
  Show(wanted);
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_EQ(Calls()[0].step_limit().change(), 9);
  EXPECT_EQ(Calls()[0].step_limit().clock(), 5);
  for (Clock clock = 1; clock < 5; ++clock) Reduce();
  EXPECT_EQ(core_->clock(), 5);
  EXPECT_THAT(Progress().what(), HasSubstr("the clock of the checkpoint"));
  actions_.clear();
  // The other one was one step ahead when it promised.
  Show(WithCut(4, 6));
  EXPECT_THAT(Steps(), testing::ElementsAre("reduce 5"));
  Reduce();
  EXPECT_THAT(Steps(), testing::ElementsAre("reduce 5", "keep 6", "reduce 6"));
  EXPECT_EQ(Last<WorkerCore::KeepState>().cut, 1);
  // The step fails, so the worker is at that clock once more.
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnGroupLost(absl::UnavailableError("gone"), now, effects);
  });
  wire::View next = WithCut(5, 6);
  next.set_group(5);
  Show(next);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConnected(now, effects);
    core.OnCaughtUp(6, /*took_state=*/false, now, effects);
  });
  EXPECT_EQ(Steps().back(), "reduce 6");
  EXPECT_EQ(Count<WorkerCore::KeepState>(), 1);
  EXPECT_EQ(core_->counts().states_kept, 1);
}

// Also where the sum of that step had failed before, or the group gave the
// worker its clock.
TEST_F(KeepStateTest, ASumThatIsNotFiniteEndsTheJobWithItsStep) {
  const auto find_nan = [&] {
    Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
      core.OnReducing(now);
      core.OnReduced({.loss = 1, .nonfinite = true, .culprits = {Rank{1}}}, now,
                     effects);
    });
    ASSERT_TRUE(Calls().back().has_stop());
    const wire::Stop stop = Calls().back().stop();
    EXPECT_EQ(stop.diverged().clock(), core_->clock());
    EXPECT_THAT(stop.reason(),
                HasSubstr(absl::StrCat("all-reduce at step ", core_->clock(),
                                       ": a NaN or an infinity is in the "
                                       "gradient of worker 1")));
  };
  BeginByAllReduce();
  for (int step = 0; step < 3; ++step) Reduce();
  find_nan();
  EXPECT_EQ(core_->clock(), 3);

  BeginByAllReduce();
  Reduce();
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnReducing(now);
    core.OnGroupLost(absl::UnavailableError("gone"), now, effects);
  });
  wire::View next = ViewOf(3);
  next.set_group(5);
  Show(next);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConnected(now, effects);
    core.OnCaughtUp(2, /*took_state=*/true, now, effects);
  });
  find_nan();
  EXPECT_EQ(core_->clock(), 2);
}

TEST_F(KeepStateTest, NobodyElseKeepsItNorWhatServersHave) {
  BeOtherThanChief();
  BeginByAllReduce();
  Show(WithCut(3, 2));
  for (int step = 0; step < 4; ++step) Reduce();
  EXPECT_EQ(Count<WorkerCore::KeepState>(), 0);
  other_is_chief_ = false;
  options_.member.join.set_index(0);
  actions_.clear();
  BeginByAllReduce();
  wire::View of_servers = WithCut(3, 2);
  of_servers.mutable_cut()->set_by_worker(false);
  Show(of_servers);
  for (int step = 0; step < 4; ++step) Reduce();
  EXPECT_EQ(Count<WorkerCore::KeepState>(), 0);
}

TEST_F(KeepStateTest, WhoBecomesTheChiefBeyondTheCutHasNotGotItsState) {
  BeOtherThanChief();
  BeginByAllReduce();
  Show(WithCut(3, 2));
  for (int step = 0; step < 3; ++step) Reduce();
  ASSERT_EQ(core_->clock(), 3);
  wire::View alone = WithCut(4, 2);
  alone.mutable_worker()->DeleteSubrange(0, 1);
  Show(alone);
  Reduce();
  EXPECT_EQ(core_->clock(), 4);
  EXPECT_EQ(Count<WorkerCore::KeepState>(), 0);
}

// ---- What programs keep ----

class KeepProgramTest : public WorkerCoreTest {
 protected:
  KeepProgramTest() { options_.member.join.set_keeps_state(true); }

  // Each worker has its own limit; the other one's is larger.
  static wire::View WithLimit(uint64_t number, Clock own,
                              const std::string& mode = "asp") {
    wire::View view = RunningView(number, mode);
    view.mutable_cut()->set_number(1);
    for (const wire::WorkerMember& worker : view.worker()) {
      wire::Cut::Until& until = *view.mutable_cut()->add_until();
      until.set_rank(worker.rank());
      until.set_incarnation(worker.incarnation());
      until.set_clock(worker.rank() == 0 ? own : own + 3);
    }
    return view;
  }
  // "compute 4", "keep 5".
  std::vector<std::string> Steps() const {
    std::vector<std::string> steps;
    for (const WorkerCore::Action& action : actions_) {
      if (const auto* const step = std::get_if<WorkerCore::Compute>(&action))
        steps.push_back(absl::StrCat("compute ", step->clock));
      if (const auto* const keep =
              std::get_if<WorkerCore::KeepProgram>(&action))
        steps.push_back(absl::StrCat("keep ", keep->clock));
    }
    return steps;
  }
  void StepOnce() {
    Compute(/*loss=*/1);
    AnswerPull(core_->clock());
  }
};

TEST_F(KeepProgramTest, ItIsKeptOnceBetweenTheStepsAtItsOwnLimit) {
  Join("asp");
  AnswerPull();
  Show(WithLimit(9, 2));
  StepOnce();
  StepOnce();
  StepOnce();
  EXPECT_THAT(Steps(), testing::ElementsAre("compute 0", "compute 1", "keep 2",
                                            "compute 2", "compute 3"));
  EXPECT_EQ(Last<WorkerCore::KeepProgram>().cut, 1);
  EXPECT_EQ(core_->counts().programs_kept, 1);
}

TEST_F(KeepProgramTest, ItIsKeptAtACommonClockThatOthersTookItBeyond) {
  Join("bsp");
  AnswerPull();
  wire::View view = RunningView(9, "bsp");
  view.mutable_cut()->set_number(1);
  view.mutable_cut()->set_clock(1);
  Show(view);
  StepOnce();
  EXPECT_THAT(Steps(),
              testing::ElementsAre("compute 0", "keep 1", "compute 1"));
}

TEST_F(KeepProgramTest, WhoHasNothingOrJoinsAfterTheCutKeepsNothing) {
  options_.member.join.set_keeps_state(false);
  Join("asp");
  AnswerPull();
  Show(WithLimit(9, 1));
  StepOnce();
  EXPECT_EQ(Count<WorkerCore::KeepProgram>(), 0);

  actions_.clear();
  options_.member.join.set_keeps_state(true);
  Join([](uint64_t number) {
    wire::View view = RunningView(number, "bsp");
    view.mutable_cut()->set_number(1);
    view.mutable_cut()->set_clock(1);
    return view;
  });
  AnswerPull();
  StepOnce();
  EXPECT_EQ(Count<WorkerCore::KeepProgram>(), 0);
}

TEST_F(KeepStateTest, TheCoordinatorHearsWhatHasBecomeOfIt) {
  BeginByAllReduce();
  Show(WithCut(3, 1));
  Reduce();
  ASSERT_EQ(Count<WorkerCore::KeepState>(), 1);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    wire::CutPart part;
    part.set_cut(1);
    part.set_error("no space left");
    core.OnCutPart(part, now, effects);
  });
  ASSERT_THAT(Calls(), SizeIs(1));
  EXPECT_EQ(Calls()[0].cut_part().cut(), 1);
  EXPECT_EQ(Calls()[0].cut_part().error(), "no space left");
  // It is given up, perhaps; the worker goes on.
  Message reply;
  reply.header.mutable_call_reply()->set_call_id(Calls()[0].call_id());
  reply.header.mutable_call_reply()->set_code(wire::REJECTED);
  reply.header.mutable_call_reply()->set_error("it was given up");
  FromCoordinator(reply);
  EXPECT_TRUE(core_->ending().ok()) << core_->ending();
  Reduce();
  EXPECT_EQ(core_->clock(), 2);
}

// A job whose tables begin with what a checkpoint has; all begin at clock 6.
class GoOnTest : public WorkerCoreTest {
 protected:
  void Begin(absl::string_view mode) {
    options_.evaluate_every = 3;
    Join([&](uint64_t number) {
      wire::View view = RunningView(number, mode);
      view.mutable_table(0)->mutable_initializer()->set_kind(
          wire::Initializer::OF_CHECKPOINT);
      for (wire::WorkerMember& worker : *view.mutable_worker())
        worker.set_begins_at(6);
      return view;
    });
    ASSERT_THAT(to_shards_, SizeIs(1));
    EXPECT_TRUE(to_shards_[0].header.pull_request().pull(0).has_join());
    AnswerPull(6);
    EXPECT_EQ(core_->clock(), 6);
    EXPECT_THAT(log_, testing::Contains("goes on at clock 6"));
    EXPECT_EQ(core_->counts().resumed_starts, 1);
    EXPECT_EQ(core_->counts().late_starts, 0) << "that is who joins later";
  }
};

TEST_F(GoOnTest, OverServersItBeginsWhereTheServersSay) {
  Begin("bsp");
  const wire::Pull& pull = to_shards_.back().header.pull_request().pull(0);
  EXPECT_EQ(pull.step().clock(), 6);
  EXPECT_EQ(pull.step().own_clock(), 6);
  AnswerPull(6);
  EXPECT_EQ(Last<WorkerCore::Compute>().clock, 6);
  EXPECT_EQ(Count<WorkerCore::Evaluate>(), 0) << "the job before has done it";
  Compute(/*loss=*/1);
  const auto pushed = absl::c_find_if(to_shards_, [](const Message& message) {
    return message.header.has_push_request();
  });
  ASSERT_NE(pushed, to_shards_.end());
  EXPECT_EQ(pushed->header.push_request().push(0).clock(), 6);
  EXPECT_EQ(pushed->header.push_request().push(0).seq(), 1);
}

// Others may begin at earlier steps and wait for it at a collective there,
// while it waits for their pushes.
TEST_F(GoOnTest, ItSaysWhereItGoesOnBeforeItHasParameters) {
  Begin("bsp");
  EXPECT_THAT(Places(), testing::ElementsAre(2 * 6 + 1));
}

TEST_F(GoOnTest, ByAllReduceItTakesTheStateFromTheServers) {
  Begin("allreduce");
  EXPECT_EQ(Count<WorkerCore::Initialize>(), 0);
  const wire::Pull& pull = to_shards_.back().header.pull_request().pull(0);
  ASSERT_TRUE(pull.has_state());
  EXPECT_EQ(pull.state().clock(), 6);
  AnswerWithState(41);
  ASSERT_EQ(Count<WorkerCore::TakeState>(), 1);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnStateTaken({}, now, effects);
    core.OnConnected(now, effects);
  });
  EXPECT_EQ(Last<WorkerCore::CatchUp>().standing.clock, 6);
  EXPECT_FALSE(Last<WorkerCore::CatchUp>().standing.own_values);
  Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnCaughtUp(6, /*took_state=*/false, now, effects);
  });
  EXPECT_EQ(Last<WorkerCore::Reduce>().clock, 6);
  EXPECT_EQ(Count<WorkerCore::Evaluate>(), 0);
}

TEST_F(GoOnTest, WhereNothingIsLeftToDoItFinishes) {
  for (const char* const mode : {"bsp", "allreduce"}) {
    SCOPED_TRACE(mode);
    to_shards_.clear();
    to_coordinator_.clear();
    Join([&](uint64_t number) {
      wire::View view = RunningView(number, mode);
      view.mutable_table(0)->mutable_initializer()->set_kind(
          wire::Initializer::OF_CHECKPOINT);
      return view;
    });
    AnswerPull(kSteps);
    EXPECT_EQ(Count<WorkerCore::Compute>() + Count<WorkerCore::Reduce>(), 0);
    ASSERT_THAT(Calls(), Not(IsEmpty()));
    EXPECT_TRUE(Calls().back().has_leave());
    EXPECT_TRUE(core_->ending().ok()) << core_->ending();
  }
}

}  // namespace slackline::worker_core_test
