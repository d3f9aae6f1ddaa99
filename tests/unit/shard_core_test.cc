// Goal: what a shard thread does with each message, and that a message that
// makes no sense changes nothing and is answered with what is wrong with it;
// that a shard which moves or is split is the one that it would have been.
// Method: one core of a small job, or two with a link by hand; SGD with
// learning rate 1 from zeros, so that values show what was applied, or Adam,
// whose bits depend on everything that ever was.
#include "server/shard/shard_core.h"

#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/metrics/gradient_counts.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/support/modes.h"

namespace slackline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kElements = 4;  // Of shards 0 and 1, ours; shard 2 is another's.

config::Optimizer Sgd() {
  config::Optimizer config;
  config.mutable_sgd()->set_learning_rate(1);
  return config;
}

config::Optimizer Adam() {
  config::Optimizer config;
  config.mutable_adam()->set_learning_rate(0.1);
  return config;
}

// The rules of a sync block, for every table.
StaleRules StaleOf(const config::Sync& sync) {
  absl::StatusOr<StaleRules> rules = StaleRules::Create(sync);
  SL_CHECK(rules.ok(), rules.status().ToString());
  return *rules;
}

// A worker hands the shard back as it is after all steps before `clock`.
Message InstallOf(uint64_t view_number, Clock clock, uint64_t seq,
                  Version version, const Payload& values,
                  const std::vector<Payload>& slots = {}, int32_t shard = 0) {
  Message message;
  message.header.set_view_number(view_number);
  wire::Push& push = *message.header.mutable_push_request()->add_push();
  push.set_clock(clock);
  push.set_shard(shard);
  push.set_seq(seq);
  push.mutable_installation()->set_version(version);
  push.mutable_installation()->set_hash(StateHash(version, values, slots));
  message.payloads.push_back(values);
  message.payloads.insert(message.payloads.end(), slots.begin(), slots.end());
  return message;
}

// Of `worker` in its incarnation; 10 + rank unless said otherwise.
PeerId Worker(int rank, Incarnation incarnation = 0) {
  return {.kind = PeerId::Kind::kWorker,
          .index = rank,
          .instance = incarnation == 0 ? 10 + rank : incarnation};
}

// Of a message with one push, or with one pull.
wire::Push& TheOnly(Message& message) {
  return *message.header.mutable_push_request()->mutable_push(0);
}
wire::Pull& TheOnlyPull(Message& message) {
  return *message.header.mutable_pull_request()->mutable_pull(0);
}

std::string BytesOf(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     payload.size());
}

// Everything about a shard, to the last bit.
std::vector<std::string> Portrait(const ShardMachine& machine) {
  std::vector<std::string> portrait = {
      absl::StrCat("[", machine.shard().range().begin, ", ",
                   machine.shard().range().end, ") version ",
                   machine.shard().version(), " complete clock ",
                   machine.complete_clock(), " min clock ",
                   machine.participants().MinClock()),
      BytesOf(machine.shard().values())};
  for (const Payload& slot : machine.shard().slots())
    portrait.push_back(BytesOf(slot));
  for (const HeldGradient& held : machine.Snapshot().held) {
    portrait.push_back(absl::StrCat("held ", static_cast<int>(held.who.rank),
                                    ".", held.who.incarnation, " ",
                                    BytesOf(held.gradient)));
  }
  for (const Participant& p : machine.participants()) {
    portrait.push_back(absl::StrCat(
        "rank ", static_cast<int>(p.rank), ".", p.incarnation, " joined at ",
        p.joined_at, " clock ", p.clock, " next seq ", p.next_seq));
  }
  return portrait;
}

class ShardCoreTest : public ::testing::Test {
 protected:
  // Whatever happened, the counters say what became of each gradient.
  void TearDown() override {
    if (!core_.has_value()) return;
    EXPECT_EQ(UnaccountedGradients(core_->Stats()), 0);
  }

  // A running job with these founders, rank r in incarnation 10 + r.
  void Start(absl::string_view mode, int workers) {
    core_.emplace(ShardCore::Options{.self = {0, 0},
                                     .seed = 1,
                                     .trace = true,
                                     .stale = StaleOf(stale_),
                                     .nonfinite = nonfinite_},
                  *Optimizer::Create(optimizer_),
                  config::LearningRateSchedule());
    view_.set_number(2);
    view_.set_state(wire::RUNNING);
    AddPhase(mode, 0);
    view_.set_steps_total(100);
    view_.set_steps_per_epoch(100);
    wire::ServerMember& server = *view_.add_server();
    server.add_thread();
    server.add_thread();
    wire::Table& table = *view_.add_table();
    table.set_name("weight");
    table.add_shape(3 * kElements);
    table.set_shard_elements(kElements);
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    for (const int thread : {0, 0, 1}) {
      view_.add_owner_server(0);
      view_.add_owner_thread(thread);
    }
    for (int rank = 0; rank < workers; ++rank) {
      AddWorker(rank, 10 + rank, /*founder=*/true);
    }
    Publish();
  }

  // Of the next view.
  void AddPhase(absl::string_view mode, Clock from) {
    wire::Phase& phase = *view_.add_phase();
    *phase.mutable_mode() = ModeOf(mode);
    phase.set_from(from);
  }

  void AddWorker(int rank, Incarnation incarnation, bool founder) {
    wire::WorkerMember& worker = *view_.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(incarnation);
    worker.set_founder(founder);
  }

  void RemoveWorker(int rank) {
    for (int i = 0; i < view_.worker_size(); ++i) {
      if (view_.worker(i).rank() != rank) continue;
      view_.mutable_worker()->DeleteSubrange(i, 1);
      return;
    }
  }

  ShardCore::Effects Publish() {
    view_.set_number(view_.number() + 1);
    ShardCore::Effects effects;
    core_->OnView(*View::Create(view_), &effects);
    core_->Flush(&effects);
    return effects;
  }

  Message PushOf(Clock clock, uint64_t seq, float gradient, int32_t shard = 0) {
    Message message;
    message.header.set_view_number(view_.number());
    wire::Push& push = *message.header.mutable_push_request()->add_push();
    push.set_clock(clock);
    push.set_shard(shard);
    push.set_seq(seq);
    push.set_gradient(0);
    message.payloads.push_back(Floats(gradient, kElements));
    return message;
  }

  Message PullOf(Clock clock, uint64_t request_id = 1, int32_t shard = 0,
                 bool join = false) {
    Message message;
    message.header.set_view_number(view_.number());
    wire::Pull& pull = *message.header.mutable_pull_request()->add_pull();
    pull.set_id(request_id);
    pull.add_shard(shard);
    if (join) {
      pull.mutable_join();
    } else {
      pull.mutable_step()->set_clock(clock);
    }
    return message;
  }

  Message AdvanceOf(Clock clock, uint64_t seq, int32_t shard = 0) {
    Message message = PushOf(clock, seq, 0, shard);
    TheOnly(message).mutable_advance();
    message.payloads.clear();
    return message;
  }

  // One batch with this message.
  ShardCore::Effects Send(const PeerId& from, const Message& message) {
    ShardCore::Effects effects;
    core_->OnMessage(from, message, &effects);
    core_->Flush(&effects);
    return effects;
  }

  wire::PushReply Push(const PeerId& from, const Message& message) {
    for (const Outgoing& out : Send(from, message).sends) {
      if (out.to == from && out.message.header.has_push_reply()) {
        return out.message.header.push_reply();
      }
    }
    return wire::PushReply();
  }

  Outcome PushCode(const PeerId& from, const Message& message) {
    const wire::PushReply reply = Push(from, message);
    return reply.answer_size() == 1 ? OutcomeOf(reply.answer(0))
                                    : Outcome::kNone;
  }

  // The present value of the shard, as its own first element says.
  float Value(const PeerId& from, int32_t shard = 0) {
    const ShardCore::Effects effects = Send(from, PullOf(0, 999, shard));
    if (effects.sends.size() != 1 ||
        effects.sends[0].message.payloads.empty()) {
      ADD_FAILURE() << "no answer to a pull of clock 0";
      return 0;
    }
    return First(effects.sends[0].message.payloads[0]);
  }

