// Goal: what a shard thread does where one mode follows another, and how a
// shard goes from servers to all-reduce and comes back.
// Method: one core of a small job; SGD with learning rate 1 from zeros, so that
// values show what was applied, or Adam, whose bits depend on everything that
// ever was; random phases whose sums are known.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/rng.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline::shard_phases_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ShardPhasesTest, AClockThatIsHeldCompletesAsTheOldModeSays) {
  Start("bsp", 2);
  AddPhase("asp", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty())
      << "asynchronous, but half of a synchronous clock is missing";
  EXPECT_EQ(Now(), 0);
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(0, 1, 4)), 7), -3);
  EXPECT_EQ(core_->Stats().updates(), 1u);
  PushCode(Worker(0), PushOf(1, 2, 8));
  EXPECT_EQ(Now(), -7) << "at once, as one of two";
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullAt(2, 8)), 8), -7);
}

TEST_F(ShardPhasesTest, APhaseOfNoKnownModeIsDoneAsBsp) {
  Start("asp", 2);
  view_.add_phase()->set_from(1);  // Without a mode.
  Publish();
  for (const int rank : {0, 1}) PushCode(Worker(rank), PushOf(0, 1, 2));
  EXPECT_EQ(Now(), -2);
  PushCode(Worker(0), PushOf(1, 2, 8));
  EXPECT_EQ(Now(), -2) << "it waits for the other one";
  EXPECT_THAT(Send(Worker(0), PullAt(2, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(1, 2, 4)), 7), -8);
}

TEST_F(ShardPhasesTest, AfterBspABoundCountsFromTheChangeOn) {
  Start("bsp", 2);
  AddPhase("ssp:2", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty());
  PushCode(Worker(1), PushOf(0, 1, 2));
  for (Clock clock = 1; clock <= 3; ++clock) {
    EXPECT_TRUE(AnswerIn(Send(Worker(0), PullAt(clock, 10)), 10).has_value());
    PushCode(Worker(0), PushOf(clock, clock + 1, 2));
  }
  EXPECT_THAT(Send(Worker(0), PullAt(4, 11)).sends, IsEmpty()) << "3 ahead";
  EXPECT_TRUE(AnswerIn(Send(Worker(1), PushOf(1, 2, 2)), 11).has_value());
}

TEST_F(ShardPhasesTest, ABoundEndsWithItsPhase) {
  Start("ssp:1", 2);
  AddPhase("asp", 2);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 1));
  EXPECT_EQ(PullCode(Worker(0), PullAt(1)), Outcome::kOk);
  PushCode(Worker(0), PushOf(1, 2, 1));
  EXPECT_EQ(PullCode(Worker(0), PullAt(2)), Outcome::kOk)
      << "rank 1 has not pushed anything";
}

TEST_F(ShardPhasesTest, BeforeBspLatePushesCountAtOnceAndAllMustHaveCome) {
  Start("asp", 2);
  AddPhase("bsp", 2);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(0), PushOf(1, 2, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(2, 7)).sends, IsEmpty());
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), -4);
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(1, 2, 4)), 7), -6);
  PushCode(Worker(0), PushOf(2, 3, 10));
  EXPECT_EQ(Now(), -6) << "held";
  EXPECT_EQ(PushCode(Worker(0), PushOf(3, 4, 10)), Outcome::kRetry)
      << "one clock is held, not two";
  PushCode(Worker(1), PushOf(2, 3, 20));
  EXPECT_EQ(Now(), -21);
}

