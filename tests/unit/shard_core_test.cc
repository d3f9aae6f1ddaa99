// Goal: what a shard thread does with each message, and that a message that
// makes no sense changes nothing and is answered with what is wrong with it.
// Method: one core of a small job; SGD with learning rate 1 from zeros, so that
// values show what was applied.
#include "server/shard/shard_core.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/support/dense_shard.h"
#include "tests/support/floats.h"
#include "tests/unit/shard_core_fixture.h"

namespace slackline::shard_core_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ShardCoreTest, BspAppliesTheMeanOfAClockOnceAllHavePushedIt) {
  Start("bsp", 3);
  EXPECT_EQ(PushCode(Worker(2), PushOf(0, 1, 3)), Outcome::kOk);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 6)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(0)), 0);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 9)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(0)), -6);
  EXPECT_EQ(core_->Stats().updates(), 1u);
}

TEST_F(ShardCoreTest, BspSumsInRankOrderWhateverTheOrderOfArrival) {
  // (2^24 + 1) + -2^24 is 0 in float, (2^24 + -2^24) + 1 is 1.
  const float big = 1 << 24;
  for (const auto& order :
       std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}}) {
    view_ = wire::View();
    Start("bsp", 3);
    const float gradients[] = {big, 1, -big};
    for (const int rank : order) {
      PushCode(Worker(rank), PushOf(0, 1, gradients[rank]));
    }
    EXPECT_EQ(Value(Worker(0)), 0);
  }
}

// So that a pull's answer is sent from where it is.
TEST_F(ShardCoreTest, VersionsAreMadeInTheGivenMemory) {
  struct Memory : PayloadMemory {
    Payload Allocate(size_t bytes) override {
      Payload payload = Payload::Allocate(bytes);
      made.insert(payload.data());
      return payload;
    }
    std::set<const std::byte*> made;
  };
  const auto memory = std::make_shared<Memory>();
  memory_ = memory;
  Start("asp", 1);
  const auto answer = [&](uint64_t request) {
    return Send(Worker(0), PullOf(0, request)).sends[0].message.payloads[0];
  };
  EXPECT_EQ(memory->made.count(answer(1).data()), 0u) << "initial values";
  std::vector<Payload> held;
  for (uint64_t push = 1; push <= 10; ++push) {
    PushCode(Worker(0), PushOf(static_cast<Clock>(push) - 1, push, 1));
    const Payload values = answer(push + 1);
    EXPECT_EQ(memory->made.count(values.data()), 1u) << "push " << push;
    if (push > 5) held.push_back(values);
  }
  EXPECT_THAT(memory->made, SizeIs(5)) << "one until they are held";
}

TEST_F(ShardCoreTest, AsyncPushesCountAsOneOfTheParticipants) {
  Start("asp", 4);
  PushCode(Worker(1), PushOf(0, 1, 8));
  EXPECT_EQ(Value(Worker(0)), -2);
}

TEST_F(ShardCoreTest, APullWaitsForTheSlowestAndItsPushAnswersIt) {
  Start("ssp:1", 2);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(0), PushOf(1, 2, 2));
  EXPECT_THAT(Send(Worker(0), PullOf(2, 7)).sends, IsEmpty());
  EXPECT_EQ(core_->Stats().pulls_parked(), 1);
  const ShardCore::Effects effects = Send(Worker(1), PushOf(0, 1, 4));
  ASSERT_THAT(effects.sends, SizeIs(2));
  const Outgoing& answer = effects.sends[1];
  EXPECT_EQ(answer.to, Worker(0));
  EXPECT_EQ(answer.message.header.pull_reply().answer(0).pull(), 7u);
  EXPECT_EQ(First(answer.message.payloads[0]), -4);
  EXPECT_EQ(core_->Stats().pulls_parked(), 0);
}

TEST_F(ShardCoreTest, AParkedPullThatIsRepeatedIsToldForWhomItWaits) {
  Start("bsp", 3);
  PushCode(Worker(0), PushOf(0, 1, 1));
  PushCode(Worker(2), PushOf(0, 1, 1));
  EXPECT_THAT(Send(Worker(0), PullOf(1, 7)).sends, IsEmpty());
  const ShardCore::Effects effects = Send(Worker(0), PullOf(1, 7));
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::PullReply& reply = effects.sends[0].message.header.pull_reply();
  ASSERT_THAT(OutcomesOf(reply.answer()), ElementsAre(Outcome::kParked));
  EXPECT_EQ(reply.answer(0).parked().rank(), 1);
  EXPECT_EQ(reply.answer(0).parked().clock(), 0);
}