  config::Optimizer optimizer_ = Sgd();
  config::Sync stale_;
  config::Train::Nonfinite nonfinite_ = config::Train::SKIP;
  wire::View view_;
  std::optional<ShardCore> core_;
};

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
  config::Optimizer sgd;
  sgd.mutable_sgd()->set_learning_rate(1);
  core_.emplace(ShardCore::Options{.self = {0, 0}}, *Optimizer::Create(sgd),
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
      {"clock beyond all steps",
       [](Message& m) {
         TheOnly(m).set_clock(std::numeric_limits<int64_t>::max());
       }},
      {"no body", [](Message& m) { m.header.Clear(); }},
      {"a reply", [](Message& m) { m.header.mutable_push_reply(); }},
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

TEST_F(ShardCoreTest, AnAbsurdBaseVersionOnlyCountsAsFresh) {
  Start("asp", 1);
  Message push = PushOf(0, 1, 5);
  TheOnly(push).set_gradient(uint64_t{1} << 63);
  EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk);
  EXPECT_EQ(core_->Stats().staleness_updates().max(), 0);
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

// ---- Phases -----------------------------------------------------------------

class ShardPhasesTest : public ShardCoreTest {
 protected:
  Message PullAt(Clock clock, uint64_t request_id = 1, int32_t shard = 0) {
    Message message = PullOf(clock, request_id, shard);
    TheOnlyPull(message).mutable_step()->set_own_clock(clock);
    return message;
  }
  Message StatePullAt(Clock clock, uint64_t request_id = 1, int32_t shard = 0) {
    Message message = PullAt(clock, request_id, shard);
    TheOnlyPull(message).mutable_state()->set_clock(clock);
    return message;
  }
  Message InstallAt(Clock clock, uint64_t seq, Version version, float value,
                    int32_t shard = 0) {
    return InstallOf(view_.number(), clock, seq, version,
                     Floats(value, kElements), {}, shard);
  }
  // The value that answers one of the pulls of this number, if one is answered.
  static std::optional<float> AnswerIn(const ShardCore::Effects& effects,
                                       uint64_t request_id) {
    for (const Outgoing& out : effects.sends) {
      const wire::PullReply& reply = out.message.header.pull_reply();
      if (reply.answer_size() == 1 && reply.answer(0).pull() == request_id &&
          OutcomeOf(reply.answer(0)) == Outcome::kOk) {
        return First(out.message.payloads.at(0));
      }
    }
    return std::nullopt;
  }
  Outcome PullCode(const PeerId& from, const Message& message) {
    const ShardCore::Effects effects = Send(from, message);
    if (effects.sends.size() != 1) return Outcome::kNone;
    return OutcomeOf(effects.sends[0].message.header.pull_reply().answer(0));
  }
  const ShardMachine& State(int32_t shard = 0) {
    const ShardMachine* const state = core_->MachineOf(ShardId{shard});
    SL_CHECK(state != nullptr, "the shard is not there");
    return *state;
  }
  // Without a pull, which might wait.
  float Now(int32_t shard = 0) { return First(State(shard).shard().values()); }

  // Both workers push both shards at clocks below `clock`.
  void PushUpTo(Clock clock, float gradient = 1) {
    for (Clock c = 0; c < clock; ++c) {
      for (const int rank : {0, 1}) {
        for (const int32_t shard : {0, 1})
          PushCode(Worker(rank), PushOf(c, c + 1, gradient, shard));
      }
    }
  }
  // Two workers, BSP, by all-reduce from 2 on and from 5 on asynchronous; both
  // have pushed what they do before that.
  void StartAllReduce() {
    Start("bsp", 2);
    AddPhase("allreduce", 2);
    AddPhase("asp", 5);
    Publish();
    PushUpTo(2);
  }
};

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

// ---- BACKUP and DSSP --------------------------------------------------------

class ShardBackupTest : public ShardPhasesTest {
 protected:
  void StartBackup(int workers, int backups) {
    Start(absl::StrCat("backup:", backups), workers);
    Publish();
  }
  std::optional<Clock> ShardClockIn(const ShardCore::Effects& effects) {
    for (const Outgoing& out : effects.sends) {
      const wire::PullReply& reply = out.message.header.pull_reply();
      if (reply.answer_size() == 1 && reply.answer(0).has_values())
        return reply.answer(0).values().shard_clock();
    }
    return std::nullopt;
  }
};

TEST_F(ShardBackupTest,
       AClockIsTheMeanOfTheFirstGradientsAndALateOneIsDropped) {
  StartBackup(3, 1);
  EXPECT_EQ(PushCode(Worker(2), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_THAT(Send(Worker(2), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(0), PushOf(0, 1, 6)), 7), -4) << "full rate";
  const wire::PushReply late = Push(Worker(1), PushOf(0, 1, 60));
  EXPECT_EQ(OutcomeOf(late.answer(0)), Outcome::kOk);
  EXPECT_EQ(late.answer(0).accepted_seq(), 1u);
  EXPECT_EQ(Now(), -4);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(core_->Stats().updates(), 1u);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 60)), Outcome::kOk)
      << "sent again";
  EXPECT_EQ(core_->Stats().dropped(), 1u);
}

TEST_F(ShardBackupTest, TheFirstGradientsAreSummedInRankOrder) {
  const float big = 1 << 24;
  for (const auto& order :
       std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}}) {
    view_ = wire::View();
    StartBackup(4, 1);
    const float gradients[] = {big, 1, -big};
    for (const int rank : order) {
      PushCode(Worker(rank), PushOf(0, 1, gradients[rank]));
    }
    EXPECT_EQ(Now(), 0);
  }
}

TEST_F(ShardBackupTest, AnAnswerSaysHowFarTheShardIs) {
  StartBackup(3, 1);
  for (Clock clock = 0; clock < 3; ++clock) {
    for (const int rank : {0, 1})
      PushCode(Worker(rank), PushOf(clock, clock + 1, 2));
  }
  PushCode(Worker(2), PushOf(0, 1, 9));
  EXPECT_EQ(ShardClockIn(Send(Worker(2), PullAt(1, 7))), 3);
  EXPECT_EQ(PushCode(Worker(2), AdvanceOf(3, 2)), Outcome::kOk);
  PushCode(Worker(2), PushOf(3, 3, 4));
  PushCode(Worker(0), PushOf(3, 4, 8));
  EXPECT_EQ(Now(), -6 - 6) << "who has caught up counts";
}

TEST_F(ShardBackupTest, WhoSkipsAClockIsWaitedForNoMore) {
  StartBackup(3, 1);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), AdvanceOf(1, 1));
  EXPECT_EQ(Now(), 0) << "rank 2 may still push";
  PushCode(Worker(2), AdvanceOf(1, 1));
  EXPECT_EQ(Now(), -2);
}

TEST_F(ShardBackupTest, OfTheLiveWorkersAllButTheBackupsAreNeeded) {
  StartBackup(4, 1);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), 0);
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(Now(), -3) << "2 of 3, and the dead worker's counts";
  for (const int rank : {2, 3}) {
    RemoveWorker(rank);
    Publish();
  }
  EXPECT_EQ(Now(), -3);
  PushCode(Worker(0), PushOf(1, 2, 5));
  EXPECT_EQ(Now(), -8) << "at least one";
}

TEST_F(ShardBackupTest, AJoinerStartsAtTheShardsClockNotAtTheSlowest) {
  StartBackup(3, 1);
  for (const int rank : {0, 1}) PushCode(Worker(rank), PushOf(0, 1, 2));
  AddWorker(3, 13, /*founder=*/false);
  Publish();
  EXPECT_EQ(ShardClockIn(Send(Worker(3), PullOf(0, 7, 0, /*join=*/true))), 1);
}

TEST_F(ShardBackupTest, TheModeAfterItBeginsWhenItsClocksAreComplete) {
  StartBackup(3, 1);
  AddPhase("asp", 1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(1), PushOf(0, 1, 4)), 7), -3);
  PushCode(Worker(0), PushOf(1, 2, 30));
  EXPECT_EQ(Now(), -13) << "asynchronous, one of three";
  PushCode(Worker(2), PushOf(0, 1, 60));
  EXPECT_EQ(Now(), -13) << "late for the phase before";
}

TEST_F(ShardBackupTest, BspAfterItWaitsForAll) {
  StartBackup(3, 1);
  AddPhase("bsp", 1);
  Publish();
  for (const int rank : {0, 1}) PushCode(Worker(rank), PushOf(0, 1, 2));
  EXPECT_THAT(Send(Worker(0), PullAt(1, 7)).sends, IsEmpty());
  EXPECT_EQ(AnswerIn(Send(Worker(2), PushOf(0, 1, 60)), 7), -2);
}

class ShardDsspTest : public ShardPhasesTest {
 protected:
  // Bounds 1 to 4; the leader pushes every 10 ms, the other one at 0 and 35.
  ShardDsspTest() {
    Start("dssp:1:4", 2);
    for (Clock clock = 0; clock < 3; ++clock) PushAt(0, clock, 10 * clock);
    PushAt(1, 0, 0);
  }
  void PushAt(int rank, Clock clock, int at_ms) {
    ShardCore::Effects effects;
    core_->OnTick(absl::UnixEpoch() + absl::Milliseconds(at_ms), &effects);
    EXPECT_EQ(PushCode(Worker(rank), PushOf(clock, clock + 1, 2)),
              Outcome::kOk);
  }
  bool Answered(Clock clock) {
    return AnswerIn(Send(Worker(0), PullAt(clock, 50 + clock)), 50 + clock)
        .has_value();
  }
};

TEST_F(ShardDsspTest, WithoutMeasurementsTheSmallestBoundHolds) {
  EXPECT_FALSE(Answered(3));
}

TEST_F(ShardDsspTest, MeasuredSpeedsCarryTheLeaderBeyondTheSmallestBound) {
  PushAt(0, 3, 30);
  PushAt(1, 1, 35);
  PushAt(0, 4, 40);
  // The next push of the slow one is due at 70, after 3 more steps.
  for (Clock clock = 5; clock < 7; ++clock) {
    EXPECT_TRUE(Answered(clock)) << clock;
    PushAt(0, clock, 10 * static_cast<int>(clock));
  }
  EXPECT_FALSE(Answered(7)) << "granted, but beyond the largest bound";
  ShardCore::Effects effects;
  core_->OnTick(absl::UnixEpoch() + absl::Milliseconds(75), &effects);
  EXPECT_TRUE(AnswerIn(Send(Worker(1), PushOf(2, 3, 2)), 57).has_value());
  EXPECT_EQ(core_->Stats().staleness_clocks().max(), 4);
}

