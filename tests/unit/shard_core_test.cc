// Goal: what a shard thread does with each message, and that a message that
// makes no sense changes nothing and is answered with what is wrong with it.
// Method: one core of a small job; SGD with learning rate 1 from zeros, so that
// values show what was applied.
#include "server/shard/shard_core.h"

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kElements = 4;  // Of shards 0 and 1, ours; shard 2 is another's.

Payload Floats(float value, int count = kElements) {
  const std::vector<float> values(count, value);
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

float First(const Payload& payload) {
  float value = 0;
  std::memcpy(&value, payload.data(), sizeof(value));
  return value;
}

// Of `worker` in its incarnation; 10 + rank unless said otherwise.
PeerId Worker(int rank, Incarnation incarnation = 0) {
  return {.kind = PeerId::Kind::kWorker,
          .index = rank,
          .instance = incarnation == 0 ? 10 + rank : incarnation};
}

class ShardCoreTest : public ::testing::Test {
 protected:
  // A running job with these founders, rank r in incarnation 10 + r.
  void Start(wire::Mode mode, int workers, Clock staleness = 0) {
    config::Optimizer sgd;
    sgd.mutable_sgd()->set_learning_rate(1);
    core_.emplace(ShardCore::Options{.self = {0, 0}, .seed = 1, .trace = true},
                  *Optimizer::Create(sgd), config::LearningRateSchedule());
    view_.set_number(2);
    view_.set_state(wire::RUNNING);
    view_.set_mode(mode);
    view_.set_staleness(staleness);
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
    wire::PushRequest& push = *message.header.mutable_push_request();
    push.set_clock(clock);
    push.add_shard(shard);
    push.add_seq(seq);
    push.add_base_version(0);
    message.payloads.push_back(Floats(gradient));
    return message;
  }

  Message PullOf(Clock clock, uint64_t request_id = 1, int32_t shard = 0,
                 bool join = false) {
    Message message;
    message.header.set_view_number(view_.number());
    wire::PullRequest& pull = *message.header.mutable_pull_request();
    pull.set_request_id(request_id);
    pull.set_clock(clock);
    pull.set_join(join);
    pull.add_shard(shard);
    return message;
  }

  Message AdvanceOf(Clock clock, uint64_t seq, int32_t shard = 0) {
    Message message = PushOf(clock, seq, 0, shard);
    message.header.mutable_push_request()->set_advance(true);
    message.header.mutable_push_request()->clear_base_version();
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

  wire::Code PushCode(const PeerId& from, const Message& message) {
    const wire::PushReply reply = Push(from, message);
    return reply.code_size() == 1 ? reply.code(0) : wire::CODE_UNSPECIFIED;
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

  wire::View view_;
  std::optional<ShardCore> core_;
};

TEST_F(ShardCoreTest, BspAppliesTheMeanOfAClockOnceAllHavePushedIt) {
  Start(wire::BSP, 3);
  EXPECT_EQ(PushCode(Worker(2), PushOf(0, 1, 3)), wire::OK);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 6)), wire::OK);
  EXPECT_EQ(Value(Worker(0)), 0);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 9)), wire::OK);
  EXPECT_EQ(Value(Worker(0)), -6);
  EXPECT_EQ(core_->Stats().updates(), 1u);
}

TEST_F(ShardCoreTest, BspSumsInRankOrderWhateverTheOrderOfArrival) {
  // (2^24 + 1) + -2^24 is 0 in float, (2^24 + -2^24) + 1 is 1.
  const float big = 1 << 24;
  for (const auto& order :
       std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}}) {
    view_ = wire::View();
    Start(wire::BSP, 3);
    const float gradients[] = {big, 1, -big};
    for (const int rank : order) {
      PushCode(Worker(rank), PushOf(0, 1, gradients[rank]));
    }
    EXPECT_EQ(Value(Worker(0)), 0);
  }
}

TEST_F(ShardCoreTest, AsyncPushesCountAsOneOfTheParticipants) {
  Start(wire::ASP, 4);
  PushCode(Worker(1), PushOf(0, 1, 8));
  EXPECT_EQ(Value(Worker(0)), -2);
}