// Workers run through a random list of phases, each as fast as its pulls let
// it, with repeated messages. The sum of everything is known whatever the
// order; what BSP must have applied and no more, too.
TEST_F(ShardPhasesTest, EveryPushCountsOnceWhateverModesFollowEachOther) {
  constexpr int kWorkers = 3;
  constexpr Clock kEnd = 14;
  int changes_while_apart = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    view_ = wire::View();
    const auto random_mode = [&]() -> std::string {
      const std::string ssp = absl::StrCat("ssp:", rng.Between(0, 3));
      const std::string modes[] = {"bsp", ssp, "asp"};
      return modes[rng.Below(3)];
    };
    Start(random_mode(), kWorkers);
    for (Clock from = 1 + rng.Below(4); from < kEnd; from += 1 + rng.Below(4))
      AddPhase(random_mode(), from);
    Publish();
    struct {
      Clock clock = 0;
      bool pulling = false;
      bool has_parameters = false;
    } workers[kWorkers];
    float gradients[kWorkers][kEnd];
    float before[kEnd + 1] = {};  // Sum of all gradients below the clock.
    for (Clock clock = 0; clock < kEnd; ++clock) {
      before[clock + 1] = before[clock];
      for (auto& of_worker : gradients) {
        of_worker[clock] = static_cast<float>(kWorkers * rng.Between(-9, 9));
        before[clock + 1] += of_worker[clock];
      }
    }
    const auto take = [&](const ShardCore::Effects& effects) {
      for (const Outgoing& out : effects.sends) {
        const wire::PullReply& reply = out.message.header.pull_reply();
        if (reply.answer_size() == 0 || !reply.answer(0).has_values()) continue;
        auto& worker = workers[out.to.index];
        if (!worker.pulling) continue;  // Asked twice.
        worker.pulling = false;
        worker.has_parameters = true;
        const Clock min_clock = State().participants().MinClock();
        ASSERT_GE(min_clock, NeedsAt(view_, worker.clock).of_all);
        if (!PhaseAt(view_, worker.clock).mode().has_bsp()) continue;
        ASSERT_EQ(First(out.message.payloads.at(0)),
                  -before[worker.clock] / kWorkers);
      }
    };
    int done = 0;
    for (int step = 0; done < kWorkers; ++step) {
      ASSERT_LT(step, 10000) << "somebody waits for ever";
      const int rank = static_cast<int>(rng.Below(kWorkers));
      auto& worker = workers[rank];
      if (worker.clock == kEnd) continue;
      if (!worker.has_parameters) {
        worker.pulling = true;
        take(Send(Worker(rank), PullAt(worker.clock, worker.clock + 1)));
        continue;
      }
      for (const auto& other : workers) {
        changes_while_apart +=
            &PhaseAt(view_, other.clock) != &PhaseAt(view_, worker.clock);
      }
      const Message push =
          PushOf(worker.clock, worker.clock + 1, gradients[rank][worker.clock]);
      ++worker.clock;
      worker.has_parameters = false;
      done += worker.clock == kEnd;
      take(Send(Worker(rank), push));
      if (rng.Chance(0.3)) take(Send(Worker(rank), push));
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(Now(), -before[kEnd] / kWorkers);
    EXPECT_EQ(core_->Stats().malformed(), 0u);
  }
  EXPECT_GT(changes_while_apart, 1000);
}

TEST_F(ShardPhasesTest, WhoKnowsMorePhasesHasToComeAgain) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 5);
  push.header.mutable_push_request()->set_phases(2);
  const wire::PushReply reply = Push(Worker(0), push);
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRetry);
  EXPECT_EQ(reply.answer(0).accepted_seq(), 0u);
  Message pull = PullAt(0, 7);
  pull.header.mutable_pull_request()->set_phases(2);
  EXPECT_EQ(PullCode(Worker(0), pull), Outcome::kRetry);
  EXPECT_EQ(core_->GateOf(ShardId{0})->parked_count(), 0u);
  EXPECT_EQ(Now(), 0);
  AddPhase("bsp", 1);
  Publish();
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  EXPECT_EQ(PullCode(Worker(0), pull), Outcome::kOk);
  EXPECT_EQ(Now(), -5);
}

TEST_F(ShardPhasesTest, WhoKnowsFewerPhasesIsServed) {
  Start("asp", 1);
  AddPhase("bsp", 9);
  Publish();
  Message push = PushOf(0, 1, 5);
  push.header.mutable_push_request()->set_phases(1);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
}

// ---- From servers to all-reduce

TEST_F(ShardPhasesTest, TheStateIsThereOnceAllHaveReachedTheClock) {
  optimizer_ = Adam();
  Start("bsp", 2);
  AddPhase("allreduce", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), StatePullAt(1, 7)).sends, IsEmpty());
  const ShardCore::Effects effects = Send(Worker(1), PushOf(0, 1, 4));
  ASSERT_THAT(effects.sends, SizeIs(2));
  const Message& answer = effects.sends[1].message;
  const wire::PullReply& reply = answer.header.pull_reply();
  ASSERT_EQ(reply.answer_size(), 1);
  EXPECT_EQ(reply.answer(0).pull(), 7u);
  EXPECT_EQ(reply.answer(0).state().values().version(), 1u);
  const Shard& shard = State().shard();
  ASSERT_THAT(answer.payloads, SizeIs(3));
  ASSERT_THAT(shard.slots(), SizeIs(2));
  EXPECT_EQ(BytesOf(answer.payloads[0]), BytesOf(shard.values()));
  EXPECT_EQ(BytesOf(answer.payloads[1]), BytesOf(shard.slots()[0]));
  EXPECT_EQ(BytesOf(answer.payloads[2]), BytesOf(shard.slots()[1]));
  EXPECT_NE(First(answer.payloads[2]), 0) << "with what was held";
  EXPECT_EQ(reply.answer(0).state().hash(),
            StateHash(1, shard.values(), shard.slots()));
  EXPECT_EQ(reply.answer(0).state().slots(), 2);
}