TEST_F(ShardDsspTest, APullWithinTheSmallestBoundGoesAtOnce) {
  EXPECT_TRUE(Answered(2));
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
       "a tensor has 12 bytes, the shard 16"},
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

// ---- Stale gradients --------------------------------------------------------

TEST_F(ShardCoreTest, CompensatesFromTheVersionThatTheWorkerWasAnswered) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  Start("asp", 2);
  Send(Worker(0), PullOf(0, 1));
  Send(Worker(1), PullOf(0, 1));
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 4)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -2);  // Rate 1 / 2; it misses nothing.
  // 2 + 0.5 * 4 * (-2 - 0) = -2, and -2 - 1/2 * -2 = -1.
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -1);
}

TEST_F(ShardCoreTest, CompensatesNothingIfTheVersionIsNotKnown) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
  Start("asp", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(1)), -3);
}

TEST_F(ShardCoreTest, ADroppedGradientIsAcknowledgedCountedAndNotApplied) {
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0.5);
  Start("ssp:5", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  PushCode(Worker(1), PushOf(1, 2, 4));
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk);  // Misses two.
  EXPECT_EQ(Value(Worker(1)), -4);
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(core_->Stats().updates(), 2u);
  EXPECT_EQ(core_->MachineOf(ShardId{0})->participants().MinClock(), 1);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 2)), Outcome::kOk) << "repeated";
  EXPECT_EQ(core_->Stats().dropped(), 1u);
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 2)), Outcome::kOk)
      << "the next one";
}

TEST_F(ShardCoreTest, StalenessAwareRateIsThatOfTheGradientsDelay) {
  stale_.add_stale()->mutable_staleness_aware_rate();
  Start("asp", 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(1)), -4);  // Nothing missed: the whole rate.
  PushCode(Worker(1), PushOf(1, 2, 0));
  PushCode(Worker(1), PushOf(2, 3, 0));
  PushCode(Worker(1), PushOf(3, 4, 0));
  PushCode(Worker(0), PushOf(0, 1, 2));  // Misses four: 1 / 4.
  EXPECT_EQ(Value(Worker(1)), -4.5);
}

TEST_F(ShardCoreTest, InBspNoGradientIsStale) {
  stale_.add_stale()->mutable_scale();
  Start("bsp", 2);
  PushCode(Worker(0), PushOf(0, 1, 4));
  PushCode(Worker(1), PushOf(0, 1, 4));
  PushCode(Worker(0), PushOf(1, 2, 4));  // Its base version is said to be 0.
  PushCode(Worker(1), PushOf(1, 2, 4));
  EXPECT_EQ(Value(Worker(1)), -8);
}

// ---- Gradients with a NaN or an infinity ------------------------------------

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rank, gradients, last clock and last shard of each worker's.
std::vector<std::string> Nonfinite(const ShardCore& core) {
  std::vector<std::string> lines;
  const run::ServerStats stats = core.Stats();
  for (const run::NonfiniteGradients& count : stats.nonfinite()) {
    lines.push_back(absl::StrCat("rank ", count.rank(), ": ", count.gradients(),
                                 ", last of clock ", count.last_clock(),
                                 " for shard ", count.last_shard()));
  }
  return lines;
}

TEST_F(ShardCoreTest, AGradientThatIsNotFiniteCountsAsSentAndChangesNothing) {
  for (const char* mode : {"ssp:3", "dssp:3:3", "asp"}) {
    view_ = wire::View();
    Start(mode, 2);
    Message push = PushOf(0, 1, 2);
    const float broken[kElements] = {1, 1, kNan, 1};
    push.payloads[0] = Payload::Copy(broken, sizeof(broken));
    const wire::PushReply reply = Push(Worker(0), push);
    EXPECT_THAT(OutcomesOf(reply.answer()), ElementsAre(Outcome::kOk));
    EXPECT_EQ(reply.answer(0).accepted_seq(), 1u);
    EXPECT_EQ(PushCode(Worker(0), push), Outcome::kOk) << "sent again";
    EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, -kInfinity)), Outcome::kOk);
    EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 4)), Outcome::kOk);
    EXPECT_EQ(Value(Worker(0)), -2);
    const ShardMachine& state = *core_->MachineOf(ShardId{0});
    EXPECT_EQ(state.shard().version(), 1u);
    EXPECT_EQ(state.participants().MinClock(), 1);
    EXPECT_EQ(core_->Stats().pushes(), 3u);
    EXPECT_EQ(core_->Stats().applied(), 1u);
    EXPECT_THAT(Nonfinite(*core_),
                ElementsAre("rank 0: 2, last of clock 1 for shard 0"));
  }
}

TEST_F(ShardCoreTest, AClockOfBspIsTheMeanOfTheFiniteGradients) {
  Start("bsp", 3);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(1), PushOf(0, 1, kNan));
  EXPECT_EQ(Value(Worker(0)), 0);
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(0)), -3);
  for (const int rank : {2, 1, 0})
    EXPECT_EQ(PushCode(Worker(rank), PushOf(1, 2, kInfinity)), Outcome::kOk);
  EXPECT_EQ(Value(Worker(0)), -3) << "none is left";
  EXPECT_EQ(core_->MachineOf(ShardId{0})->complete_clock(), 2)
      << "complete all the same";
  EXPECT_EQ(core_->Stats().updates(), 1u);
  PushCode(Worker(0), PushOf(2, 3, 6));
  PushCode(Worker(1), PushOf(2, 3, 6));
  PushCode(Worker(2), PushOf(2, 3, 6));
  EXPECT_EQ(Value(Worker(0)), -9);
  EXPECT_THAT(Nonfinite(*core_),
              ElementsAre("rank 1: 2, last of clock 1 for shard 0",
                          "rank 2: 1, last of clock 1 for shard 0",
                          "rank 0: 1, last of clock 1 for shard 0"));
}

TEST_F(ShardBackupTest, ANonfiniteGradientIsNoneOfTheFirstOnes) {
  StartBackup(3, 1);
  PushCode(Worker(0), PushOf(0, 1, kNan));
  PushCode(Worker(1), PushOf(0, 1, 2));
  EXPECT_EQ(Now(), 0) << "one more is needed";
  PushCode(Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Now(), -3);
  EXPECT_EQ(core_->Stats().dropped(), 0u);
}

TEST_F(ShardCoreTest, TheJobIsToldAtOnceIfItIsToStop) {
  for (const auto policy : {config::Train::STOP, config::Train::SKIP}) {
    nonfinite_ = policy;
    view_ = wire::View();
    Start("bsp", 2);
    EXPECT_FALSE(Send(Worker(0), PushOf(0, 1, 1)).report);
    EXPECT_EQ(Send(Worker(1), PushOf(0, 1, kNan)).report,
              policy == config::Train::STOP);
    EXPECT_EQ(Value(Worker(0)), -1);
  }
}

TEST_F(ShardCoreTest, ARuleForStaleGradientsMakesNothingInfinite) {
  stale_.add_stale()->mutable_delay_compensation()->set_lambda(1);
  Start("asp", 1);
  Send(Worker(0), PullOf(0, 1));
  PushCode(Worker(0), PushOf(0, 1, 1e15F));
  // Finite, but 1e15 + 1e30 * -1e15 is not.
  PushCode(Worker(0), PushOf(1, 2, 1e15F));
  EXPECT_EQ(Value(Worker(0)), -1e15F);
  EXPECT_THAT(Nonfinite(*core_),
              ElementsAre("rank 0: 1, last of clock 1 for shard 0"));
}

TEST_F(ShardCoreTest, ARuleRemembersNothingOfAGradientThatIsNotFinite) {
  auto& rule = *stale_.add_stale()->mutable_adaptive_delay_compensation();
  rule.set_lambda(1);
  rule.set_decay(0.5);
  Start("asp", 1);
  PushCode(Worker(0), PushOf(0, 1, kNan));
  PushCode(Worker(0), PushOf(1, 2, 2));
  PushCode(Worker(0), PushOf(2, 3, 2));
  EXPECT_EQ(Value(Worker(0)), -4);
}

TEST_F(ShardCoreTest, ADiscardedGradientIsOneEntryOfTheTrace) {
  Start("asp", 2);
  const ShardCore::Effects effects = Send(Worker(1), PushOf(0, 1, kNan));
  ASSERT_THAT(effects.trace, SizeIs(1));
  EXPECT_EQ(effects.trace[0].kind, ShardTraceRecord::Kind::kPushDiscarded);
  EXPECT_EQ(effects.trace[0].rank, Rank{1});
  EXPECT_EQ(effects.trace[0].clock, 0);
}

// ---- Two threads ------------------------------------------------------------

PeerId Thread(int server) {
  return {.kind = PeerId::Kind::kShardThread, .index = server, .instance = 0};
}