TEST_F(ShardCoreTest, APullWaitsForTheSlowestAndItsPushAnswersIt) {
  Start(wire::SSP, 2, /*staleness=*/1);
  PushCode(Worker(0), PushOf(0, 1, 2));
  PushCode(Worker(0), PushOf(1, 2, 2));
  EXPECT_THAT(Send(Worker(0), PullOf(2, 7)).sends, IsEmpty());
  EXPECT_EQ(core_->Stats().pulls_parked(), 1);
  const ShardCore::Effects effects = Send(Worker(1), PushOf(0, 1, 4));
  ASSERT_THAT(effects.sends, SizeIs(2));
  const Outgoing& answer = effects.sends[1];
  EXPECT_EQ(answer.to, Worker(0));
  EXPECT_EQ(answer.message.header.pull_reply().request_id(), 7u);
  EXPECT_EQ(First(answer.message.payloads[0]), -4);
  EXPECT_EQ(core_->Stats().pulls_parked(), 0);
}

TEST_F(ShardCoreTest, AParkedPullThatIsRepeatedIsToldForWhomItWaits) {
  Start(wire::BSP, 3);
  PushCode(Worker(0), PushOf(0, 1, 1));
  PushCode(Worker(2), PushOf(0, 1, 1));
  EXPECT_THAT(Send(Worker(0), PullOf(1, 7)).sends, IsEmpty());
  const ShardCore::Effects effects = Send(Worker(0), PullOf(1, 7));
  ASSERT_THAT(effects.sends, SizeIs(1));
  const wire::PullReply& reply = effects.sends[0].message.header.pull_reply();
  EXPECT_THAT(reply.code(), ElementsAre(wire::PARKED));
  EXPECT_EQ(reply.waiting_rank(), 1);
  EXPECT_EQ(reply.waiting_clock(), 0);
}

TEST_F(ShardCoreTest, ALossReleasesWhoWaitedForTheLostWorker) {
  Start(wire::BSP, 3);
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
  Start(wire::BSP, 2);
  PushCode(Worker(1), PushOf(0, 1, 4));
  RemoveWorker(1);
  Publish();
  PushCode(Worker(0), PushOf(0, 1, 2));
  EXPECT_EQ(Value(Worker(0)), -3);
}

TEST_F(ShardCoreTest, ARepeatedPushIsAcknowledgedAndNotAppliedAgain) {
  Start(wire::ASP, 1);
  EXPECT_EQ(Push(Worker(0), PushOf(0, 1, 5)).acked_seq(0), 1u);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5)), wire::OK);
  EXPECT_EQ(Value(Worker(0)), -5);
  EXPECT_EQ(core_->Stats().duplicates(), 1u);
}

TEST_F(ShardCoreTest, AGapIsToBeSentAgainAndChangesNothing) {
  Start(wire::ASP, 1);
  const wire::PushReply reply = Push(Worker(0), PushOf(1, 2, 5));
  EXPECT_EQ(reply.code(0), wire::RETRY);
  EXPECT_EQ(reply.acked_seq(0), 0u);
  EXPECT_EQ(Value(Worker(0)), 0);
}

TEST_F(ShardCoreTest, AnAnswerKeepsItsVersionWhilePushesGoOn) {
  Start(wire::ASP, 1);
  ShardCore::Effects effects;
  core_->OnMessage(Worker(0), PullOf(0, 1), &effects);
  for (uint64_t seq = 1; seq <= 5; ++seq) {
    core_->OnMessage(Worker(0), PushOf(seq - 1, seq, 1), &effects);
  }
  effects.sends.clear();
  core_->Flush(&effects);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_EQ(effects.sends[0].message.header.pull_reply().version(0), 0u);
  EXPECT_EQ(First(effects.sends[0].message.payloads[0]), 0);
  EXPECT_EQ(Value(Worker(0)), -5);
}

TEST_F(ShardCoreTest, OneBatchAnswersARequestWithOneMessage) {
  Start(wire::ASP, 1);
  Message pull = PullOf(0, 3);
  pull.header.mutable_pull_request()->add_shard(1);
  const ShardCore::Effects effects = Send(Worker(0), pull);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(effects.sends[0].message.header.pull_reply().shard(),
              ElementsAre(0, 1));
  EXPECT_THAT(effects.sends[0].message.payloads, SizeIs(2));
}

TEST_F(ShardCoreTest, AJoinerStartsWithTheSlowestAndIsToldTheSameAgain) {
  Start(wire::ASP, 2);
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
    EXPECT_THAT(effects.sends[0].message.header.pull_reply().shard_clock(),
                ElementsAre(2));
    for (const int rank : {0, 1}) {
      PushCode(Worker(rank), PushOf(2, 3, 0));
    }
    PushCode(Worker(2, 30), PushOf(2, 1, 0));
  }
}