TEST_F(ShardPhasesTest, TheStateOfAClockIsWholeWhateverItsMode) {
  Start("asp", 2);
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), StatePullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(0, 1, 4)), 7), -3);
}

TEST_F(ShardPhasesTest, TheStateDoesNotWaitForWhoIsGone) {
  Start("asp", 2);
  AddPhase("allreduce", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), StatePullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(PullCode(Worker(0), StatePullAt(1, 7)), Outcome::kParked);
  RemoveWorker(1);
  EXPECT_EQ(AnswerIn(Publish(), 7), -1);
}

TEST_F(ShardPhasesTest, EachEntryOfAStateHasItsHash) {
  StartAllReduce();
  Message pull = StatePullAt(2, 7, 2);  // Of which another thread is the owner.
  TheOnlyPull(pull).add_shard(1);
  const ShardCore::Effects effects = Send(Worker(0), pull);
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::PullReply& reply = effects.sends[0].message.header.pull_reply();
  EXPECT_THAT(OutcomesOf(reply.answer()),
              ElementsAre(Outcome::kMoved, Outcome::kOk));
  EXPECT_EQ(reply.answer(1).state().hash(),
            StateHash(2, State(1).shard().values(), {}));
}

TEST_F(ShardPhasesTest, AnOrdinaryPullHasNoHashAndNoSlots) {
  optimizer_ = Adam();
  Start("asp", 1);
  const ShardCore::Effects effects = Send(Worker(0), PullOf(0, 7));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_TRUE(
      effects.sends[0].message.header.pull_reply().answer(0).has_values());
  EXPECT_THAT(effects.sends[0].message.payloads, SizeIs(1));
}

TEST_F(ShardPhasesTest, AGradientOfAStepByAllReduceIsRefused) {
  StartAllReduce();
  const wire::PushReply reply = Push(Worker(0), PushOf(2, 3, 5));
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRejected);
  EXPECT_THAT(reply.answer(0).refusal().rejected(),
              HasSubstr("rank 0 of clock 2: the step of that "
                        "clock is done by all-reduce"));
  EXPECT_EQ(reply.answer(0).accepted_seq(), 2u);
  EXPECT_EQ(Now(), -2);
  EXPECT_EQ(State().participants().MinClock(), 2);
}

// ---- From all-reduce to servers

TEST_F(ShardPhasesTest, TheFirstInstallationCountsAndBringsAllToTheClock) {
  StartAllReduce();
  const ShardCore::Effects effects = Send(Worker(1), InstallAt(5, 3, 9, 42));
  EXPECT_EQ(Now(), 42);
  EXPECT_EQ(State().shard().version(), 9u);
  EXPECT_EQ(State().complete_clock(), 5);
  for (const Participant& worker : State().participants())
    EXPECT_EQ(worker.clock, 5);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(
      effects.sends[0].message.header.push_reply().answer(0).accepted_seq(),
      3u);
  ASSERT_THAT(effects.trace, SizeIs(1));
  EXPECT_EQ(effects.trace[0].kind, ShardTraceRecord::Kind::kInstalled);
  EXPECT_EQ(effects.trace[0].rank, Rank{1});
  EXPECT_EQ(effects.trace[0].clock, 5);
  EXPECT_EQ(effects.trace[0].version, 9u);
}

TEST_F(ShardPhasesTest, LaterInstallationsAreAcknowledgedAndChangeNothing) {
  StartAllReduce();
  Send(Worker(1), InstallAt(5, 3, 9, 42));
  PushCode(Worker(1), PushOf(5, 4, 8));
  EXPECT_EQ(Now(), 38) << "asynchronous, as one of two";
  // By another one, and again by the same.
  EXPECT_EQ(Push(Worker(0), InstallAt(5, 3, 9, 42)).answer(0).accepted_seq(),
            3u);
  const ShardCore::Effects again = Send(Worker(1), InstallAt(5, 3, 9, 42));
  const wire::PushReply& reply = again.sends.at(0).message.header.push_reply();
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kOk);
  EXPECT_EQ(reply.answer(0).accepted_seq(), 4u);
  EXPECT_THAT(again.trace, IsEmpty());
  EXPECT_EQ(Now(), 38);
  EXPECT_EQ(State().shard().version(), 10u);
}