// Servers 0 and 1 with one thread each. Shards 0 and 1 are on server 0 at
// first, shard 2 on server 1. What the threads tell each other lies on a wire
// until it is delivered.
class ShardMoveTest : public ::testing::Test {
 protected:
  ShardMoveTest() {
    hand_over_.part_bytes = 8;  // Half a tensor.
    hand_over_.window_bytes = 8;
  }
  // Whatever moved, the counters of both say what became of each gradient.
  void TearDown() override {
    if (!cores_[0].has_value() || !cores_[1].has_value()) return;
    // What is on its way at the end is in neither of them.
    for (const auto& core : cores_) {
      const run::ServerStats stats = core->Stats();
      for (const run::HandOverState& state : stats.hand_over()) {
        if (state.state() == run::HandOverState::LOST) return;
        if (state.state() == run::HandOverState::COPYING &&
            !core->Owns(ShardId{state.shard()})) {
          return;
        }
      }
    }
    EXPECT_EQ(UnaccountedGradients(cores_[0]->Stats()) +
                  UnaccountedGradients(cores_[1]->Stats()),
              0);
  }

  void Start(absl::string_view mode, int workers, bool adam = false) {
    for (const int server : {0, 1}) {
      cores_[server].emplace(
          ShardCore::Options{.self = {server, 0},
                             .seed = 1,
                             .hand_over = hand_over_,
                             .stale = StaleOf(stale_),
                             .waiting_max = waiting_max_,
                             .waiting_bytes_max = waiting_bytes_max_,
                             .waiting_bytes_max_all = waiting_bytes_max_all_},
          *Optimizer::Create(adam ? Adam() : Sgd()),
          config::LearningRateSchedule());
    }
    view_.set_number(2);
    view_.set_state(wire::RUNNING);
    *view_.add_phase()->mutable_mode() = ModeOf(mode);
    view_.set_steps_total(100);
    view_.set_steps_per_epoch(100);
    for (const int server : {0, 1}) {
      view_.add_server()->set_index(server);
      view_.mutable_server(server)->add_thread();
    }
    wire::Table& table = *view_.add_table();
    table.set_name("weight");
    table.add_shape(3 * kElements);
    table.set_shard_elements(kElements);
    table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
    for (const int server : {0, 0, 1}) {
      view_.add_owner_server(server);
      view_.add_owner_thread(0);
    }
    for (int rank = 0; rank < workers; ++rank)
      AddWorker(rank, 10 + rank, /*founder=*/true);
    Show();
  }

  // ---- The view.

  void AddWorker(int rank, Incarnation incarnation, bool founder = false) {
    wire::WorkerMember& worker = *view_.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(incarnation);
    worker.set_founder(founder);
  }
  void RemoveWorker(int rank) {
    for (int i = 0; i < view_.worker_size(); ++i) {
      if (view_.worker(i).rank() != rank) continue;
      view_.mutable_worker()->DeleteSubrange(i, 1);
      return;
    }
  }
  // These change the next view.
  void Move(int32_t shard, int server) {
    wire::Move& move = *view_.add_move();
    move.set_shard(shard);
    move.set_server(server);
    move.set_id(view_.number() + 1);
  }
  void Commit(int32_t shard) {
    for (int i = 0; i < view_.move_size(); ++i) {
      if (view_.move(i).shard() != shard) continue;
      view_.set_owner_server(shard, view_.move(i).server());
      view_.mutable_move()->DeleteSubrange(i, 1);
      return;
    }
  }
  void Split(int32_t shard, int64_t at) {
    wire::Split& split = *view_.add_split();
    split.set_shard(shard);
    split.set_at(at);
    split.set_since(view_.number() + 1);
    view_.add_owner_server(view_.owner_server(shard));
    view_.add_owner_thread(0);
  }
  void NextView() { view_.set_number(view_.number() + 1); }
  void ShowTo(int server) {
    ShardCore::Effects effects;
    cores_[server]->OnView(*View::Create(view_), &effects);
    Take(server, std::move(effects));
  }
  void Show() {
    NextView();
    for (const int server : {0, 1}) ShowTo(server);
  }

  // ---- Messages.

  struct OnTheWire {
    int from = 0;
    int to = 0;
    Message message;
  };

  // Ends the batch and sends what came of it.
  void Take(int server, ShardCore::Effects effects) {
    cores_[server]->Flush(&effects);
    reported_[server] |= effects.report;
    for (Outgoing& out : effects.sends) {
      if (out.to.kind == PeerId::Kind::kShardThread) {
        wire_.push_back({server, out.to.index, std::move(out.message)});
      } else {
        replies_.push_back(std::move(out));
      }
    }
  }
  void Send(int server, const PeerId& from, const Message& message) {
    ShardCore::Effects effects;
    cores_[server]->OnMessage(from, message, &effects);
    Take(server, std::move(effects));
  }
  // At most so many messages between the threads.
  void Deliver(int count = 1000) {
    for (; count > 0 && !wire_.empty(); --count) {
      const OnTheWire next = std::move(wire_.front());
      wire_.pop_front();
      Send(next.to, Thread(next.from), next.message);
    }
  }
  void Tick(absl::Duration time) {
    now_ += time;
    for (const int server : {0, 1}) {
      ShardCore::Effects effects;
      cores_[server]->OnTick(now_, &effects);
      Take(server, std::move(effects));
    }
  }
  // The whole of a move, up to the view that says that it is done.
  void MoveNow(int32_t shard, int server) {
    Move(shard, server);
    Show();
    Deliver();
    Commit(shard);
    Show();
    ASSERT_TRUE(cores_[server]->Owns(ShardId{shard}));
  }

  Message PushOf(Clock clock, uint64_t seq, float gradient, int32_t shard = 0,
                 int elements = kElements) {
    Message message;
    message.header.set_view_number(view_.number());
    wire::Push& push = *message.header.mutable_push_request()->add_push();
    push.set_clock(clock);
    push.set_shard(shard);
    push.set_seq(seq);
    push.set_gradient(0);
    message.payloads.push_back(Floats(gradient, elements));
    return message;
  }
  Message PullOf(Clock clock, uint64_t request_id = 1, int32_t shard = 0) {
    Message message;
    message.header.set_view_number(view_.number());
    wire::Pull& pull = *message.header.mutable_pull_request()->add_pull();
    pull.set_id(request_id);
    pull.mutable_step()->set_clock(clock);
    pull.mutable_step()->set_own_clock(clock);
    pull.add_shard(shard);
    return message;
  }
  Message JoinPullOf(uint64_t request_id = 1) {
    Message message = PullOf(0, request_id);
    TheOnlyPull(message).mutable_join();
    return message;
  }

  // What the workers were told since the last call: "rank 0: push 0 OK acked
  // 1", "rank 0: pull 7 of 0 OK -3", "... MOVED to 1 as of 4".
  std::vector<std::string> Replies() {
    std::vector<std::string> lines;
    for (const Outgoing& out : replies_) {
      const wire::Header& header = out.message.header;
      const std::string who = absl::StrCat("rank ", out.to.index, ": ");
      const auto relocated = [](const wire::Refusal& refusal) {
        if (!refusal.moved().has_to()) return std::string();
        return absl::StrCat(" to ", refusal.moved().to().server(), " as of ",
                            refusal.moved().to().as_of());
      };
      for (const wire::PushAnswer& answer : header.push_reply().answer()) {
        lines.push_back(absl::StrCat(
            who, "push ", answer.shard(), " ", WordFor(OutcomeOf(answer)),
            answer.has_refusal()
                ? relocated(answer.refusal())
                : absl::StrCat(" acked ", answer.accepted_seq())));
      }
      size_t payload = 0;
      for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
        lines.push_back(absl::StrCat(
            who, "pull ", answer.pull(), " of ", answer.shard(), " ",
            WordFor(OutcomeOf(answer)),
            OutcomeOf(answer) == Outcome::kOk
                ? absl::StrCat(" ", First(out.message.payloads.at(payload++)))
                : relocated(answer.refusal())));
      }
      if (header.has_error_reply())
        lines.push_back(absl::StrCat(who, header.error_reply().error()));
    }
    replies_.clear();
    return lines;
  }

  const ShardMachine& State(int server, int32_t shard) {
    const ShardMachine* const state = cores_[server]->MachineOf(ShardId{shard});
    SL_CHECK(state != nullptr, "the shard is not there");
    return *state;
  }
  float Value(int server, int32_t shard = 0) {
    return First(State(server, shard).shard().values());
  }
  std::vector<run::HandOverState::State> HandOverStates(int server) {
    std::vector<run::HandOverState::State> states;
    const run::ServerStats stats = cores_[server]->Stats();
    for (const run::HandOverState& state : stats.hand_over())
      states.push_back(state.state());
    return states;
  }

  HandOverOptions hand_over_;
  size_t waiting_max_ = 4096;
  size_t waiting_bytes_max_ = 1 << 20;
  size_t waiting_bytes_max_all_ = 1 << 20;
  config::Sync stale_;
  absl::Time now_ = absl::UnixEpoch();
  wire::View view_;
  std::optional<ShardCore> cores_[2];
  std::deque<OnTheWire> wire_;
  std::vector<Outgoing> replies_;
  bool reported_[2] = {false, false};
};

// ---- Moves ------------------------------------------------------------------

TEST_F(ShardMoveTest, AMovedShardGoesOnWhereItWas) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  MoveNow(0, 1);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_TRUE(cores_[0]->Owns(ShardId{1})) << "the other one stays";
  Send(1, Worker(0), PushOf(1, 2, 2));
  Send(1, Worker(0), PullOf(2, 7));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 0 OK acked 2",
                                     "rank 0: pull 7 of 0 OK -7"));
  EXPECT_EQ(State(1, 0).shard().version(), 2u);
  EXPECT_EQ(cores_[0]->moves_count() + cores_[1]->moves_count(), 0u);
}

