// Goal: a shard whose store gets no memory ends its thread with an error that
// names the shard and the bytes. Nobody is told that its shards did what they
// could not, and nothing is asked of the store any more.
// Method: two cores with a link by hand, whose stores are refused memory at
// each of the places where they need some.
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/data_messages.h"
#include "tests/support/floats.h"
#include "tests/support/tight_store.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_move_fixture.h"

namespace slackline::store_memory_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreMemoryTest : public ShardMoveTest {
 protected:
  StoreMemoryTest() { store_ = tight_; }
  void TearDown() override {
    // Whoever failed does nothing more, whatever comes.
    if (failed_ != nullptr) {
      ShardCore::Effects effects;
      failed_->OnMessage(Worker(0), PushOf(5, 6, 1), &effects);
      failed_->OnMessage(Worker(0), PullOf(0), &effects);
      NextView();
      failed_->OnView(*View::Create(view_), &effects);
      failed_->OnTick(now_ + absl::Seconds(60), &effects);
      failed_->Flush(&effects);
      EXPECT_THAT(effects.sends, IsEmpty());
    }
    EXPECT_EQ(tight_->asked_after_failure, 0);
  }

  // That is what came of an event of a server whose memory is used up.
  void ExpectFailure(int server, const std::string& what,
                     ShardCore::Effects effects) {
    tight_->refusals = 0;
    failed_ = &*cores_[server];
    failed_->Flush(&effects);
    EXPECT_EQ(effects.failure.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(effects.failure.message()),
                AllOf(HasSubstr(what), HasSubstr(": no memory for "),
                      HasSubstr(" bytes")));
    for (const Outgoing& out : effects.sends) {
      EXPECT_FALSE(out.message.header.has_push_reply());
      EXPECT_TRUE(has_come_ || !out.message.header.has_hand_over_reply());
    }
  }
  void Fails(int server, const std::string& what, const PeerId& from,
             const Message& message) {
    tight_->refusals = kAll;
    ShardCore::Effects effects;
    cores_[server]->OnMessage(from, message, &effects);
    ExpectFailure(server, what, std::move(effects));
  }
  void FailsWithView(int server, const std::string& what) {
    NextView();
    tight_->refusals = kAll;
    ShardCore::Effects effects;
    cores_[server]->OnView(*View::Create(view_), &effects);
    ExpectFailure(server, what, std::move(effects));
  }
  // What is on the wire is delivered, until a server fails.
  void FailsWithDelivery(int server, const std::string& what) {
    tight_->refusals = kAll;
    while (!wire_.empty()) {
      const OnTheWire next = std::move(wire_.front());
      wire_.pop_front();
      ShardCore::Effects effects;
      cores_[next.to]->OnMessage(Thread(next.from), next.message, &effects);
      if (!effects.failure.ok()) {
        EXPECT_EQ(next.to, server);
        return ExpectFailure(server, what, std::move(effects));
      }
      Take(next.to, std::move(effects));
    }
    FAIL() << "nobody has failed";
  }

  static constexpr int kAll = 1000;
  bool has_come_ = false;  // A shard, of which its last owner is told.
  const std::shared_ptr<TightKind> tight_ = std::make_shared<TightKind>();
  ShardCore* failed_ = nullptr;
};

TEST_F(StoreMemoryTest, AShardCannotBegin) {
  Start("asp", 1);
  cores_[0].emplace(
      ShardCore::Options{.self = {0, 0},
                         .store_of = [this](const auto&) { return store_; }},
      config::LearningRateSchedule());
  FailsWithView(0, "cannot begin with shard weight[0, 4)");
  EXPECT_FALSE(cores_[0]->Owns(ShardId{0}));
}

TEST_F(StoreMemoryTest, AnUpdateIsNotSaidToBeDone) {
  Start("asp", 1);
  Fails(0, "cannot go on with shard weight[0, 4): no memory for 16 bytes",
        Worker(0), PushOf(0, 1, 2));
}

TEST_F(StoreMemoryTest, AllOfAMessageIsUnsaidAndAShardThatFailedIsNotAsked) {
  Start("asp", 1);
  Message message = PushOf(0, 1, 2);
  for (const int32_t shard : {0, 1}) {
    *message.header.mutable_push_request()->add_push() =
        PushOf(shard == 0 ? 1 : 0, shard == 0 ? 2 : 1, 2, shard)
            .header.push_request()
            .push(0);
    message.payloads.push_back(Floats(2, kElements));
  }
  Fails(0, "cannot go on with shard weight[", Worker(0), message);
}

TEST_F(StoreMemoryTest, AClockThatIsCompleteCannotBeApplied) {
  Start("bsp", 2);
  Send(0, Worker(0), PushOf(0, 1, 2));
  Fails(0, "cannot go on with shard weight[0, 4)", Worker(1), PushOf(0, 1, 2));
}