TEST_F(ShardPhasesTest, PullsOfTheClockWaitForTheInstallation) {
  StartAllReduce();
  Message pull = PullAt(5, 7);  // Asynchronous, but all-reduce was before.
  EXPECT_THAT(Send(Worker(0), pull).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), InstallAt(5, 3, 9, 42)), 7), 42);
}

TEST_F(ShardPhasesTest, AnInstallationWaitsForThePushesBeforeIt) {
  StartAllReduce();
  const wire::PushReply reply = Push(Worker(0), InstallAt(5, 4, 9, 42));
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRetry);
  EXPECT_EQ(reply.answer(0).accepted_seq(), 2u);
  EXPECT_EQ(Now(), -2);
}

TEST_F(ShardPhasesTest, AnInstallationThatIsWrongChangesNothing) {
  StartAllReduce();
  AddPhase("bsp", 8);  // After a phase over servers.
  Publish();
  Message other_bits = InstallAt(5, 3, 9, 42);
  other_bits.payloads[0] = Floats(43, kElements);
  Message other_version = InstallAt(5, 3, 9, 42);
  TheOnly(other_version).mutable_installation()->set_version(8);
  const struct {
    Message message;
    std::string error;
  } cases[] = {
      {InstallOf(view_.number(), 5, 3, 9, Floats(42, kElements - 1)),
       "a tensor of 12 bytes; the shard has 16"},
      {other_bits, "its bits are not those that the worker sent"},
      {other_version, "its bits are not those that the worker sent"},
      // The next update would count to a version that there is not.
      {InstallAt(5, 3, ~Version{0} >> 1, 42), "its version is above 2^60"},
      {InstallAt(4, 3, 9, 42), "no phase by all-reduce ends there"},
      {InstallAt(0, 3, 9, 42), "no phase by all-reduce ends there"},
      {InstallAt(2, 3, 9, 42), "no phase by all-reduce ends there"},
      {InstallAt(8, 3, 9, 42), "no phase by all-reduce ends there"},
  };
  const std::vector<std::string> before = Portrait(State());
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.error);
    const wire::PushReply reply = Push(Worker(0), wrong.message);
    EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRejected);
    EXPECT_THAT(reply.answer(0).refusal().rejected(), HasSubstr(wrong.error));
    EXPECT_THAT(reply.answer(0).refusal().rejected(),
                HasSubstr("weight[0, 4) by rank 0"));
    EXPECT_EQ(Portrait(State()), before);
  }
}

TEST_F(ShardPhasesTest, AnInstallationWhosePartsDoNotFitTogetherIsRefused) {
  optimizer_ = Adam();
  StartAllReduce();
  const std::vector<Payload> slots = {Floats(1, kElements),
                                      Floats(2, kElements)};
  const Message good =
      InstallOf(view_.number(), 5, 3, 9, Floats(42, kElements), slots);
  Message no_slots = good;
  no_slots.payloads.resize(1);
  Message gradient = good;
  TheOnly(gradient).set_gradient(9);
  Message advance = good;
  TheOnly(advance).mutable_advance();
  for (const Message& message : {no_slots, gradient, advance}) {
    const ShardCore::Effects effects = Send(Worker(0), message);
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_TRUE(effects.sends[0].message.header.has_error_reply());
    EXPECT_EQ(State().participants().MinClock(), 2);
  }
  const wire::PushReply reply =
      Push(Worker(0), InstallOf(view_.number(), 5, 3, 9, Floats(42, kElements),
                                {Floats(1, kElements)}));
  EXPECT_THAT(reply.answer(0).refusal().rejected(),
              HasSubstr("it has 1 optimizer slots, the table 2"));
  EXPECT_EQ(State().participants().MinClock(), 2);
  EXPECT_EQ(PushCode(Worker(0), good), Outcome::kOk);
  EXPECT_EQ(First(State().shard().slots()[1]), 2);
}