TEST_F(ShardMoveTest, TheTargetAppliesWhatTheRuleForStaleGradientsMade) {
  // The target could not compute it: it does not know what workers were told.
  for (const bool by_rate : {false, true}) {
    SCOPED_TRACE(by_rate ? "a rate" : "another gradient");
    stale_.Clear();
    if (by_rate) {
      stale_.add_stale()->mutable_staleness_aware_rate();
    } else {
      stale_.add_stale()->mutable_delay_compensation()->set_lambda(0.5);
    }
    view_ = wire::View();
    wire_.clear();
    Start("asp", 2);
    Send(0, Worker(0), PullOf(0));
    Send(0, Worker(1), PushOf(0, 1, 4));
    Move(0, 1);
    Show();
    Send(0, Worker(0), PushOf(0, 1, 2));
    const float served = Value(0);
    Deliver();
    Commit(0);
    Show();
    ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
    EXPECT_EQ(Value(1), served);
    EXPECT_EQ(served, by_rate ? -6 : -1);
  }
}

TEST_F(ShardMoveTest, ADroppedGradientIsDroppedAtTheTargetToo) {
  stale_.add_stale()->mutable_drop()->set_beyond_clocks(0);
  Start("asp", 2);
  Move(0, 1);
  Show();
  Send(0, Worker(1), PushOf(0, 1, 4));
  Send(0, Worker(0), PushOf(0, 1, 2));
  Deliver();
  Commit(0);
  Show();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -2);
  EXPECT_EQ(State(1, 0).participants().MinClock(), 1);
}

TEST_F(ShardMoveTest, TheSourceServesUntilTheTargetHasAll) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Clock clock = 0;
  while (cores_[0]->Owns(ShardId{0})) {
    if (clock < 3) {
      Send(0, Worker(0), PushOf(clock, clock + 1, 1));
      Send(0, Worker(0), PullOf(clock + 1, clock + 1));
      ++clock;
      EXPECT_THAT(Replies(),
                  ElementsAre(absl::StrCat("rank 0: push 0 OK acked ", clock),
                              absl::StrCat("rank 0: pull ", clock, " of 0 OK ",
                                           -clock)));
    }
    ASSERT_FALSE(wire_.empty());
    ASSERT_FALSE(cores_[1]->Owns(ShardId{0})) << "two owners";
    Deliver(1);
  }
  ASSERT_EQ(clock, 3);
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  Deliver();
  EXPECT_EQ(Value(1), -3);
}

TEST_F(ShardMoveTest, AfterTheGoTheSourceSaysWhereTheShardIs) {
  Start("asp", 1);
  Move(0, 1);
  Show();  // View 4.
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 5));
  Message both = PullOf(0, 7);
  TheOnlyPull(both).add_shard(1);
  Send(0, Worker(0), both);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 1 OK 0"));
}

TEST_F(ShardMoveTest, BeforeTheFirstRecordTheTargetNamesTheSource) {
  Start("asp", 1);
  Move(0, 1);
  Show();  // View 4, which says nothing that view 3 did not.
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 0 as of 3"));
}

TEST_F(ShardMoveTest, ARepeatedPushIsAcknowledgedByTheNextOwnerAndNotApplied) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(0), PushOf(1, 2, 1));
  MoveNow(0, 1);
  Replies();
  Send(1, Worker(0), PushOf(0, 1, 5));
  Send(1, Worker(0), PushOf(1, 2, 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2",
                                     "rank 0: push 0 OK acked 2"));
  EXPECT_EQ(Value(1), -6);
  EXPECT_EQ(cores_[1]->Stats().duplicates(), 2u);
  Send(1, Worker(0), PushOf(3, 4, 1));
  Send(1, Worker(0), PushOf(2, 3, 1));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: push 0 RETRY", "rank 0: push 0 OK acked 3"));
}

TEST_F(ShardMoveTest, APullParkedAtTheSourceIsSentToTheNextOwner) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Send(0, Worker(0), PullOf(1, 7));
  EXPECT_THAT(Replies(), SizeIs(1)) << "the pull is parked";
  Move(0, 1);
  Show();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED to 1 as of 4"));
  Send(1, Worker(0), PullOf(1, 8));
  Send(1, Worker(1), PushOf(0, 1, 2));
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 OK acked 1",
                                     "rank 0: pull 8 of 0 OK -3"));
}

TEST_F(ShardMoveTest, RequestsThatComeBeforeTheShardWaitAndAreAnsweredInOrder) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Move(0, 1);
  Show();
  Deliver(1);  // The first record is there.
  Replies();
  Send(1, Worker(0), PushOf(1, 2, 1));
  Send(1, Worker(0), PullOf(2, 7));
  Send(1, Worker(0), PullOf(0, 8, /*shard=*/2));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 8 of 2 OK 0"))
      << "its other shards do not wait";
  EXPECT_EQ(cores_[1]->waiting_count(), 2u);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2",
                                     "rank 0: pull 7 of 0 OK -6"));
  EXPECT_EQ(cores_[1]->waiting_count(), 0u);
}

TEST_F(ShardMoveTest, NoMoreThanTheBoundWait) {
  waiting_max_ = 2;
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(1);
  for (uint64_t id = 1; id <= 3; ++id) Send(1, Worker(0), PullOf(0, id));
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: pull 3 of 0 RETRY", "rank 0: push 0 RETRY"));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 1 of 0 OK 0",
                                     "rank 0: pull 2 of 0 OK 0"));
}

TEST_F(ShardMoveTest, NoMoreBytesThanTheBoundOfAShardWait) {
  waiting_bytes_max_ = 2 * kElements * sizeof(float);
  Start("asp", 3);
  Move(0, 1);
  Show();
  Deliver(1);
  for (const int rank : {0, 1, 2}) Send(1, Worker(rank), PushOf(0, 1, 6));
  EXPECT_THAT(Replies(), ElementsAre("rank 2: push 0 RETRY"));
  EXPECT_EQ(cores_[1]->waiting_bytes(), waiting_bytes_max_);
  Send(1, Worker(2), PullOf(0, 7));
  EXPECT_THAT(Replies(), IsEmpty()) << "it has no payload";
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 1: push 0 OK acked 1",
                                     "rank 2: pull 7 of 0 OK -4"));
  EXPECT_EQ(cores_[1]->waiting_bytes(), 0u);
}

TEST_F(ShardMoveTest, NoMoreBytesThanTheBoundOfAThreadWait) {
  waiting_bytes_max_all_ = 3 * kElements * sizeof(float);
  Start("asp", 2);
  Move(0, 1);
  Move(1, 1);
  Show();
  Deliver(2);  // The first record of each.
  for (const int rank : {0, 1}) {
    for (const int32_t shard : {0, 1})
      Send(1, Worker(rank), PushOf(0, 1, 2, shard));
  }
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 1 RETRY"));
  EXPECT_EQ(cores_[1]->waiting_bytes(), waiting_bytes_max_all_);
  Deliver();
  EXPECT_EQ(cores_[1]->waiting_bytes(), 0u);
  EXPECT_EQ(Value(1, 0), -2);
  EXPECT_EQ(Value(1, 1), -1);
}

TEST_F(ShardMoveTest, AGradientThatIsNotFiniteIsOneForTheTargetToo) {
  Start("bsp", 3);
  Send(0, Worker(0), PushOf(0, 1, 2));
  Move(0, 1);
  Show();
  Deliver(1);
  Send(0, Worker(1), PushOf(0, 1, std::numeric_limits<float>::quiet_NaN()));
  Deliver();
  Send(1, Worker(2), PushOf(0, 1, 4));
  EXPECT_EQ(Value(1), -3);
  EXPECT_EQ(State(1, 0).complete_clock(), 1);
  EXPECT_EQ(cores_[0]->Stats().nonfinite_size(), 1);
  EXPECT_EQ(cores_[1]->Stats().nonfinite_size(), 0);
}

TEST_F(ShardMoveTest, AMessageOfAnotherRunHandsNothingOver) {
  Start("asp", 1);
  view_.set_run(7);
  Move(0, 1);
  Show();
  ASSERT_FALSE(wire_.empty());
  EXPECT_EQ(wire_.front().message.header.run(), 7u);
  wire_.front().message.header.set_run(8);
  Deliver(1);
  EXPECT_EQ(cores_[1]->Stats().malformed(), 1u);
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
  EXPECT_THAT(wire_, IsEmpty()) << "it is not answered";
  Tick(absl::Seconds(1));
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "sent again, and its own";
}

TEST_F(ShardMoveTest, WhatWaitsKeepsItsRun) {
  Start("asp", 1);
  view_.set_run(7);
  Move(0, 1);
  Show();
  Deliver(1);
  Message push = PushOf(0, 1, 5);
  push.header.set_run(7);
  Send(1, Worker(0), push);
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, WhoWaitsAndIsGoneMeanwhileIsFenced) {
  Start("asp", 2);
  Move(0, 1);
  Show();
  Deliver(1);
  Send(1, Worker(1), PushOf(0, 1, 5));
  RemoveWorker(1);
  Show();
  EXPECT_THAT(Replies(), IsEmpty());
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 FENCED"));
  EXPECT_EQ(Value(1), 0);
}