TEST_F(ShardCoreTest, ADeclaredClockContributesNothing) {
  Start(wire::BSP, 1);
  AddWorker(1, 30, /*founder=*/false);
  Publish();
  Send(Worker(1, 30), PullOf(0, 1, 0, /*join=*/true));
  EXPECT_EQ(PushCode(Worker(1, 30), AdvanceOf(2, 1)), wire::OK);
  PushCode(Worker(0), PushOf(0, 1, 4));
  EXPECT_EQ(Value(Worker(0)), -4) << "the sum over one contributor";
  PushCode(Worker(0), PushOf(1, 2, 4));
  EXPECT_EQ(PushCode(Worker(1, 30), PushOf(2, 2, 10)), wire::OK);
  PushCode(Worker(0), PushOf(2, 3, 2));
  EXPECT_EQ(Value(Worker(0)), -4 - 4 - 6);
}

TEST_F(ShardCoreTest, ABspPushAheadOfTheClockHasToWait) {
  Start(wire::BSP, 2);
  PushCode(Worker(0), PushOf(0, 1, 1));
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 1)), wire::RETRY);
  PushCode(Worker(1), PushOf(0, 1, 1));
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 1)), wire::OK);
}

TEST_F(ShardCoreTest, AStrangerOfANewerViewIsAskedToComeAgain) {
  Start(wire::ASP, 1);
  Message push = PushOf(0, 1, 5);
  push.header.set_view_number(view_.number() + 1);
  EXPECT_EQ(PushCode(Worker(3), push), wire::RETRY);
  Message pull = PullOf(0, 4);
  pull.header.set_view_number(view_.number() + 1);
  const ShardCore::Effects effects = Send(Worker(3), pull);
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(effects.sends[0].message.header.pull_reply().code(),
              ElementsAre(wire::RETRY));
}

TEST_F(ShardCoreTest, AWorkerThatIsGoneIsFenced) {
  Start(wire::ASP, 2);
  RemoveWorker(1);
  Publish();
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 5)), wire::FENCED);
  EXPECT_EQ(PushCode(Worker(0, 77), PushOf(0, 1, 5)), wire::FENCED)
      << "another incarnation";
  EXPECT_EQ(Value(Worker(0)), 0);
}

TEST_F(ShardCoreTest, BeforeTheFirstViewEverybodyIsAskedToComeAgain) {
  config::Optimizer sgd;
  sgd.mutable_sgd()->set_learning_rate(1);
  core_.emplace(ShardCore::Options{.self = {0, 0}}, *Optimizer::Create(sgd),
                config::LearningRateSchedule());
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5)), wire::RETRY);
}

TEST_F(ShardCoreTest, AnOlderViewIsIgnored) {
  Start(wire::ASP, 2);
  wire::View old = view_;
  old.clear_worker();
  ShardCore::Effects effects;
  core_->OnView(*View::Create(old), &effects);
  EXPECT_EQ(PushCode(Worker(1), PushOf(0, 1, 5)), wire::OK);
}

TEST_F(ShardCoreTest, AnotherThreadsShardIsMoved) {
  Start(wire::ASP, 1);
  EXPECT_EQ(PushCode(Worker(0), PushOf(0, 1, 5, /*shard=*/2)), wire::MOVED);
}