TEST_F(ShardCoreTest, AnAnswerSaysForHowLongItsPullWasParked) {
  Start("bsp", 2);
  PushCode(Worker(0), PushOf(0, 1, 1));
  ShardCore::Effects effects;
  core_->OnTick(absl::UnixEpoch() + absl::Seconds(5), &effects);
  Send(Worker(0), PullOf(1, 7));
  core_->OnTick(absl::UnixEpoch() + absl::Seconds(6), &effects);
  Send(Worker(0), PullOf(1, 7));  // Asked again.
  core_->OnTick(absl::UnixEpoch() + absl::Milliseconds(7250), &effects);
  effects = Send(Worker(1), PushOf(0, 1, 1));
  ASSERT_THAT(effects.sends, SizeIs(2));
  const auto parked = [](const Outgoing& out) {
    return out.message.header.pull_reply().answer(0).values().parked_micros();
  };
  EXPECT_EQ(parked(effects.sends[1]), 2250000);
  effects = Send(Worker(1), PullOf(1, 8));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(parked(effects.sends[0]), 0) << "it was not";
}

TEST_F(ShardCoreTest, ALossReleasesWhoWaitedForTheLostWorker) {
  Start("bsp", 3);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(2), PushOf(0, 1, 4));
  Send(Worker(0), PullOf(1, 7));
  RemoveWorker(1);
  const ShardCore::Effects effects = Publish();
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].to, Worker(0));
  EXPECT_EQ(First(effects.sends[0].message.payloads[0]), -3)
      << "the mean of the two that pushed";
  EXPECT_EQ(core_->participant_count(), 2 * 2);
}

TEST_F(ShardCoreTest, AnAcknowledgedPushOfALostWorkerStillCounts) {
  Start("bsp", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  RemoveWorker(1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_EQ(Value(Worker(0)), -3);
}

TEST_F(ShardCoreTest, ARepeatedPushIsAcknowledgedAndNotAppliedAgain) {
  Start("asp", 1);
  EXPECT_EQ(Push(Worker(0), PushOf(0, 1, 5)).answer(0).accepted_seq(), 1u);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(0)), -5);
  EXPECT_EQ(core_->Stats().duplicates(), 1u);
}

TEST_F(ShardCoreTest, AGapIsToBeSentAgainAndChangesNothing) {
  Start("asp", 1);
  const wire::PushReply reply = Push(Worker(0), PushOf(1, 2, 5));
  EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRetry);
  EXPECT_EQ(reply.answer(0).accepted_seq(), 0u);
  EXPECT_EQ(Value(Worker(0)), 0);
}

TEST_F(ShardCoreTest, AProbeIsToldWhatIsAcceptedAndChangesNothing) {
  Start("asp", 2);
  PushCode(Worker(0), PushOf(0, 1, 1));
  PushCode(Worker(0), PushOf(1, 2, 1));
  const std::vector<std::string> before =
      Portrait(*core_->MachineOf(ShardId{0}));
  const run::ServerStats stats = core_->Stats();
  Message probe;
  probe.header.set_view_number(view_.number());
  probe.header.mutable_probe_request()->set_request_id(7);
  for (const int32_t shard : {1, 0, 2})
    probe.header.mutable_probe_request()->add_shard(shard);
  const ShardCore::Effects effects = Send(Worker(0), probe);
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::ProbeReply& reply = effects.sends[0].message.header.probe_reply();
  EXPECT_EQ(reply.request_id(), 7u);
  EXPECT_THAT(ShardsOf(reply.answer()), ElementsAre(1, 0, 2));
  EXPECT_THAT(OutcomesOf(reply.answer()),
              ElementsAre(Outcome::kOk, Outcome::kOk, Outcome::kMoved));
  EXPECT_EQ(reply.answer(0).accepted_seq(), 0u);
  EXPECT_EQ(reply.answer(1).accepted_seq(), 2u);
  EXPECT_EQ(reply.answer(2).refusal().moved().to().thread(), 1);
  EXPECT_EQ(Portrait(*core_->MachineOf(ShardId{0})), before);
  EXPECT_EQ(core_->Stats().duplicates(), stats.duplicates());
  EXPECT_EQ(core_->Stats().malformed(), stats.malformed());
}