TEST_F(ShardMoveTest, ABspClockThatIsHalfPushedGoesAlong) {
  Start("bsp", 3);
  Send(0, Worker(2), PushOf(0, 1, 3));
  Move(0, 1);
  Show();
  Deliver(2);
  Send(0, Worker(0), PushOf(0, 1, 6));  // On the way.
  Deliver();
  EXPECT_THAT(State(1, 0).held(), SizeIs(2));
  EXPECT_EQ(Value(1), 0);
  Send(1, Worker(1), PushOf(0, 1, 9));
  EXPECT_EQ(Value(1), -6);
  Send(1, Worker(1), PushOf(1, 2, 1));
  EXPECT_THAT(Replies(), SizeIs(4));
}

TEST_F(ShardMoveTest, SlotsAndUpdateCountGoAlong) {
  Start("asp", 1, /*adam=*/true);
  MoveNow(1, 1);
  uint64_t seq = 0;
  const auto push = [&](int owner) {
    for (const int32_t shard : {0, 1}) {
      Message message = PushOf(static_cast<Clock>(seq), seq + 1,
                               0.5f + static_cast<float>(seq % 3), shard);
      Send(shard == 1 ? 1 : owner, Worker(0), message);
    }
    ++seq;
  };
  for (int i = 0; i < 4; ++i) push(0);
  MoveNow(0, 1);
  for (int i = 0; i < 4; ++i) push(1);
  MoveNow(0, 0);
  for (int i = 0; i < 4; ++i) push(0);
  std::vector<std::string> moved = Portrait(State(0, 0));
  std::vector<std::string> stayed = Portrait(State(1, 1));
  EXPECT_THAT(moved[0], HasSubstr("version 12"));
  moved[0] = stayed[0] = "";  // Other elements.
  EXPECT_EQ(moved, stayed);
}

TEST_F(ShardMoveTest, AWorkerThatJoinsOnTheWayTakesPartAtTheTarget) {
  Start("asp", 1);
  for (const Clock clock : {0, 1})
    Send(0, Worker(0), PushOf(clock, clock + 1, 1));
  Move(0, 1);
  Show();
  Deliver(2);
  AddWorker(1, 30);
  Show();
  Replies();
  Send(0, Worker(1, 30), JoinPullOf());
  EXPECT_THAT(Replies(), ElementsAre("rank 1: pull 1 of 0 OK -2"));
  Send(0, Worker(1, 30), PushOf(2, 1, 4));
  Deliver();
  EXPECT_EQ(Value(1), -4) << "the mean over two";
  Send(1, Worker(1, 30), PushOf(2, 1, 4));
  Send(1, Worker(1, 30), PushOf(3, 2, 4));
  Send(1, Worker(1, 30), JoinPullOf());
  EXPECT_THAT(
      Replies(),
      ElementsAre("rank 1: push 0 OK acked 1", "rank 1: push 0 OK acked 1",
                  "rank 1: push 0 OK acked 2", "rank 1: pull 1 of 0 OK -6"));
}

TEST_F(ShardMoveTest, AWorkerThatLeavesOnTheWayHoldsNobodyUpAtTheTarget) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Move(0, 1);
  Show();
  Deliver(2);
  RemoveWorker(1);
  Show();
  EXPECT_EQ(Value(0), -4) << "at the source its clock is complete";
  Deliver();
  EXPECT_EQ(Value(1), -4);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
  Send(1, Worker(0), PushOf(1, 2, 1));
  EXPECT_EQ(Value(1), -5);
}

TEST_F(ShardMoveTest, AWorkerOfWhoseLeavingOnlyTheTargetKnowsIsGoneThere) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 4));
  Move(0, 1);
  Show();
  RemoveWorker(1);
  NextView();
  ShowTo(1);
  Deliver();
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -4);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
  ShowTo(0);
  EXPECT_THAT(State(1, 0).participants(), SizeIs(1));
}

TEST_F(ShardMoveTest, AJoinerOfWhomOnlyTheSourceKnowsIsNotThrownOut) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(2);
  AddWorker(1, 30);
  NextView();
  ShowTo(0);
  Send(0, Worker(1, 30), JoinPullOf());
  Send(0, Worker(1, 30), PushOf(0, 1, 4));
  Deliver();
  Tick(absl::Milliseconds(60));
  Deliver();
  ShowTo(1);
  for (int i = 0; i < 5; ++i) {
    Tick(absl::Seconds(1));
    Deliver();
  }
  ASSERT_TRUE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(Value(1), -2);
  Replies();
  Send(1, Worker(1, 30), PushOf(0, 1, 4));
  EXPECT_THAT(Replies(), ElementsAre("rank 1: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, RecordsThatComeBeforeTheOrderWaitForIt) {
  Start("asp", 1);
  Move(0, 1);
  NextView();
  ShowTo(0);
  Deliver();
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
  ShowTo(1);
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "without a repetition";
}

TEST_F(ShardMoveTest, WhatIsLostIsSentAgain) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Move(0, 1);
  Show();
  Rng rng(1);
  int lost = 0;
  for (int i = 0; i < 200 && !reported_[0]; ++i) {
    if (wire_.empty()) {
      ASSERT_NE(cores_[0]->NextWakeup(), absl::InfiniteFuture());
      Tick(cores_[0]->NextWakeup() - now_);
    } else if (rng.Chance(0.5)) {
      wire_.pop_front();
      ++lost;
    } else {
      Deliver(1);
    }
  }
  EXPECT_GT(lost, 5);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
  EXPECT_EQ(Value(1), -5);
}

TEST_F(ShardMoveTest, ALostConfirmationIsGivenAgain) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  while (!cores_[1]->Owns(ShardId{0})) Deliver(1);
  ASSERT_THAT(wire_, SizeIs(1));
  wire_.clear();
  EXPECT_FALSE(reported_[0]);
  Send(1, Worker(0), PushOf(0, 1, 5));
  Tick(absl::Milliseconds(60));
  Deliver();
  EXPECT_TRUE(reported_[0]);
  EXPECT_EQ(Value(1), -5) << "the new owner goes on";
}

TEST_F(ShardMoveTest, TheSourceReportsHowFarItIs) {
  Start("asp", 1);
  Tick(absl::ZeroDuration());
  EXPECT_THAT(HandOverStates(0), IsEmpty());
  Move(0, 1);
  Show();
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::COPYING));
  EXPECT_FALSE(reported_[0]);
  Tick(absl::Milliseconds(3));
  Deliver();
  EXPECT_TRUE(reported_[0]);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::DONE));
  const run::ServerStats stats = cores_[0]->Stats();
  EXPECT_EQ(stats.hand_over(0).shard(), 0);
  EXPECT_EQ(stats.hand_over(0).move(), view_.number());
  EXPECT_EQ(stats.hand_over(0).bytes(), kElements * 4);
  EXPECT_EQ(stats.hand_over(0).copy_micros(), 3000);
  EXPECT_EQ(stats.shards(), 1);
  EXPECT_EQ(cores_[1]->Stats().shards(), 2);
  Commit(0);
  Show();
  EXPECT_THAT(HandOverStates(0), IsEmpty()) << "the view knows";
}

TEST_F(ShardMoveTest, AMoveThatIsGivenUpLeavesTheShardWhereItIs) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver(2);
  Send(1, Worker(0), PushOf(0, 1, 5));
  EXPECT_EQ(cores_[1]->waiting_count(), 1u);
  view_.clear_move();
  Show();  // View 5.
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 0 as of 5"));
  EXPECT_EQ(cores_[0]->moves_count() + cores_[1]->moves_count(), 0u);
  EXPECT_EQ(cores_[0]->NextWakeup(), absl::InfiniteFuture());
  EXPECT_FALSE(reported_[0]);
  Deliver();  // Late records and confirmations.
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  MoveNow(0, 1);
  EXPECT_EQ(Value(1), -5) << "another time";
}

TEST_F(ShardMoveTest, AShardThatWentToADeadServerIsReportedLost) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  while (cores_[0]->Owns(ShardId{0})) Deliver(1);
  view_.clear_move();
  view_.set_owner_server(2, 0);
  view_.mutable_server()->RemoveLast();
  NextView();
  ShowTo(0);
  EXPECT_TRUE(reported_[0]);
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::LOST));
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED"));
  // The coordinator has not heard of it yet, and cuts the shard in two.
  Split(0, 1);
  NextView();
  ShowTo(0);
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
  EXPECT_THAT(HandOverStates(0), ElementsAre(run::HandOverState::LOST));
}

// The source may miss the views between two moves.
TEST_F(ShardMoveTest, AShardThatHasMovedOnIsNotLost) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Deliver();
  wire::ServerMember& server = *view_.add_server();
  server.set_index(2);
  server.add_thread();
  view_.clear_move();
  view_.set_owner_server(0, 2);
  Show();
  EXPECT_THAT(HandOverStates(0), IsEmpty());
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 2 as of 5"));
}

TEST_F(ShardMoveTest, RequestsWaitAtTheSourceWhileTheTargetIsFarBehind) {
  hand_over_.backlog_bytes_max = 2 * kElements * sizeof(float);
  Start("asp", 1);
  Move(0, 1);
  Show();
  for (Clock clock = 0; clock < 5; ++clock)
    Send(0, Worker(0), PushOf(clock, clock + 1, 1));
  Send(0, Worker(0), PullOf(5, 7));
  EXPECT_THAT(Replies(), SizeIs(3)) << "more than two are too many";
  EXPECT_EQ(cores_[0]->waiting_count(), 3u);
  Send(0, Worker(0), PushOf(0, 1, 1, /*shard=*/1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 1 OK acked 1"))
      << "other shards do not wait";
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: push 0 MOVED to 1 as of 4",
                                     "rank 0: pull 7 of 0 MOVED to 1 as of 4"));
  EXPECT_EQ(Value(1), -3);
}