TEST_F(ShardPhasesTest, OneMessageInstallsSeveralShards) {
  optimizer_ = Adam();
  StartAllReduce();
  Message both = InstallOf(view_.number(), 5, 3, 9, Floats(1, kElements),
                           {Floats(2, kElements), Floats(3, kElements)}, 0);
  const Message second =
      InstallOf(view_.number(), 5, 3, 8, Floats(4, kElements),
                {Floats(5, kElements), Floats(6, kElements)}, 1);
  both.header.mutable_push_request()->MergeFrom(second.header.push_request());
  both.payloads.insert(both.payloads.end(), second.payloads.begin(),
                       second.payloads.end());
  EXPECT_THAT(OutcomesOf(Push(Worker(0), both).answer()),
              ElementsAre(Outcome::kOk, Outcome::kOk));
  EXPECT_EQ(Now(0), 1);
  EXPECT_EQ(First(State(0).shard().slots()[1]), 3);
  EXPECT_EQ(Now(1), 4);
  EXPECT_EQ(First(State(1).shard().slots()[0]), 5);
  EXPECT_EQ(State(1).shard().version(), 8u);
}

TEST_F(ShardPhasesTest, AnInstalledShardKeepsNoFrameOfTheNetwork) {
  StartAllReduce();
  std::vector<char> frame(1 + kElements * sizeof(float));
  std::memcpy(frame.data() + 1, Floats(42, kElements).data(),
              kElements * sizeof(float));
  Send(Worker(0), InstallOf(view_.number(), 5, 3, 9,
                            Payload::Wrap(frame.data() + 1,
                                          kElements * sizeof(float), 0)));
  std::fill(frame.begin(), frame.end(), 0);
  EXPECT_EQ(Now(), 42);
  PushCode(Worker(0), PushOf(5, 4, 2));
  EXPECT_EQ(Now(), 41);
}

// The twin has done by BSP what the workers did by all-reduce.
TEST_F(ShardPhasesTest, AfterTheInstallationAShardIsAsIfItHadDoneTheSteps) {
  optimizer_ = Adam();
  const auto gradient = [](int rank, Clock clock) {
    return 0.7f * static_cast<float>(clock) - 2.3f * static_cast<float>(rank);
  };
  const auto push = [&](Clock clock, uint64_t seq) {
    for (const int rank : {0, 1}) {
      EXPECT_EQ(
          PushCode(Worker(rank), PushOf(clock, seq, gradient(rank, clock))),
          Outcome::kOk);
    }
  };
  Start("bsp", 2);
  for (Clock clock = 0; clock < 5; ++clock) push(clock, clock + 1);
  const Version version = State().shard().version();
  const Payload values = State().shard().values();
  const std::vector<Payload> slots = State().shard().slots();
  for (Clock clock = 5; clock < 9; ++clock) push(clock, clock + 1);
  const std::vector<std::string> twin = Portrait(State());

  view_ = wire::View();
  Start("bsp", 2);
  AddPhase("allreduce", 2);
  AddPhase("bsp", 5);
  Publish();
  for (Clock clock = 0; clock < 2; ++clock) push(clock, clock + 1);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(PushCode(Worker(rank),
                       InstallOf(view_.number(), 5, 3, version, values, slots)),
              Outcome::kOk);
  }
  for (Clock clock = 5; clock < 9; ++clock) push(clock, clock - 1);
  std::vector<std::string> installed = Portrait(State());
  ASSERT_EQ(installed.size(), twin.size());
  // All but the sequence numbers.
  for (size_t i = 0; i + 2 < twin.size(); ++i) EXPECT_EQ(installed[i], twin[i]);
}

TEST_F(ShardPhasesTest, WhoJoinedDuringAllReduceInstallsAndTakesPart) {
  StartAllReduce();
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  view_.set_arrived(5);
  Publish();
  EXPECT_EQ(
      Push(Worker(2, 30), InstallAt(5, 1, 9, 42)).answer(0).accepted_seq(), 1u);
  EXPECT_EQ(Now(), 42);
  PushCode(Worker(2, 30), PushOf(5, 2, 9));
  EXPECT_EQ(Now(), 39) << "as one of three";
}