TEST_F(ShardCoreTest, AProbeIsAnsweredBehindThePullsBeforeIt) {
  Start("asp", 1);
  ShardCore::Effects effects;
  core_->OnMessage(Worker(0), PullOf(0), &effects);
  Message probe;
  probe.header.set_view_number(view_.number());
  probe.header.mutable_probe_request()->add_shard(0);
  core_->OnMessage(Worker(0), probe, &effects);
  core_->Flush(&effects);
  ASSERT_THAT(effects.sends, SizeIs(2));
  EXPECT_TRUE(effects.sends[0].message.header.has_pull_reply());
  EXPECT_TRUE(effects.sends[1].message.header.has_probe_reply());
}

TEST_F(ShardCoreTest, AProbeOfNobodyOrOfNothingIsRefusedAsAPushIs) {
  Start("asp", 1);
  Message probe;
  probe.header.set_view_number(view_.number());
  probe.header.mutable_probe_request();
  EXPECT_TRUE(
      Send(Worker(0), probe).sends.at(0).message.header.has_error_reply());
  probe.header.mutable_probe_request()->add_shard(99);
  EXPECT_THAT(OutcomesOf(Send(Worker(0), probe)
                             .sends.at(0)
                             .message.header.probe_reply()
                             .answer()),
              ElementsAre(Outcome::kRejected));
  EXPECT_THAT(OutcomesOf(Send(Worker(7), probe)
                             .sends.at(0)
                             .message.header.probe_reply()
                             .answer()),
              ElementsAre(Outcome::kFenced));
}

TEST_F(ShardCoreTest, AReplyNamesTheTransmissionThatItAnswers) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 1);
  for (const uint64_t id : {5, 6}) {
    push.header.mutable_push_request()->set_request_id(id);
    EXPECT_EQ(Push(Worker(0), push).request_id(), id);
  }
}

TEST_F(ShardCoreTest, AnAnswerKeepsItsVersionWhilePushesGoOn) {
  Start("asp", 1);
  ShardCore::Effects effects;
  core_->OnMessage(Worker(0), PullOf(0, 1), &effects);
  for (uint64_t seq = 1; seq <= 5; ++seq) {
    core_->OnMessage(Worker(0), PushOf(seq - 1, seq, 1), &effects);
  }
  effects.sends.clear();
  core_->Flush(&effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(
      effects.sends[0].message.header.pull_reply().answer(0).values().version(),
      0u);
  EXPECT_EQ(First(effects.sends[0].message.payloads[0]), 0);
  EXPECT_EQ(Value(Worker(0)), -5);
}

TEST_F(ShardCoreTest, OneBatchAnswersARequestWithOneMessage) {
  Start("asp", 1);
  Message pull = PullOf(0, 3);
  TheOnlyPull(pull).add_shard(1);
  const ShardCore::Effects effects = Send(Worker(0), pull);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(ShardsOf(effects.sends[0].message.header.pull_reply().answer()),
              ElementsAre(0, 1));
  EXPECT_THAT(effects.sends[0].message.payloads, SizeIs(2));
}

TEST_F(ShardCoreTest, AJoinerStartsWithTheSlowestAndIsToldTheSameAgain) {
  Start("asp", 2);
  for (const int rank : {0, 1}) {
    PushCode(Worker(rank), PushOf(0, 1, 0));
    PushCode(Worker(rank), PushOf(1, 2, 0));
  }
  AddWorker(2, 30, /*founder=*/false);
  Publish();
  for (int time = 0; time < 2; ++time) {
    const ShardCore::Effects effects =
        Send(Worker(2, 30), PullOf(0, 1, 0, /*join=*/true));
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_EQ(effects.sends[0]
                  .message.header.pull_reply()
                  .answer(0)
                  .values()
                  .shard_clock(),
              2);
    for (const int rank : {0, 1}) {
      PushCode(Worker(rank), PushOf(2, 3, 0));
    }
    PushCode(Worker(2, 30), PushOf(2, 1, 0));
  }
}

TEST_F(ShardCoreTest, ADeclaredClockContributesNothing) {
  Start("bsp", 1);
  AddWorker(1, 30, /*founder=*/false);
  Publish();
  Send(Worker(1, 30), PullOf(0, 1, 0, /*join=*/true));
  EXPECT_EQ(PushCode(Worker(1, 30), AdvanceOf(2, 1)), Outcome::kOk);
  PushCode(Worker(0), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(0)), -4) << "the sum over one contributor";
  PushCode(Worker(0), PushOf(1, 2, 4));
  EXPECT_EQ(PushCode(Worker(1, 30), PushOf(2, 2, 10)), Outcome::kOk);
  PushCode(Worker(0), PushOf(2, 3, 2));
  EXPECT_EQ(Value(Worker(0)), -4 - 4 - 6);
}