TEST_F(ShardMoveTest, WhoWaitsAtTheSourceIsServedThereIfTheMoveIsGivenUp) {
  hand_over_.backlog_bytes_max = 1;
  Start("asp", 1);
  Move(0, 1);
  Show();
  Send(0, Worker(0), PushOf(0, 1, 1));
  Send(0, Worker(0), PushOf(1, 2, 1));
  Replies();
  view_.clear_move();
  Show();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
}

TEST_F(ShardMoveTest, AHandOverThatMakesNoSenseChangesNothing) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  ASSERT_FALSE(wire_.empty());
  const Message good = wire_.front().message;
  const struct {
    const char* what;
    std::function<void(Message&)> spoil;
    uint64_t malformed;
  } cases[] = {
      {"no such shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(3); }, 0},
      {"a negative shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(-1); }, 0},
      {"its own shard",
       [](Message& m) { m.header.mutable_hand_over()->set_shard(2); }, 0},
      {"another move",
       [](Message& m) { m.header.mutable_hand_over()->set_move(99); }, 0},
      {"a go at once",
       [](Message& m) {
         m.header.mutable_hand_over()->mutable_record(0)->set_go(true);
       },
       1},
      {"a snapshot of a negative clock",
       [](Message& m) {
         m.header.mutable_hand_over()
             ->mutable_record(0)
             ->mutable_snapshot()
             ->set_complete_clock(-1);
       },
       1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const uint64_t malformed = cores_[1]->Stats().malformed();
    const size_t on_the_wire = wire_.size();
    Message broken = good;
    c.spoil(broken);
    Send(1, Thread(0), broken);
    EXPECT_THAT(wire_, SizeIs(on_the_wire)) << "no reply";
    EXPECT_EQ(cores_[1]->Stats().malformed(), malformed + c.malformed);
  }
  Message reply;
  reply.header.mutable_hand_over_reply()->set_shard(1);
  reply.header.mutable_hand_over_reply()->set_owned(true);
  Send(0, Thread(1), reply);
  EXPECT_TRUE(cores_[0]->Owns(ShardId{1}));
  Deliver();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{0})) << "as if nothing had been";
}

TEST_F(ShardMoveTest, AWorkerHandsNothingOver) {
  Start("asp", 1);
  Message message;
  message.header.mutable_hand_over();
  Send(0, Worker(0), message);
  message.header.mutable_hand_over_reply();
  Send(0, Worker(0), message);
  EXPECT_THAT(Replies(),
              ElementsAre(HasSubstr("takes pushes and pulls, not body"),
                          HasSubstr("takes pushes and pulls, not body")));
}

TEST_F(ShardMoveTest, NoShardArrivesOnceTheJobHasEnded) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  Send(0, Worker(0), PushOf(0, 1, 5));
  // All that server 1 ever saw of the job is its end.
  config::Optimizer sgd;
  sgd.mutable_sgd()->set_learning_rate(1);
  cores_[1].emplace(ShardCore::Options{.self = {1, 0}}, *Optimizer::Create(sgd),
                    config::LearningRateSchedule());
  view_.set_state(wire::FAILED);
  NextView();
  ShowTo(1);
  Deliver();
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
  EXPECT_EQ(cores_[1]->moves_count(), 0u);
}

// ---- Installations ----------------------------------------------------------

// BSP, by all-reduce from 1 on and from 3 on asynchronous; one worker, which
// has done clock 0.
class ShardInstallMoveTest : public ShardMoveTest {
 protected:
  void StartAllReduce(bool adam = false) {
    Start("bsp", 1, adam);
    for (const auto& [mode, from] : {std::pair("allreduce", 1), {"asp", 3}}) {
      wire::Phase& phase = *view_.add_phase();
      *phase.mutable_mode() = ModeOf(mode);
      phase.set_from(from);
    }
    Show();
    Send(0, Worker(0), PushOf(0, 1, 5));
    Send(1, Worker(0), PushOf(0, 1, 5, 2));
    Replies();
  }
  Message Install(float value, int32_t shard = 0) {
    return InstallOf(view_.number(), 3, 2, 9, Floats(value, kElements), {},
                     shard);
  }
};

TEST_F(ShardInstallMoveTest, AnInstallationOnTheWayGoesAlong) {
  StartAllReduce();
  AddWorker(1, 21);  // Takes part from the installation on.
  Show();
  Move(0, 1);
  Show();
  Send(0, Worker(0), Install(42));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
  const std::vector<std::string> before = Portrait(State(0, 0));
  Deliver();
  EXPECT_EQ(Portrait(State(1, 0)), before);
  EXPECT_EQ(Value(1), 42);
  Send(1, Worker(0), Install(42));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2")) << "again";
}

TEST_F(ShardInstallMoveTest, AnInstallationWaitsForAShardThatArrives) {
  StartAllReduce(/*adam=*/true);
  Move(0, 1);
  Show();
  Deliver(1);
  // Of a shard that is here, and of the one that comes.
  Message both = InstallOf(view_.number(), 3, 2, 9, Floats(1, kElements),
                           {Floats(2, kElements), Floats(3, kElements)}, 2);
  const Message second =
      InstallOf(view_.number(), 3, 2, 9, Floats(4, kElements),
                {Floats(5, kElements), Floats(6, kElements)}, 0);
  both.header.mutable_push_request()->MergeFrom(second.header.push_request());
  both.payloads.insert(both.payloads.end(), second.payloads.begin(),
                       second.payloads.end());
  Send(1, Worker(0), both);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 2 OK acked 2"));
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 2"));
  EXPECT_EQ(Value(1, 2), 1);
  EXPECT_EQ(Value(1, 0), 4);
  EXPECT_EQ(First(State(1, 0).shard().slots().at(1)), 6);
}

TEST_F(ShardInstallMoveTest, AnInstalledShardMovesAsItIs) {
  StartAllReduce();
  AddWorker(1, 21);  // Takes part from the installation on.
  Show();
  Send(0, Worker(0), Install(42));
  const std::vector<std::string> before = Portrait(State(0, 0));
  MoveNow(0, 1);
  EXPECT_EQ(Portrait(State(1, 0)), before);
  Send(1, Worker(1, 21),
       InstallOf(view_.number(), 3, 1, 9, Floats(42, kElements)));
  Send(1, Worker(1, 21), PushOf(3, 2, 4));
  EXPECT_EQ(Value(1), 40);
}

TEST_F(ShardInstallMoveTest, AStatePullFollowsAShardThatMoves) {
  StartAllReduce(/*adam=*/true);
  AddWorker(1, 21);
  Show();
  Send(0, Worker(1, 21), JoinPullOf(3));  // At clock 1.
  Replies();
  Message pull = PullOf(2, 7);  // Which rank 1 keeps waiting.
  TheOnlyPull(pull).mutable_state()->set_clock(2);
  Send(0, Worker(0), pull);
  Move(0, 1);
  Show();
  Deliver();
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED to 1 as of 6"));
}

// ---- Splits -----------------------------------------------------------------

TEST_F(ShardMoveTest, APushOfTheWholeIsRefusedAndItsPartsCountOnce) {
  Start("asp", 1);
  const Message whole = PushOf(0, 1, 5);
  Split(0, 1);
  Show();
  Send(0, Worker(0), whole);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 MOVED"));
  for (int i = 0; i < 2; ++i) {
    Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
    Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
    EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                       "rank 0: push 3 OK acked 1"));
  }
  EXPECT_EQ(Value(0, 0), -5);
  EXPECT_EQ(Value(0, 3), -5);
  EXPECT_EQ(cores_[0]->Stats().duplicates(), 2u);
}

TEST_F(ShardMoveTest, PartsOfAPushThatCountedAsAWholeAreDuplicates) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Show();
  Replies();
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1",
                                     "rank 0: push 3 OK acked 1"));
  EXPECT_EQ(Value(0, 3), -5);
}

TEST_F(ShardMoveTest, APushOfAPartWaitsForTheViewThatMakesIt) {
  Start("asp", 1);
  Split(0, 1);
  NextView();
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  Send(0, Worker(0), PushOf(0, 1, 5, 3, kElements - 1));
  Send(0, Worker(0), PullOf(0, 7, 3));
  EXPECT_THAT(Replies(),
              ElementsAre("rank 0: push 0 RETRY", "rank 0: push 3 RETRY",
                          "rank 0: pull 7 of 3 RETRY"));
  EXPECT_EQ(cores_[0]->Stats().malformed(), 0u);
  ShowTo(0);
  Send(0, Worker(0), PushOf(0, 1, 5, 0, 1));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 0 OK acked 1"));
}

TEST_F(ShardMoveTest, APullOfTheWholeIsToBeAskedAgainForTheParts) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Send(0, Worker(0), PullOf(1, 7));  // Parked.
  const Message late = PullOf(0, 8);
  Replies();
  Split(0, 1);
  Show();
  Send(0, Worker(0), late);
  EXPECT_THAT(Replies(), ElementsAre("rank 0: pull 7 of 0 MOVED",
                                     "rank 0: pull 8 of 0 MOVED"));
}