TEST_F(ShardPhasesTest, WhoJoinedDuringAllReduceMayPullBeforeTheInstallation) {
  StartAllReduce();
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  // Its view says already that all have arrived; ours does not.
  Message pull = PullAt(5, 7);
  pull.header.set_view_number(view_.number() + 1);
  EXPECT_EQ(PullCode(Worker(2, 30), pull), Outcome::kRetry);
  view_.set_arrived(5);
  Publish();
  EXPECT_EQ(PullCode(Worker(2, 30), pull), Outcome::kRetry);
  Send(Worker(0), InstallAt(5, 3, 9, 42));
  EXPECT_EQ(AnswerIn(Send(Worker(2, 30), pull), 7), 42);
}

TEST_F(ShardPhasesTest, WhoJoinsAfterAllHaveArrivedWaitsForTheInstallation) {
  StartAllReduce();
  view_.set_arrived(5);
  Publish();
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  const Message join = PullOf(0, 7, 0, /*join=*/true);
  EXPECT_EQ(PullCode(Worker(2, 30), join), Outcome::kRetry);
  Send(Worker(0), InstallAt(5, 3, 9, 42));
  const ShardCore::Effects effects = Send(Worker(2, 30), join);
  EXPECT_EQ(AnswerIn(effects, 7), 42);
  EXPECT_EQ(effects.sends[0]
                .message.header.pull_reply()
                .answer(0)
                .values()
                .shard_clock(),
            5);
}

TEST_F(ShardPhasesTest, WhoJoinsWhileOthersAllReduceTakesPartAtTheirStart) {
  StartAllReduce();
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  const ShardCore::Effects effects =
      Send(Worker(2, 30), PullOf(0, 7, 0, /*join=*/true));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0]
                .message.header.pull_reply()
                .answer(0)
                .values()
                .shard_clock(),
            2);
  EXPECT_EQ(AnswerIn(Send(Worker(2, 30), StatePullAt(2, 8)), 8), -2);
}

TEST_F(ShardPhasesTest, AnInstallationThatASenderGoneByNowMadeCounts) {
  StartAllReduce();
  Send(Worker(1), InstallAt(5, 3, 9, 42));
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(PushCode(Worker(0), InstallAt(5, 3, 9, 42)), Outcome::kOk);
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullAt(5, 7)), 7), 42);
  PushCode(Worker(0), PushOf(5, 4, 2));
  EXPECT_EQ(Now(), 40) << "as the only one";
}

TEST_F(ShardPhasesTest, WhoIsGoneInstallsNothing) {
  StartAllReduce();
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(PushCode(Worker(1), InstallAt(5, 3, 9, 42)), Outcome::kFenced);
  EXPECT_EQ(Now(), -2);
  EXPECT_EQ(PushCode(Worker(0), InstallAt(5, 3, 9, 41)), Outcome::kOk);
  EXPECT_EQ(Now(), 41);
}

TEST_F(ShardPhasesTest, WhenNoneIsLeftThatTookPartANewWorkerInstalls) {
  StartAllReduce();
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  RemoveWorker(0);
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(PushCode(Worker(2, 30), InstallAt(5, 1, 9, 42)), Outcome::kOk);
  EXPECT_EQ(AnswerIn(Send(Worker(2, 30), PullAt(5, 7)), 7), 42);
}

TEST_F(ShardPhasesTest, AnInstallationFromANewerViewHasToComeAgain) {
  StartAllReduce();
  const std::vector<std::string> before = Portrait(State());
  Message install = InstallAt(5, 3, 9, 42);
  install.header.set_view_number(view_.number() + 1);
  const wire::PushReply reply = Push(Worker(0), install);
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRetry);
  EXPECT_EQ(reply.answer(0).accepted_seq(), 2u);
  EXPECT_EQ(Portrait(State()), before);
}

TEST_F(ShardPhasesTest, AllReduceMayComeTwice) {
  StartAllReduce();
  AddPhase("allreduce", 6);
  AddPhase("bsp", 8);
  Publish();
  Send(Worker(0), InstallAt(5, 3, 9, 40));
  PushCode(Worker(0), PushOf(5, 4, 2));
  EXPECT_THAT(Send(Worker(0), StatePullAt(6, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(5, 3, 4)), 7), 37);
  EXPECT_EQ(PushCode(Worker(1), InstallAt(8, 4, 13, 30)), Outcome::kOk);
  EXPECT_EQ(AnswerIn(Send(Worker(0), PullAt(8, 8)), 8), 30);
  // What was sent before and comes late is of no use any more.
  EXPECT_EQ(PushCode(Worker(1), InstallAt(5, 2, 9, 40)), Outcome::kOk);
  EXPECT_EQ(Now(), 30);
}

}  // namespace slackline::shard_phases_test