TEST_F(ShardCoreTest, ABspPushAheadOfTheClockHasToWait) {
  Start("bsp", 2);
  PushCode(Worker(0), PushOf(0, 1, 1));
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 1)), Outcome::kRetry);
  PushCode(Worker(1), PushOf(0, 1, 1));
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 1)), Outcome::kOk);
}

TEST_F(ShardCoreTest, AStrangerOfANewerViewIsAskedToComeAgain) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 5);
  push.header.set_view_number(view_.number() + 1);
  EXPECT_EQ(PushCode(Worker(3), push), Outcome::kRetry);
  Message pull = PullOf(0, 4);
  pull.header.set_view_number(view_.number() + 1);
  const ShardCore::Effects effects = Send(Worker(3), pull);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(OutcomesOf(effects.sends[0].message.header.pull_reply().answer()),
              ElementsAre(Outcome::kRetry));
}

TEST_F(ShardCoreTest, AWorkerThatIsGoneIsFenced) {
  Start("asp", 2);
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 5)), Outcome::kFenced);
  EXPECT_EQ(PushCode(Worker(0, 77), PushOf(0, 1, 5)), Outcome::kFenced)
      << "another incarnation";
  EXPECT_EQ(Value(Worker(0)), 0);
}

// It may be a worker that has not heard of the end, and did well.
TEST_F(ShardCoreTest, AfterTheEndOfTheJobNobodyIsFenced) {
  for (const wire::JobState end : {wire::FINISHED, wire::FAILED}) {
    view_ = wire::View();
    Start("asp", 2);
    RemoveWorker(1);
    view_.set_state(end);
    Publish();
    for (const int rank : {0, 1}) {
      EXPECT_EQ(PushCode(Worker(rank), PushOf(0, 1, 5)), Outcome::kRetry);
      const ShardCore::Effects effects = Send(Worker(rank), PullOf(0, 7));
      ASSERT_THAT(effects.sends, SizeIs(1));
      EXPECT_THAT(
          OutcomesOf(effects.sends[0].message.header.pull_reply().answer()),
          ElementsAre(Outcome::kRetry));
    }
    EXPECT_EQ(core_->Stats().pushes(), 0u);
  }
}

// ---- The run ----------------------------------------------------------------

TEST_F(ShardCoreTest, AMessageOfAnotherRunIsRefusedByNameAndChangesNothing) {
  Start("asp", 1);
  view_.set_run(0xb0b);
  Publish();
  for (const uint64_t run : {uint64_t{0xa11ce}, uint64_t{0}}) {
    Message push = PushOf(0, 1, 5);
    push.header.set_run(run);
    Message pull = PullOf(0, 42);
    pull.header.set_run(run);
    const char* const whose =
        run == 0 ? "belongs to no run"
                 : "belongs to run a11ce of another start of the job";
    for (const auto& [message, kind] :
         {std::pair{push, "push"}, std::pair{pull, "pull"}}) {
      const ShardCore::Effects effects = Send(Worker(0), message);
      ASSERT_THAT(effects.sends, SizeIs(1));
      EXPECT_EQ(effects.sends[0].message.header.error_reply().error(),
                absl::StrCat("this ", kind, " ", whose,
                             "; this server serves run b0b"));
      EXPECT_THAT(effects.trace, IsEmpty());
    }
  }
  EXPECT_EQ(core_->Stats().malformed(), 4u);
  EXPECT_EQ(core_->Stats().pushes(), 0u);
  Message push = PushOf(0, 1, 5);
  push.header.set_run(0xb0b);
  const ShardCore::Effects effects = Send(Worker(0), push);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(OutcomesOf(effects.sends[0].message.header.push_reply().answer()),
              ElementsAre(Outcome::kOk));
  EXPECT_EQ(effects.sends[0].message.header.run(), 0xb0bu);
}

TEST_F(ShardCoreTest, ShardThreadsDoNotAnswerEachOthersRefusals) {
  Start("asp", 1);
  Message refusal;
  refusal.header.mutable_error_reply()->set_error("this push makes no sense");
  const ShardCore::Effects effects =
      Send({.kind = PeerId::Kind::kShardThread, .index = 1}, refusal);
  EXPECT_THAT(effects.sends, IsEmpty());
  EXPECT_EQ(core_->Stats().malformed(), 1u);
}

TEST_F(ShardCoreTest, BeforeTheFirstViewEverybodyIsAskedToComeAgain) {
  core_.emplace(ShardCore::Options{.self = {0, 0}},
                config::LearningRateSchedule());
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5)), Outcome::kRetry);
}