TEST_F(ShardCoreTest, ARejectedPushChangesNothingAndTheReasonSaysWhy) {
  Start(wire::ASP, 1);
  PushCode(Worker(0), PushOf(0, 1, 5));
  struct {
    const char* what;
    std::function<void(Message&)> spoil;
    const char* reason;
  } const cases[] = {
      {"a clock is left out",
       [](Message& m) { m.header.mutable_push_request()->set_clock(3); },
       "push to weight[0, 4) by rank 0 of clock 3: its next clock is 1"},
      {"a clock comes again",
       [](Message& m) { m.header.mutable_push_request()->set_clock(0); },
       "its next clock is 1"},
      {"too few bytes",
       [](Message& m) { m.payloads[0] = Floats(1, kElements - 1); },
       "12 bytes, the shard has 16"},
      {"no bytes", [](Message& m) { m.payloads[0] = Payload(); },
       "0 bytes, the shard has 16"},
      {"no such shard",
       [](Message& m) { m.header.mutable_push_request()->set_shard(0, 3); },
       "push to shard 3: the job has 3 shards"},
      {"a negative shard",
       [](Message& m) { m.header.mutable_push_request()->set_shard(0, -1); },
       "push to shard -1"},
      {"declares an earlier clock",
       [](Message& m) {
         wire::PushRequest& push = *m.header.mutable_push_request();
         push.set_advance(true);
         push.set_clock(0);
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
    ASSERT_EQ(reply.code_size(), 1);
    EXPECT_EQ(reply.code(0), wire::REJECTED);
    EXPECT_THAT(reply.error(), HasSubstr(c.reason));
    EXPECT_EQ(core_->Stats().malformed(), malformed + 1);
    EXPECT_EQ(core_->Stats().updates(), 1u);
  }
  EXPECT_EQ(PushCode(Worker(0), PushOf(1, 2, 5)), wire::OK)
      << "as if nothing had been";
}

TEST_F(ShardCoreTest, AMessageWhoseCountsDisagreeIsAnError) {
  Start(wire::ASP, 1);
  using Spoil = std::function<void(Message&)>;
  const std::vector<std::pair<const char*, Spoil>> pushes = {
      {"no shard",
       [](Message& m) {
         m.header.mutable_push_request()->Clear();
         m.payloads.clear();
       }},
      {"no seq",
       [](Message& m) { m.header.mutable_push_request()->clear_seq(); }},
      {"no base version",
       [](Message& m) {
         m.header.mutable_push_request()->clear_base_version();
       }},
      {"no payload", [](Message& m) { m.payloads.clear(); }},
      {"two payloads", [](Message& m) { m.payloads.push_back(Floats(1)); }},
      {"payload of a declaration",
       [](Message& m) { m.header.mutable_push_request()->set_advance(true); }},
      {"negative clock",
       [](Message& m) { m.header.mutable_push_request()->set_clock(-1); }},
      {"clock beyond all steps",
       [](Message& m) {
         m.header.mutable_push_request()->set_clock(
             std::numeric_limits<int64_t>::max());
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
      {"no shard",
       [](Message& m) { m.header.mutable_pull_request()->clear_shard(); }},
      {"payload", [](Message& m) { m.payloads.push_back(Floats(1)); }},
      {"negative clock",
       [](Message& m) { m.header.mutable_pull_request()->set_clock(-1); }},
      {"own clock ahead",
       [](Message& m) { m.header.mutable_pull_request()->set_own_clock(1); }},
  };
  for (const auto& [what, spoil] : pulls) {
    SCOPED_TRACE(what);
    Message pull = PullOf(0, 42);
    spoil(pull);
    const ShardCore::Effects effects = Send(Worker(0), pull);
    ASSERT_THAT(effects.sends, SizeIs(1));
    EXPECT_EQ(effects.sends[0].message.header.error_reply().request_id(), 42u);
    EXPECT_THAT(effects.trace, IsEmpty());
  }
  EXPECT_EQ(core_->Stats().malformed(), pushes.size() + pulls.size());
  EXPECT_EQ(Value(Worker(0)), 0);
}

TEST_F(ShardCoreTest, AnAbsurdBaseVersionOnlyCountsAsFresh) {
  Start(wire::ASP, 1);
  Message push = PushOf(0, 1, 5);
  push.header.mutable_push_request()->set_base_version(0, uint64_t{1} << 63);
  EXPECT_EQ(PushCode(Worker(0), push), wire::OK);
  EXPECT_EQ(core_->Stats().staleness_updates().max(), 0);
}

TEST_F(ShardCoreTest, AMemberThatHasNotJoinedTheShardIsToldTo) {
  Start(wire::ASP, 1);
  AddWorker(1, 30, /*founder=*/false);
  Publish();
  const wire::PushReply pushed = Push(Worker(1, 30), PushOf(0, 1, 5));
  EXPECT_EQ(pushed.code(0), wire::REJECTED);
  EXPECT_THAT(pushed.error(),
              HasSubstr("rank 1, which has not joined the shard"));
  const ShardCore::Effects effects = Send(Worker(1, 30), PullOf(0, 1));
  ASSERT_THAT(effects.sends, SizeIs(1));
  EXPECT_THAT(effects.sends[0].message.header.pull_reply().error(),
              HasSubstr("send a join pull first"));
}

}  // namespace
}  // namespace slackline