TEST_F(StoreMemoryTest, AShardCannotBeSplit) {
  Start("asp", 1);
  Split(0, 2);
  FailsWithView(0, "cannot go on with shard weight[0, 2)");
  EXPECT_FALSE(cores_[0]->Owns(ShardId{3}));
}

TEST_F(StoreMemoryTest, AShardCannotArrive) {
  Start("asp", 1);
  Move(0, 1);
  Show();
  FailsWithDelivery(1, "cannot copy shard weight[0, 4): record ");
  EXPECT_FALSE(cores_[1]->Owns(ShardId{0}));
}

// The first of them, a push, is what there is no memory for; who joins after it
// would be asked for his clock.
TEST_F(StoreMemoryTest, WhatWaitsForAShardIsNotDoneAfterAFailure) {
  Start("asp", 1);
  AddWorker(1, 11);
  Move(0, 1);
  Show();
  Deliver(1);  // Its first part.
  Send(1, Worker(0), PushOf(0, 1, 2));
  Send(1, Worker(1), JoinPullOf());
  ASSERT_EQ(cores_[1]->waiting_count(), 2u);
  tight_->granted_before = 1;  // What arrives.
  has_come_ = true;
  FailsWithDelivery(1, "cannot go on with shard weight[0, 4)");
}

TEST_F(StoreMemoryTest, AFollowerCannotGoOn) {
  followed_ = true;
  Start("asp", 1);
  Deliver();
  Send(0, Worker(0), PushOf(0, 1, 2));
  FailsWithDelivery(1, "cannot copy shard weight[0, 4): record ");
  Deliver();
  EXPECT_THAT(Replies(), IsEmpty()) << "its follower does not have it";
}

TEST_F(StoreMemoryTest, WhoTakesOverCannotSplitItsCopy) {
  followed_ = true;
  Start("asp", 1);
  Deliver();
  Split(0, 2);
  Promote(0);
  FailsWithView(1, "cannot split the copy of shard weight[0, 2)");
}

TEST_F(StoreMemoryTest, AnInstallationCannotBeTaken) {
  ShardSnapshot snapshot;
  snapshot.values = Floats(0, kElements);
  snapshot.participants = {{.rank = Rank{0}, .incarnation = 10}};
  ShardMachine machine =
      ShardMachine::Create(
          std::make_shared<const TableRule>(
              TableRule{{.optimizer = *Optimizer::Create(Sgd()),
                         .schedule = *LearningRateSchedule::Create(
                             {}, {.steps_total = 1, .steps_per_epoch = 1})},
                        store_}),
          {.region = Region::First(kElements)}, std::move(snapshot))
          .value();
  tight_->refusals = kAll;
  EXPECT_EQ(machine
                .Apply(InstallRecord{.who = {Rank{0}, 10},
                                     .clock = 1,
                                     .version = 1,
                                     .values = Floats(1, kElements)})
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

// The job goes on without this checkpoint.
TEST_F(StoreMemoryTest, ACutThatNeedsACopyIsLost) {
  Start("asp", 2);
  view_.mutable_cut()->set_number(1);
  view_.mutable_cut()->set_clock(1);
  Show();
  Send(0, Worker(0), PushOf(0, 1, 1));
  tight_->refusals = 1;
  Send(0, Worker(0), PushOf(1, 2, 1));
  ASSERT_TRUE(cut_[0].has_value());
  EXPECT_THAT(cut_[0]->error,
              AllOf(HasSubstr("shard weight[0, 4) has no state at the cut: "),
                    HasSubstr("no memory for 16 bytes")));
  EXPECT_EQ(Value(0), -1) << "the job goes on";
}

// ---- Dense stores -----------------------------------------------------------

class NoMemory final : public PayloadMemory {
 public:
  Payload Allocate(size_t /*bytes*/) override { throw std::bad_alloc(); }
};

TEST(DenseStoreTest, MemoryThatIsRefusedIsAnErrorWithItsBytes) {
  wire::Table table;
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  const Optimizer adam = *Optimizer::Create(Adam());
  const std::unique_ptr<ShardStore> store =
      DenseKind()->Initial(table, Region::First(4), 1, adam).value();
  NoMemory none;
  const Payload gradient = Floats(1, 4);
  const absl::Status applied =
      store->Apply({.optimizer = adam,
                    .gradients = absl::MakeConstSpan(&gradient, 1),
                    .numbers = {.learning_rate = 1},
                    .memory = none});
  EXPECT_EQ(applied.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(applied.message()),
              HasSubstr("48 bytes of its next version"));
  EXPECT_EQ(First(store->values()), 0);
}

}  // namespace slackline::store_memory_test