TEST_F(ShardCoreTest, AnOlderViewIsIgnored) {
  Start("asp", 2);
  wire::View old = view_;
  old.clear_worker();
  ShardCore::Effects effects;
  core_->OnView(*View::Create(old), &effects);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 5)), Outcome::kOk);
}

TEST_F(ShardCoreTest, AnotherThreadsShardIsMoved) {
  Start("asp", 1);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5, /*shard=*/2)), Outcome::kMoved);
}

// A push of shard 0 whose gradient is in this code.
Message InCode(Message push, const GradientCode& code,
               const std::vector<float>& gradient) {
  Payload bytes = Payload::Allocate(code.Bytes(gradient.size()));
  Rng rng(1);
  Encode(code, Keep::kLargest, gradient, &rng, bytes.MutableData());
  push.payloads = {bytes};
  *TheOnly(push).mutable_encoding() = EncodingOf(code, gradient.size());
  return push;
}

TEST_F(ShardCoreTest, AGradientInACodeIsAppliedAsWhatItStandsFor) {
  Start("asp", 1);
  const float before = Value(Worker(0));
  uint64_t seq = 0;
  float sum = 0;
  for (const GradientCode& code :
       {GradientCode{.kind = wire::Encoding::BFLOAT16},
        GradientCode{.kind = wire::Encoding::FLOAT16},
        GradientCode{.kind = wire::Encoding::INT8, .block = 2},
        GradientCode{.kind = wire::Encoding::SIGN, .block = 2},
        GradientCode{.kind = wire::Encoding::SPARSE, .block = 3, .kept = 1},
        GradientCode{.kind = wire::Encoding::FLOAT32}}) {
    const Message push = InCode(PushOf(static_cast<Clock>(seq), seq + 1, 0),
                                code, {-2, 2, 1, 0.5f});
    const uint64_t bytes_in = core_->Stats().bytes_in();
    ASSERT_EQ(PushCode(Worker(0), push), Outcome::kOk) << code.kind;
    EXPECT_EQ(core_->Stats().bytes_in() - bytes_in, push.payloads[0].size());
    ++seq;
    sum -= 2;
  }
  // SGD at a rate of 1.
  EXPECT_EQ(Value(Worker(0)), before - sum);
}

TEST_F(ShardCoreTest, StepsGetRoundedValuesAndTheTrainedModelDoesNot) {
  for (const wire::Encoding::Kind kind :
       {wire::Encoding::BFLOAT16, wire::Encoding::FLOAT16}) {
    SCOPED_TRACE(wire::Encoding::Kind_Name(kind));
    view_.Clear();
    pulled_as_ = kind;
    Start("asp", 2);
    uint64_t pull = 1;
    const auto answer = [&](int worker, Clock clock, bool exact) {
      Message message = PullOf(clock, ++pull);
      TheOnlyPull(message).mutable_step()->set_exact(exact);
      const ShardCore::Effects effects = Send(Worker(worker), message);
      EXPECT_THAT(effects.sends, SizeIs(1));
      return effects.sends.at(0).message;
    };
    for (Clock clock = 1; clock < 4; ++clock) {
      Push(Worker(0), PushOf(clock - 1, static_cast<uint64_t>(clock), 0.1f));
      const Payload values = core_->MachineOf(ShardId{0})->shard().values();
      const Message first = answer(0, clock, false);
      const Message second = answer(1, 0, false);
      const Message exact = answer(0, clock, true);
      EXPECT_EQ(first.header.pull_reply().answer(0).values().kind(), kind);
      ASSERT_EQ(first.payloads.at(0).size(), values.size() / 2);
      PayloadMemory memory;
      EXPECT_EQ(BytesOf(first.payloads[0]),
                BytesOf(RoundParameters(kind, values, memory)));
      EXPECT_EQ(second.payloads.at(0).data(), first.payloads[0].data())
          << "made once";
      EXPECT_EQ(exact.header.pull_reply().answer(0).values().kind(),
                wire::Encoding::FLOAT32);
      EXPECT_EQ(BytesOf(exact.payloads.at(0)), BytesOf(values));
      EXPECT_NE(BytesOf(ExpandParameters(kind, first.payloads[0])),
                BytesOf(values));
    }
  }
}