// The client tells by the number whether an answer is of the whole.
TEST_F(ShardMoveTest, AnAnswerOfTheWholeGoesUnderTheNumberOfItsView) {
  Start("asp", 1);
  const uint64_t number = view_.number();
  ShardCore::Effects effects;
  cores_[0]->OnMessage(Worker(0), PullOf(0, 7), &effects);
  Split(0, 1);
  NextView();
  cores_[0]->OnView(*View::Create(view_), &effects);
  cores_[0]->Flush(&effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].message.payloads.at(0).size(), kElements * 4u);
  EXPECT_EQ(effects.sends[0].message.header.view_number(), number);
}

// Shard 1 gets what shard 0 gets, and is never split.
TEST_F(ShardMoveTest, ASplitShardHasTheBitsOfTheWhole) {
  for (const char* mode : {"asp", "bsp"}) {
    view_ = wire::View();
    Start(mode, 2, /*adam=*/true);
    Rng rng(7);
    const std::vector<std::pair<int32_t, int>> whole = {{0, kElements}};
    const std::vector<std::pair<int32_t, int>> parts = {{0, 1}, {3, 3}};
    std::vector<uint64_t> seq = {1, 1};
    const auto push = [&](int rank, const auto& shards) {
      std::vector<float> gradient(kElements);
      for (float& value : gradient) value = static_cast<float>(rng.Normal());
      const Clock clock = static_cast<Clock>(seq[rank]) - 1;
      Message twin = PushOf(clock, seq[rank], 0, 1);
      twin.payloads[0] = Payload::Copy(gradient.data(), kElements * 4);
      Send(0, Worker(rank), twin);
      size_t offset = 0;
      for (const auto& [shard, elements] : shards) {
        Message message = PushOf(clock, seq[rank], 0, shard);
        message.payloads[0] = twin.payloads[0].Slice(offset, elements * 4);
        offset += elements * 4;
        Send(0, Worker(rank), message);
      }
      ++seq[rank];
    };
    for (int i = 0; i < 3; ++i) {
      push(0, whole);
      push(1, whole);
    }
    push(1, whole);  // In BSP it is held when the shard is split.
    Split(0, 1);
    Show();
    push(0, parts);
    for (int i = 0; i < 3; ++i) {
      push(0, parts);
      push(1, parts);
    }
    const ShardMachine& twin = State(0, 1);
    const ShardMachine& first = State(0, 0);
    const ShardMachine& rest = State(0, 3);
    EXPECT_EQ(first.shard().version(), twin.shard().version());
    EXPECT_EQ(rest.shard().version(), twin.shard().version());
    const auto together = [](const Payload& a, const Payload& b) {
      return std::string(reinterpret_cast<const char*>(a.data()), a.size()) +
             std::string(reinterpret_cast<const char*>(b.data()), b.size());
    };
    EXPECT_EQ(together(first.shard().values(), rest.shard().values()),
              together(twin.shard().values(), Payload()));
    for (size_t slot = 0; slot < twin.shard().slots().size(); ++slot) {
      EXPECT_EQ(
          together(first.shard().slots()[slot], rest.shard().slots()[slot]),
          together(twin.shard().slots()[slot], Payload()));
    }
    EXPECT_EQ(first.participants().MinClock(), twin.participants().MinClock());
    for (const std::string& line : Replies())
      EXPECT_THAT(line, HasSubstr(" OK ")) << line;
  }
}

TEST_F(ShardMoveTest, APartMovesInTheViewThatMakesIt) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Move(3, 1);
  Show();
  Deliver();
  Commit(3);
  Show();
  EXPECT_EQ(Value(0, 0), -5);
  ASSERT_TRUE(cores_[1]->Owns(ShardId{3}));
  EXPECT_EQ(Value(1, 3), -5);
  EXPECT_EQ(State(1, 3).shard().range().begin, 1);
  Replies();
  Send(1, Worker(0), PushOf(1, 2, 1, 3, 3));
  EXPECT_THAT(Replies(), ElementsAre("rank 0: push 3 OK acked 2"));
}

TEST_F(ShardMoveTest, AShardMayBeSplitTwiceInOneView) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  Split(0, 1);
  Split(3, 3);
  Show();
  const std::shared_ptr<const View> view = *View::Create(view_);
  for (const int32_t shard : {0, 3, 4}) {
    const ShardMachine& state = State(0, shard);
    const ShardRange& expected = view->shard(ShardId{shard});
    EXPECT_EQ(state.shard().range().shard, ShardId{shard});
    EXPECT_EQ(state.shard().range().begin, expected.begin);
    EXPECT_EQ(state.shard().range().end, expected.end);
    EXPECT_EQ(state.shard().values().size(), expected.bytes());
    EXPECT_EQ(Value(0, shard), -5);
  }
}

TEST_F(ShardMoveTest, AShardThatHasMovedIsSplitByItsNewOwner) {
  Start("asp", 1);
  Send(0, Worker(0), PushOf(0, 1, 5));
  MoveNow(0, 1);
  Split(0, 1);
  Show();
  EXPECT_TRUE(cores_[1]->Owns(ShardId{3}));
  EXPECT_FALSE(cores_[0]->Owns(ShardId{3}));
  EXPECT_EQ(Value(1, 3), -5);
}

// ---- Random histories -------------------------------------------------------

// Two workers push, and push again until they are answered, while shard 0 goes
// back and forth over a link that loses and delays. A twin that never moves
// gets the same pushes in the order in which they were taken over.
TEST_F(ShardMoveTest, AShardThatMovesAllTheTimeHasTheBitsOfOneThatStays) {
  int moves = 0;
  int followed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const bool bsp = rng.Chance(0.5);
    hand_over_.part_bytes = static_cast<size_t>(rng.Between(4, 32));
    hand_over_.window_bytes = static_cast<size_t>(rng.Between(4, 64));
    view_ = wire::View();
    wire_.clear();
    Start(bsp ? "bsp" : "asp", 2, /*adam=*/true);
    Tick(absl::ZeroDuration());
    int known_owner[2] = {0, 0};  // By worker.
    uint64_t next_seq[2] = {1, 1};
    Message unanswered[2];
    // In the order in which the shard took the pushes over.
    const auto read_replies = [&] {
      for (const Outgoing& out : std::exchange(replies_, {})) {
        const wire::PushReply& reply = out.message.header.push_reply();
        const int rank = out.to.index;
        ASSERT_EQ(reply.answer_size(), 1);
        const wire::Refusal& refusal = reply.answer(0).refusal();
        ASSERT_FALSE(refusal.has_rejected()) << refusal.rejected();
        if (refusal.moved().has_to()) {
          followed += known_owner[rank] != refusal.moved().to().server();
          known_owner[rank] = refusal.moved().to().server();
        }
        if (OutcomeOf(reply.answer(0)) != Outcome::kOk ||
            reply.answer(0).accepted_seq() != next_seq[rank])
          continue;
        Message twin = std::exchange(unanswered[rank], Message());
        TheOnly(twin).set_shard(1);
        Send(0, Worker(rank), twin);
        ASSERT_THAT(Replies(), ElementsAre(HasSubstr("push 1 OK")));
        ++next_seq[rank];
      }
    };
    const auto commit_if_done = [&] {
      const auto states = HandOverStates(view_.owner_server(0));
      if (states.empty() || states[0] != run::HandOverState::DONE) return;
      Commit(0);
      Show();
    };
    const double loss = 0.3 * rng.Uniform();
    for (int step = 0; step < 400; ++step) {
      // The shard.
      if (view_.move_size() == 0 && rng.Chance(0.2)) {
        Move(0, 1 - view_.owner_server(0));
        Show();
        ++moves;
      } else if (view_.move_size() == 1) {
        commit_if_done();
      }
      if (!wire_.empty() && rng.Chance(loss)) wire_.pop_front();
      Deliver(static_cast<int>(rng.Below(3)));
      if (rng.Chance(0.3)) Tick(absl::Milliseconds(30));
      ASSERT_FALSE(cores_[0]->Owns(ShardId{0}) && cores_[1]->Owns(ShardId{0}))
          << "two owners";
      // A worker.
      const int rank = static_cast<int>(rng.Below(2));
      if (unanswered[rank].payloads.empty()) {
        const Clock clock = static_cast<Clock>(next_seq[rank]) - 1;
        unanswered[rank] =
            PushOf(clock, next_seq[rank], static_cast<float>(rng.Normal()));
      }
      read_replies();
      if (unanswered[rank].payloads.empty()) continue;
      Send(known_owner[rank], Worker(rank), unanswered[rank]);
      read_replies();
    }
    for (int i = 0; i < 200 && view_.move_size() > 0; ++i) {
      Tick(absl::Milliseconds(500));
      Deliver();
      commit_if_done();
    }
    ASSERT_EQ(view_.move_size(), 0);
    read_replies();
    std::vector<std::string> moved = Portrait(State(view_.owner_server(0), 0));
    std::vector<std::string> stayed = Portrait(State(0, 1));
    for (std::string* const line : {&moved[0], &stayed[0]})
      *line = line->substr(line->find(" version"));
    ASSERT_EQ(moved, stayed);
  }
  EXPECT_GT(moves, 300);
  EXPECT_GT(followed, 200);
}

}  // namespace
}  // namespace slackline