TEST_F(ShardCoreTest, AFrameThatIsNotInItsCodeIsRejected) {
  Start("asp", 1);
  const GradientCode sparse{
      .kind = wire::Encoding::SPARSE, .block = 4, .kept = 2};
  const std::vector<float> gradient = {1, 2, 3, 4};
  const Message good = InCode(PushOf(0, 1, 0), sparse, gradient);
  struct {
    const char* what;
    std::function<void(Message&)> spoil;
    const char* reason;
  } const cases[] = {
      {"a place twice", [](Message& m) { m.payloads[0] = Floats(0, 3); },
       "its frame is not in the code that it names"},
      {"too few bytes", [](Message& m) { m.payloads[0] = Floats(0, 2); },
       "8 bytes, the shard has 12"},
      {"of a shard of another size",
       [](Message& m) { TheOnly(m).mutable_encoding()->set_elements(3); },
       "3 elements, the shard has 4"},
      {"of no size",
       [](Message& m) { TheOnly(m).mutable_encoding()->set_elements(-1); },
       "-1 elements, the shard has 4"},
      {"the code of other bytes",
       [](Message& m) {
         TheOnly(m).mutable_encoding()->set_kind(wire::Encoding::FLOAT32);
       },
       "12 bytes, the shard has 16"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Message push = good;
    c.spoil(push);
    const wire::PushReply reply = Push(Worker(0), push);
    ASSERT_EQ(reply.answer_size(), 1);
    EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRejected);
    EXPECT_THAT(reply.answer(0).refusal().rejected(), HasSubstr(c.reason));
    EXPECT_EQ(core_->Stats().updates(), 0u);
  }
  EXPECT_EQ(PushCode(Worker(0), good), Outcome::kOk);
}

TEST_F(ShardCoreTest, ARejectedPushChangesNothingAndTheReasonSaysWhy) {
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 5));
  struct {
    const char* what;
    std::function<void(Message&)> spoil;
    const char* reason;
  } const cases[] = {
      {"a clock is left out", [](Message& m) { TheOnly(m).set_clock(3); },
       "push to weight[0, 4) by rank 0 of clock 3: its next clock is 1"},
      {"a clock comes again", [](Message& m) { TheOnly(m).set_clock(0); },
       "its next clock is 1"},
      {"too few bytes",
       [](Message& m) { m.payloads[0] = Floats(1, kElements - 1); },
       "12 bytes, the shard has 16"},
      {"no bytes", [](Message& m) { m.payloads[0] = Payload(); },
       "0 bytes, the shard has 16"},
      {"no such shard", [](Message& m) { TheOnly(m).set_shard(3); },
       "there is no shard 3: the job has 3 shards"},
      {"a negative shard", [](Message& m) { TheOnly(m).set_shard(-1); },
       "there is no shard -1"},
      {"declares an earlier clock",
       [](Message& m) {
         TheOnly(m).mutable_advance();
         TheOnly(m).set_clock(0);
         m.payloads.clear();
       },
       "its clock is already 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const uint64_t malformed = core_->Stats().malformed();
    Message push = PushOf(1, 2, 5);
    c.spoil(push);
    const wire::PushReply reply = Push(Worker(0), push);
    ASSERT_EQ(reply.answer_size(), 1);
    EXPECT_EQ(OutcomeOf(reply.answer(0)), Outcome::kRejected);
    EXPECT_THAT(reply.answer(0).refusal().rejected(), HasSubstr(c.reason));
    EXPECT_EQ(core_->Stats().malformed(), malformed + 1);
    EXPECT_EQ(core_->Stats().updates(), 1u);
  }
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 5)), Outcome::kOk)
      << "as if nothing had been";
}

TEST_F(ShardCoreTest, AMessageWhoseCountsDisagreeIsAnError) {
  Start("asp", 1);
  using Spoil = std::function<void(Message&)>;
  const std::vector<std::pair<const char*, Spoil>> pushes = {
      {"no shard",
       [](Message& m) {
         m.header.mutable_push_request()->Clear();
         m.payloads.clear();
       }},
      {"nothing that is pushed", [](Message& m) { TheOnly(m).clear_what(); }},
      {"too many entries",
       [](Message& m) {
         const wire::Push push = TheOnly(m);
         for (int i = 0; i < 5000; ++i) {
           *m.header.mutable_push_request()->add_push() = push;
           m.payloads.push_back(m.payloads[0]);
         }
       }},
      {"no payload", [](Message& m) { m.payloads.clear(); }},
      {"two payloads",
       [](Message& m) { m.payloads.push_back(Floats(1, kElements)); }},
      {"payload of a declaration",
       [](Message& m) { TheOnly(m).mutable_advance(); }},
      {"negative clock", [](Message& m) { TheOnly(m).set_clock(-1); }},
      {"the code of a declaration",
       [](Message& m) {
         TheOnly(m).mutable_advance();
         TheOnly(m).mutable_encoding();
         m.payloads.clear();
       }},
      {"a code that cannot be",
       [](Message& m) {
         TheOnly(m).mutable_encoding()->set_kind(wire::Encoding::SIGN);
       }},
      {"clock beyond all steps",
       [](Message& m) {
         TheOnly(m).set_clock(std::numeric_limits<int64_t>::max());
       }},
      {"no body", [](Message& m) { m.header.Clear(); }},
      {"a reply", [](Message& m) { m.header.mutable_push_reply(); }},
      {"a rate factor below 0",
       [](Message& m) { TheOnly(m).mutable_options()->set_rate_factor(-0.5); }},
      {"a rate factor that is no number",
       [](Message& m) {
         TheOnly(m).mutable_options()->set_rate_factor(std::nan(""));
       }},
      {"an infinite rate factor",
       [](Message& m) {
         TheOnly(m).mutable_options()->set_rate_factor(
             std::numeric_limits<double>::infinity());
       }},
      {"a rate factor that is too large",
       [](Message& m) {
         TheOnly(m).mutable_options()->set_rate_factor(kRateFactorMax * 1.01);
       }},
      {"a momentum of 1",
       [](Message& m) { TheOnly(m).mutable_options()->set_momentum(1); }},
      {"a momentum that is 1 as a float",
       [](Message& m) {
         TheOnly(m).mutable_options()->set_momentum(1 - 1e-12);
       }},
      {"a momentum that is no number",
       [](Message& m) {
         TheOnly(m).mutable_options()->set_momentum(std::nan(""));
       }},
      {"a rate factor of no gradient",
       [](Message& m) {
         TheOnly(m).mutable_advance();
         TheOnly(m).mutable_options()->set_rate_factor(1);
         m.payloads.clear();
       }},
      {"more slots than any rule has",
       [](Message& m) {
         TheOnly(m).mutable_installation()->set_slots(4);
         m.payloads.resize(5, Floats(1, kElements));
       }},
      {"fewer slots than none",
       [](Message& m) {
         TheOnly(m).mutable_installation()->set_slots(-1);
         m.payloads.clear();
       }},
  };
  for (const auto& [what, spoil] : pushes) {
    SCOPED_TRACE(what);
    Message push = PushOf(0, 1, 5);
    spoil(push);
    const ShardCore::Effects effects = Send(Worker(0), push);
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_FALSE(effects.sends[0].message.header.error_reply().error().empty());
    EXPECT_THAT(effects.trace, IsEmpty());
  }
  const std::vector<std::pair<const char*, Spoil>> pulls = {
      {"no entry",
       [](Message& m) { m.header.mutable_pull_request()->Clear(); }},
      {"no shard", [](Message& m) { TheOnlyPull(m).clear_shard(); }},
      {"too many shards",
       [](Message& m) {
         for (int i = 0; i < 5000; ++i) TheOnlyPull(m).add_shard(0);
       }},
      {"nothing that is pulled",
       [](Message& m) { TheOnlyPull(m).clear_what(); }},
      {"payload",
       [](Message& m) { m.payloads.push_back(Floats(1, kElements)); }},
      {"negative clock",
       [](Message& m) { TheOnlyPull(m).mutable_step()->set_clock(-1); }},
      {"own clock ahead",
       [](Message& m) { TheOnlyPull(m).mutable_step()->set_own_clock(1); }},
      {"more beside its shards than each of them may keep",
       [](Message& m) {
         TheOnlyPull(m)
             .GetReflection()
             ->MutableUnknownFields(&TheOnlyPull(m))
             ->AddLengthDelimited(1000, std::string(5000, 'x'));
       }},
      {"more than that, and shards whose numbers are short",
       [](Message& m) {
         wire::Pull& pull = TheOnlyPull(m);
         pull.mutable_shard()->Resize(1000, 1);
         pull.GetReflection()->MutableUnknownFields(&pull)->AddLengthDelimited(
             1000, std::string(5000, 'x'));
       }},
  };
  for (const auto& [what, spoil] : pulls) {
    SCOPED_TRACE(what);
    Message pull = PullOf(0, 42);
    spoil(pull);
    const ShardCore::Effects effects = Send(Worker(0), pull);
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_TRUE(effects.sends[0].message.header.has_error_reply());
    EXPECT_THAT(effects.trace, IsEmpty());
  }
  EXPECT_EQ(core_->Stats().malformed(), pushes.size() + pulls.size());
  EXPECT_EQ(Value(Worker(0)), 0);
}

TEST_F(ShardCoreTest, AGradientIsAppliedAtItsFactorOfTheRate) {
  Start("asp", 1);
  const std::vector<std::pair<double, float>> factors = {
      {0.5, -1}, {0, -1}, {4, -9}, {kRateFactorMax, -9 - 2e6f}};
  uint64_t seq = 0;
  for (const auto& [factor, value] : factors) {
    Message push = PushOf(static_cast<Clock>(seq), seq + 1, 2);
    TheOnly(push).mutable_options()->set_rate_factor(factor);
    EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
    EXPECT_EQ(First(core_->MachineOf(ShardId{0})->shard().values()), value);
    ++seq;
  }
}

TEST_F(ShardCoreTest, AMomentumWhereTheRuleHasNoneIsRefused) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 2);
  TheOnly(push).mutable_options()->set_momentum(0.5);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kRejected);
  EXPECT_EQ(First(core_->MachineOf(ShardId{0})->shard().values()), 0);
}

TEST_F(ShardCoreTest, ARateFactorMultipliesThatOfTheRuleForStaleGradients) {
  stale_.add_stale()->mutable_staleness_aware_rate();
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, 0));
  PushCode(Worker(0), PushOf(1, 2, 0));
  Message push = PushOf(2, 3, 8);  // Computed before the two: half the rate.
  TheOnly(push).mutable_options()->set_rate_factor(0.25);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  EXPECT_EQ(First(core_->MachineOf(ShardId{0})->shard().values()), -1);
}

// Two tables, in one shard each.
TEST_F(ShardCoreTest, EachTableHasItsRuleAndItsSlots) {
  Start("asp", 1);
  wire::View two = view_;
  two.clear_table();
  two.clear_owner_server();
  two.clear_owner_thread();
  for (const auto& rule : {Sgd(), Adam()}) {
    wire::Table& table = *two.add_table();
    table.set_name(absl::StrCat("t", two.table_size()));
    table.add_shape(kElements);
    table.set_shard_elements(kElements);
    table.set_first_shard(two.table_size() - 1);
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    *table.mutable_optimizer() = rule;
    two.add_owner_server(0);
    two.add_owner_thread(0);
  }
  ShardCore core({.self = {0, 0}}, config::LearningRateSchedule());
  ShardCore::Effects effects;
  core.OnView(*View::Create(two), &effects);
  Message push = PushOf(0, 1, 2, 0);
  *push.header.mutable_push_request()->add_push() =
      PushOf(0, 1, 2, 1).header.push_request().push(0);
  push.payloads.push_back(Floats(2, kElements));
  core.OnMessage(Worker(0), push, &effects);
  const Shard& plain = core.MachineOf(ShardId{0})->shard();
  const Shard& adam = core.MachineOf(ShardId{1})->shard();
  EXPECT_THAT(plain.slots(), IsEmpty());
  EXPECT_EQ(First(plain.values()), -2);
  ASSERT_THAT(adam.slots(), SizeIs(2));
  const Optimizer rule = *Optimizer::Create(Adam());
  Shard twin = DenseShard(two.table(1), adam.range(), 0, rule);
  PayloadMemory heap;
  const Payload gradient = Floats(2, kElements);
  ASSERT_TRUE(twin.ApplyMean(rule,
                             {.parts = absl::MakeConstSpan(&gradient, 1),
                              .count = 1,
                              .workers = 1},
                             {.learning_rate = rule.learning_rate()}, heap)
                  .ok());
  EXPECT_EQ(BytesOf(adam.values()), BytesOf(twin.values()));
  EXPECT_EQ(BytesOf(adam.slots()[1]), BytesOf(twin.slots()[1]));
}

TEST_F(ShardCoreTest, AnAbsurdBaseVersionOnlyCountsAsFresh) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 5);
  TheOnly(push).set_gradient(uint64_t{1} << 63);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  EXPECT_EQ(core_->Stats().missed_updates().max(), 0);
}

TEST_F(ShardCoreTest, AMemberThatHasNotJoinedTheShardIsToldTo) {
  Start("asp", 1);
  AddWorker(1, 30, /*founder=*/false);
  Publish();
  const wire::PushReply pushed = Push(Worker(1, 30), PushOf(0, 1, 5));
  EXPECT_THAT(pushed.answer(0).refusal().rejected(),
              HasSubstr("rank 1, which has not joined the shard"));
  const ShardCore::Effects effects = Send(Worker(1, 30), PullOf(0, 1));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(effects.sends[0]
                  .message.header.pull_reply()
                  .answer(0)
                  .refusal()
                  .rejected(),
              HasSubstr("send a join pull first"));
}

}  // namespace slackline::shard_core_test
