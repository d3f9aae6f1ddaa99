// Goal: whatever the network loses, repeats or reorders, the target ends with
// the bits that the shard would have had without a move; the source keeps its
// bounds; a message that makes no sense changes nothing.
// Method: examples with a perfect link, a table of broken messages, and random
// records over a bad link against a twin that never moves.
#include "server/shard/log_feed.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_codec.h"
#include "server/shard/store/store_kinds.h"
#include "tests/support/dense_shard.h"
#include "tests/support/floats.h"

namespace slackline::log_feed_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kElements = 10;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr int kSlots = 2;  // Of Adam.
constexpr uint64_t kMove = 7;
constexpr Owner kTarget{1, 0};
const PeerId kSourcePeer{.kind = PeerId::Kind::kShardThread};

Optimizer Adam() {
  config::Optimizer config;
  config.mutable_adam()->set_learning_rate(0.1);
  return *Optimizer::Create(config);
}

ShardRange RangeOfShard() {
  return {.shard = ShardId{3}, .table = TableId{0}, .region = {20, 30}};
}

wire::Feed MoveFeed() {
  wire::Feed feed;
  feed.set_move(kMove);
  return feed;
}

Payload RandomGradient(Rng& rng) {
  std::vector<float> values(kElements);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return Payload::Copy(values.data(), kBytes);
}

std::shared_ptr<const TableRule> Rule() {
  return std::make_shared<const TableRule>(
      TableRule{{.optimizer = Adam(),
                 .schedule = *LearningRateSchedule::Create(
                     {}, {.steps_total = 100, .steps_per_epoch = 100})},
                DenseKind()});
}

WorkerLife Worker(int rank) {
  return {.rank = Rank{rank},
          .incarnation = static_cast<Incarnation>(10 + rank)};
}

ShardMachine NewShard(int workers) {
  wire::Table table;
  table.set_name("weight");
  table.add_shape(100);
  table.mutable_initializer()->set_kind(wire::Initializer::UNIFORM);
  table.mutable_initializer()->set_b(1);
  const std::shared_ptr<const TableRule> rule = Rule();
  ShardMachine shard(rule,
                     DenseShard(table, RangeOfShard(), 1, rule->optimizer));
  for (int rank = 0; rank < workers; ++rank)
    SL_CHECK(shard.Apply(JoinRecord{.who = Worker(rank)}).ok(), "no join");
  return shard;
}

std::string BytesOf(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     payload.size());
}

// Everything that a shard is, to the last bit.
std::vector<std::string> Portrait(const ShardMachine& machine) {
  const ShardRange& range = machine.shard().range();
  const ShardSnapshot snapshot = machine.Snapshot();
  std::vector<std::string> portrait = {
      absl::StrCat("shard ", static_cast<int>(range.shard), "[",
                   range.region.begin(), ", ", range.region.end(), ")"),
      EncodeSnapshot(snapshot).ShortDebugString()};
  for (const Payload& tensor : TensorsOf(snapshot))
    portrait.push_back(BytesOf(tensor));
  return portrait;
}

class LogFeedTest : public ::testing::Test {
 protected:
  LogFeedTest() {
    options_.part_bytes = 16;
    options_.window_bytes = 48;
    options_.backlog_bytes_max = 3 * kBytes;
    options_.catch_up_max = absl::Milliseconds(200);
    options_.declined_min = absl::Milliseconds(50);
    options_.declined_max = absl::Milliseconds(300);
    Use(/*bsp=*/false);
  }

  // A shard of two workers.
  void Use(bool bsp) {
    bsp_ = bsp;
    shard_.emplace(NewShard(2));
    source_.reset();
    target_.reset();
  }

  void NewTarget() {
    target_.emplace(kSourcePeer, MoveFeed(), RangeOfShard(),
                    RangeOfShard().region, Rule());
  }
  void Begin() {
    source_.emplace(options_, kTarget, MoveFeed(), *shard_, now_);
    NewTarget();
  }

  // At the source, which serves.
  void Do(const ShardRecord& record) {
    const absl::Status applied = shard_->Apply(record).status();
    ASSERT_TRUE(applied.ok()) << applied;
    if (source_.has_value()) source_->OnRecord(record, shard_->position());
  }
  GradientRecord GradientOf(int rank, Clock clock, const Payload& gradient) {
    return {.who = Worker(rank),
            .clock = clock,
            .gradient = gradient,
            .held = bsp_};
  }
  void Push(int rank, Clock clock, const Payload& gradient) {
    Do(GradientOf(rank, clock, gradient));
  }

  std::vector<Message> Pump() {
    std::vector<Message> messages;
    source_->Pump(link_, now_, &messages);
    if (!messages.empty())
      last_number_ = messages.back().header.hand_over().number();
    return messages;
  }

  // The shard, once, when the go has come.
  std::optional<ShardMachine> Arrived() {
    if (!target_->go().has_value() || target_->machine() == nullptr)
      return std::nullopt;
    return target_->Take();
  }

  absl::Status Take(const Message& message) {
    return target_->OnHandOver(message.header.hand_over(), message.payloads);
  }

  wire::HandOverReply ReplyOf(uint64_t have, bool owned = false) {
    wire::HandOverReply reply;
    reply.set_shard(3);
    *reply.mutable_feed() = MoveFeed();
    reply.set_have(have);
    reply.set_owned(owned);
    reply.set_number(last_number_);
    return reply;
  }
  // Of the last message, unless another one is named.
  void Confirm(uint64_t have) {
    source_->OnReply(ReplyOf(have), &*shard_, now_);
  }
  void ConfirmIn(const Message& to, uint64_t have) {
    wire::HandOverReply reply = ReplyOf(have);
    reply.set_number(to.header.hand_over().number());
    source_->OnReply(reply, &*shard_, now_);
  }
  void Decline(const Message& to) {
    wire::HandOverReply reply = ReplyOf(0);
    reply.set_number(to.header.hand_over().number());
    reply.set_declined(true);
    source_->OnReply(reply, &*shard_, now_);
  }

  // A perfect link, until there is nothing more to send.
  void Deliver() {
    for (std::vector<Message> messages = Pump(); !messages.empty();
         messages = Pump()) {
      for (const Message& message : messages) {
        const absl::Status taken = Take(message);
        ASSERT_TRUE(taken.ok()) << taken;
      }
      Confirm(target_->have());
    }
  }

  // The whole snapshot in one message.
  Message Snapshot() {
    options_.part_bytes = options_.window_bytes = 1 << 20;
    Begin();
    const std::vector<Message> messages = Pump();
    SL_CHECK(messages.size() == 1, "more than one message");
    return messages[0];
  }

  static std::vector<uint64_t> PositionsOf(
      const std::vector<Message>& messages) {
    std::vector<uint64_t> positions;
    for (const Message& message : messages) {
      for (int i = 0; i < message.header.hand_over().record_size(); ++i)
        positions.push_back(message.header.hand_over().position() + i);
    }
    return positions;
  }
  static size_t PayloadBytes(const std::vector<Message>& messages) {
    size_t bytes = 0;
    for (const Message& message : messages) {
      for (const Payload& payload : message.payloads) bytes += payload.size();
    }
    return bytes;
  }

  LogFeedOptions options_;
  absl::Time now_ = absl::UnixEpoch();
  bool bsp_ = false;
  std::optional<ShardMachine> shard_;
  std::optional<LogFeed> source_;
  std::optional<LogCopy> target_;
  FeedLink link_{FeedLink::Options()};
  uint64_t last_number_ = 0;
};

// ---- From one to the other --------------------------------------------------

TEST_F(LogFeedTest, AnIdleShardArrivesAsItWas) {
  Push(0, 0, Floats(1, kElements));
  Push(0, 1, Floats(-2, kElements));
  Push(1, 0, Floats(3, kElements));
  Begin();
  Deliver();
  ASSERT_TRUE(source_->CaughtUp());
  EXPECT_FALSE(Arrived().has_value()) << "before the go";
  source_->Go(wire::Go(), now_);
  Deliver();
  const std::optional<ShardMachine> arrived = Arrived();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
  EXPECT_EQ(arrived->shard().version(), 3u);
}

TEST_F(LogFeedTest, HeldGradientsGoAlong) {
  Use(/*bsp=*/true);
  Push(1, 0, Floats(4, kElements));
  Begin();
  Deliver();
  source_->Go(wire::Go(), now_);
  Deliver();
  std::optional<ShardMachine> arrived = Arrived();
  ASSERT_TRUE(arrived.has_value());
  ASSERT_THAT(arrived->held(), SizeIs(1));
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
  for (ShardMachine* const shard : {&*arrived, &*shard_})
    ASSERT_TRUE(shard->Apply(GradientOf(0, 0, Floats(2, kElements))).ok());
  EXPECT_EQ(arrived->shard().version(), 1u);
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
}

// As many as a clock of many workers has are no reason for a message that is
// too large to arrive.
TEST_F(LogFeedTest, HeldGradientsGoInPartsLikeTensors) {
  Use(/*bsp=*/true);
  shard_.emplace(NewShard(20));
  for (int rank = 1; rank < 20; ++rank)
    Push(rank, 0, Floats(static_cast<float>(rank), kElements));
  Begin();
  while (!source_->CaughtUp()) {
    for (const Message& message : Pump()) {
      EXPECT_LE(PayloadBytes({message}), options_.part_bytes);
      ASSERT_TRUE(Take(message).ok());
    }
    Confirm(target_->have());
  }
  source_->Go(wire::Go(), now_);
  Deliver();
  const std::optional<ShardMachine> arrived = Arrived();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_THAT(arrived->held(), SizeIs(19));
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
}

TEST_F(LogFeedTest, WhatHappensOnTheWayHappensToTheCopyToo) {
  Begin();
  Push(0, 0, Floats(1, kElements));
  Do(JoinRecord{.who = Worker(2)});
  Push(2, 0, Floats(5, kElements));
  Do(AdvanceRecord{.who = Worker(1), .clock = 4});
  Do(LeaveRecord{.incarnations = {Worker(0).incarnation}});
  Do(InstallRecord{.who = Worker(1),
                   .clock = 9,
                   .version = 7,
                   .values = Floats(1, kElements),
                   .slots = {Floats(2, kElements), Floats(3, kElements)},
                   .joining = {Worker(3)}});
  Deliver();
  source_->Go(wire::Go(), now_);
  Deliver();
  const std::optional<ShardMachine> arrived = Arrived();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
  EXPECT_EQ(arrived->participants().size(), 3u);
}

TEST_F(LogFeedTest, TheSnapshotIsOneVersionWhateverIsPushedMeanwhile) {
  const Message snapshot = Snapshot();
  const std::vector<std::string> before = Portrait(*shard_);
  Push(0, 0, Floats(1, kElements));
  Push(0, 1, Floats(1, kElements));
  ASSERT_TRUE(Take(snapshot).ok());
  Message go;
  go.header.mutable_hand_over()->set_position(target_->have() + 1);
  go.header.mutable_hand_over()->add_record()->mutable_go();
  ASSERT_TRUE(Take(go).ok());
  EXPECT_EQ(Portrait(*Arrived()), before);
}

TEST_F(LogFeedTest, TheShardIsTakenOnceAndNothingComesAfterTheGo) {
  Begin();
  Deliver();
  source_->Go(wire::Go(), now_);
  const std::vector<Message> messages = Pump();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_TRUE(Take(messages[0]).ok());
  const uint64_t have = target_->have();
  EXPECT_TRUE(Arrived().has_value());
  EXPECT_TRUE(Take(messages[0]).ok()) << "a repetition";
  EXPECT_FALSE(Arrived().has_value());
  Message more = messages[0];
  more.header.mutable_hand_over()->set_position(have + 1);
  EXPECT_TRUE(Take(more).ok());
  EXPECT_EQ(target_->have(), have);
}

TEST_F(LogFeedTest, TheTargetTakesOnlyTheRecordsThatAreNext) {
  Begin();
  const std::vector<Message> messages = Pump();
  ASSERT_GE(messages.size(), 2u);
  EXPECT_TRUE(Take(messages[1]).ok());
  EXPECT_EQ(target_->have(), 0u) << "the first one is missing";
  EXPECT_TRUE(Take(messages[0]).ok());
  const uint64_t have = target_->have();
  EXPECT_GT(have, 0u);
  EXPECT_TRUE(Take(messages[0]).ok());
  EXPECT_EQ(target_->have(), have);
  EXPECT_TRUE(Take(messages[1]).ok());
  EXPECT_GT(target_->have(), have);
}

// ---- The source's bounds ----------------------------------------------------

TEST_F(LogFeedTest, NoMoreThanTheWindowIsUnconfirmed) {
  Push(0, 0, Floats(1, kElements));
  Begin();
  size_t unconfirmed = 0;
  size_t most = 0;
  while (!source_->CaughtUp()) {
    const std::vector<Message> messages = Pump();
    unconfirmed += PayloadBytes(messages);
    most = std::max(most, unconfirmed);
    for (const Message& message : messages) {
      const uint64_t before = target_->have();
      ASSERT_TRUE(Take(message).ok());
      ASSERT_GT(target_->have(), before);
    }
    EXPECT_LE(unconfirmed, options_.window_bytes);
    unconfirmed = 0;
    Confirm(target_->have());
  }
  EXPECT_GT(most, options_.window_bytes / 2) << "the window is used";
}

TEST_F(LogFeedTest, SmallRecordsThatShareAMessageKeepTheWindow) {
  options_.part_bytes = 3 * kBytes;
  options_.window_bytes = 4 * kBytes;
  Begin();
  Deliver();  // The snapshot.
  for (Clock clock = 0; clock < 8; ++clock)
    Push(0, clock, Floats(1, kElements));
  const std::vector<Message> messages = Pump();
  EXPECT_THAT(messages, SizeIs(2)) << "three gradients, then one";
  EXPECT_EQ(PayloadBytes(messages), options_.window_bytes);
}

TEST_F(LogFeedTest, ARecordLargerThanTheWindowGoesAlone) {
  options_.window_bytes = 4;
  Begin();
  while (!source_->CaughtUp()) {
    const std::vector<Message> messages = Pump();
    ASSERT_THAT(messages, SizeIs(1));
    ASSERT_TRUE(Take(messages[0]).ok());
    Confirm(target_->have());
  }
}

TEST_F(LogFeedTest, TheLinkBoundsWhatIsSentAndIsWaitedFor) {
  options_.window_bytes = 1 << 20;
  options_.link.messages_max = 2;
  link_ = FeedLink(options_.link);
  Begin();
  const std::vector<Message> messages = Pump();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_THAT(link_.TakeWaiting(), IsEmpty()) << "there is no room";
  EXPECT_THAT(Pump(), IsEmpty());
  wire::HandOverReply reply;
  reply.set_shard(messages[0].header.hand_over().shard());
  *reply.mutable_feed() = messages[0].header.hand_over().feed();
  reply.set_number(messages[0].header.hand_over().number());
  link_.OnReply(reply, now_);
  EXPECT_THAT(link_.TakeWaiting(), ElementsAre(ShardId{3}));
  EXPECT_THAT(Pump(), SizeIs(1));
}

// The shard is gone for the source: if the target dies before it hears that,
// the shard dies with it.
TEST_F(LogFeedTest, TheGoLeavesAtOnceThoughTheLinkIsFull) {
  Begin();
  Deliver();
  options_.link.messages_max = 2;
  link_ = FeedLink(options_.link);
  const FeedLink::Feed another = {.shard = 4, .feed = {}};
  for (int i = 0; i < 2; ++i) link_.OnSend(another, 100, now_);
  link_.Wait(ShardId{4});
  source_->Go(wire::Go(), now_);
  const std::vector<Message> messages = Pump();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_TRUE(messages[0].header.hand_over().record(0).has_go());
}

// ---- What is sent again -----------------------------------------------------

TEST_F(LogFeedTest, ALateReplyIsNoReasonToSendAgain) {
  Begin();
  Pump();
  EXPECT_EQ(source_->NextWakeup(), absl::InfiniteFuture());
  now_ += absl::Hours(1);
  EXPECT_THAT(Pump(), IsEmpty());
}

TEST_F(LogFeedTest, WhatIsMissingFromAReplyIsSentAgainWithAllBehindIt) {
  Begin();
  const std::vector<Message> messages = Pump();
  ASSERT_GE(messages.size(), 3u);
  ConfirmIn(messages[1], 1);
  const std::vector<Message> again = Pump();
  EXPECT_EQ(PositionsOf(again).front(), 2u);
  EXPECT_GE(PositionsOf(again).back(), PositionsOf(messages).back());
  ConfirmIn(messages[2], 1);
  EXPECT_THAT(Pump(), IsEmpty()) << "it left before what was sent again";
  ConfirmIn(again[0], 1);
  EXPECT_EQ(PositionsOf(Pump()).front(), 2u) << "it was lost again";
}

TEST_F(LogFeedTest, AReplySaysNothingOfWhatLeftLater) {
  Begin();
  const std::vector<Message> messages = Pump();
  const std::vector<uint64_t> sent = PositionsOf(messages);
  const auto first =
      static_cast<uint64_t>(messages[0].header.hand_over().record_size());
  ConfirmIn(messages[0], first);
  const std::vector<uint64_t> next = PositionsOf(Pump());
  EXPECT_TRUE(next.empty() || next.front() > sent.back());
}

TEST_F(LogFeedTest, WhoDeclinesIsProbedNowAndThenAndSentNothing) {
  Begin();
  const std::vector<Message> messages = Pump();
  Decline(messages[0]);
  std::vector<absl::Duration> gaps;
  Message probe;
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(Pump(), IsEmpty());
    const absl::Time before = now_;
    now_ = source_->NextWakeup();
    gaps.push_back(now_ - before);
    const std::vector<Message> probes = Pump();
    ASSERT_THAT(probes, SizeIs(1));
    probe = probes[0];
    EXPECT_EQ(probe.header.hand_over().record_size(), 0);
    EXPECT_EQ(source_->NextWakeup(), absl::InfiniteFuture());
    if (i < 4) Decline(probe);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(50), absl::Milliseconds(100),
                          absl::Milliseconds(200), absl::Milliseconds(300),
                          absl::Milliseconds(300)));
  ASSERT_TRUE(Take(probe).ok());
  ConfirmIn(probe, target_->have());
  EXPECT_EQ(PositionsOf(Pump()), PositionsOf(messages));
}

TEST_F(LogFeedTest, ALateRefusalHoldsNothingUp) {
  Begin();
  const std::vector<Message> messages = Pump();
  ASSERT_GE(messages.size(), 2u);
  ConfirmIn(messages[0], 0);  // Lost.
  const std::vector<Message> again = Pump();
  Decline(messages[1]);
  EXPECT_EQ(source_->NextWakeup(), absl::InfiniteFuture());
  ASSERT_TRUE(Take(again[0]).ok());
  ConfirmIn(again[0], target_->have());
  EXPECT_FALSE(Pump().empty());
}

TEST_F(LogFeedTest, InDoubtAreEntriesThatMayBeLostAndProbes) {
  Begin();
  const std::vector<Message> messages = Pump();
  const uint64_t first = messages[0].header.hand_over().number();
  EXPECT_TRUE(source_->IsInDoubt(MoveFeed(), first));
  EXPECT_FALSE(source_->IsInDoubt(MoveFeed(), first - 1));
  wire::Feed other = MoveFeed();
  other.set_move(kMove + 1);
  EXPECT_FALSE(source_->IsInDoubt(other, first));
  Decline(messages[0]);
  EXPECT_FALSE(source_->IsInDoubt(MoveFeed(), last_number_))
      << "it is asked later in any case";
  now_ = source_->NextWakeup();
  Pump();
  EXPECT_TRUE(source_->IsInDoubt(MoveFeed(), last_number_));
  EXPECT_FALSE(source_->IsInDoubt(MoveFeed(), last_number_ - 1));
  Confirm(0);
  Deliver();
  EXPECT_FALSE(source_->IsInDoubt(MoveFeed(), last_number_));
}

TEST_F(LogFeedTest, RequestsWaitWhileTheBacklogIsTooLarge) {
  Begin();
  for (Clock clock = 0; clock < 3; ++clock)
    Push(0, clock, Floats(1, kElements));
  EXPECT_FALSE(source_->MustWait(now_)) << "the snapshot does not count";
  Push(0, 3, Floats(1, kElements));
  EXPECT_TRUE(source_->MustWait(now_));
  Deliver();
  EXPECT_FALSE(source_->MustWait(now_));
}

TEST_F(LogFeedTest, RequestsWaitWhenTheTargetDoesNotCatchUpInTime) {
  Begin();
  now_ += absl::Seconds(10);
  EXPECT_FALSE(source_->MustWait(now_)) << "the snapshot may take its time";
  Push(0, 0, Floats(1, kElements));
  Deliver();
  ASSERT_TRUE(source_->CaughtUp());
  Push(0, 1, Floats(1, kElements));
  now_ += absl::Milliseconds(200);
  EXPECT_FALSE(source_->MustWait(now_));
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(source_->MustWait(now_));
  Deliver();
  EXPECT_FALSE(source_->MustWait(now_)) << "it has";
}

TEST_F(LogFeedTest, NobodyWaitsAtTheSourceAfterTheGo) {
  options_.catch_up_max = absl::ZeroDuration();
  Begin();
  Deliver();
  source_->Go(wire::Go(), now_);
  now_ += absl::Seconds(1);
  EXPECT_FALSE(source_->MustWait(now_));
}

// ---- What the source is told ------------------------------------------------

TEST_F(LogFeedTest, TheTargetHasCaughtUpWhenAllIsConfirmed) {
  Begin();
  EXPECT_FALSE(source_->CaughtUp());
  Deliver();
  EXPECT_TRUE(source_->CaughtUp());
  Push(0, 0, Floats(1, kElements));
  EXPECT_FALSE(source_->CaughtUp());
  Deliver();
  EXPECT_TRUE(source_->CaughtUp());
  source_->Go(wire::Go(), now_);
  EXPECT_FALSE(source_->CaughtUp()) << "there is nothing to be done twice";
}

TEST_F(LogFeedTest, RepliesThatMakeNoSenseAreIgnored) {
  Begin();
  const std::vector<uint64_t> sent = PositionsOf(Pump());
  wire::HandOverReply other = ReplyOf(2);
  other.mutable_feed()->set_move(kMove + 1);
  source_->OnReply(other, &*shard_, now_);
  EXPECT_THAT(Pump(), IsEmpty()) << "as if nothing had been heard";
  source_->OnReply(ReplyOf(0, /*owned=*/true), &*shard_, now_);
  EXPECT_FALSE(source_->owned_by_target()) << "it was not told to own it";
  EXPECT_EQ(PositionsOf(Pump()), sent) << "that it has nothing, is believed";
  Confirm(uint64_t{1} << 60);
  EXPECT_EQ(PositionsOf(Pump()).front(), sent.back() + 1)
      << "no more can be confirmed than was sent";
  wire::HandOverReply late = ReplyOf(1);
  late.set_number(1);
  source_->OnReply(late, &*shard_, now_);
  EXPECT_THAT(Pump(), IsEmpty());
}

TEST_F(LogFeedTest, OwnedByTheTargetOnceItSaysSo) {
  Begin();
  Deliver();
  source_->Go(wire::Go(), now_);
  Pump();
  EXPECT_TRUE(source_->gone());
  EXPECT_FALSE(source_->owned_by_target());
  source_->OnReply(ReplyOf(0, /*owned=*/true), &*shard_, now_);
  EXPECT_TRUE(source_->owned_by_target());
  now_ += absl::Hours(1);
  EXPECT_THAT(Pump(), IsEmpty());
}

TEST_F(LogFeedTest, ReportsBytesAndTimes) {
  Begin();
  EXPECT_EQ(source_->Report().bytes(), 0);
  Deliver();
  now_ += absl::Milliseconds(30);
  source_->Go(wire::Go(), now_);
  Pump();
  now_ += absl::Microseconds(400);
  source_->OnReply(ReplyOf(target_->have() + 1, /*owned=*/true), &*shard_,
                   now_);
  const run::HandOverState report = source_->Report();
  EXPECT_EQ(report.shard(), 3);
  EXPECT_EQ(report.move(), kMove);
  EXPECT_EQ(report.bytes(), static_cast<int64_t>((1 + kSlots) * kBytes));
  EXPECT_EQ(report.copy_micros(), 30000);
  EXPECT_EQ(report.pause_micros(), 400);
}

// What it was sent before, it was sent as a follower.
TEST_F(LogFeedTest, AMoveToAFollowerReportsNothingButItsOwnTime) {
  wire::Feed feed;
  feed.set_follower(5);
  source_.emplace(options_, kTarget, feed, *shard_, now_);
  Pump();
  ASSERT_GT(source_->ReportFollower().bytes(), 0);
  now_ += absl::Seconds(100);
  wire::HandOverReply reply = ReplyOf(1 << 20);
  *reply.mutable_feed() = feed;
  while (!source_->CaughtUp()) {
    reply.set_number(last_number_);
    source_->OnReply(reply, &*shard_, now_);
    Pump();
  }
  source_->BeginMove(now_);
  now_ += absl::Milliseconds(3);
  wire::Go go;
  go.set_move(kMove);
  source_->Go(go, now_);
  Pump();
  EXPECT_EQ(source_->Report().move(), kMove);
  EXPECT_EQ(source_->Report().bytes(), 0);
  EXPECT_EQ(source_->Report().copy_micros(), 3000);
}

TEST_F(LogFeedTest, RepetitionsCountAsBytesSent) {
  Begin();
  const size_t once = PayloadBytes(Pump());
  Confirm(0);
  std::vector<Message> messages;
  EXPECT_EQ(source_->Pump(link_, now_, &messages), once);
  EXPECT_EQ(PayloadBytes(messages), once);
  EXPECT_EQ(source_->Report().bytes(), static_cast<int64_t>(2 * once));
}

// ---- Messages that make no sense --------------------------------------------

using Spoil = std::function<void(Message&)>;

wire::HandOverRecord& RecordOf(Message& message, int i) {
  return *message.header.mutable_hand_over()->mutable_record(i);
}

// As its only record.
void Put(const ShardRecord& record, Message* message) {
  *RecordOf(*message, 0).mutable_record() =
      EncodeRecord(record, &message->payloads);
}

TEST_F(LogFeedTest, ABrokenSnapshotIsRefusedAndChangesNothing) {
  Use(/*bsp=*/true);
  Push(1, 0, Floats(4, kElements));
  const Message good = Snapshot();
  // Records: the snapshot, values, two slots, the held gradient.
  ASSERT_EQ(good.header.hand_over().record_size(), 5);
  ASSERT_THAT(good.payloads, SizeIs(4));
  const struct {
    const char* what;
    Spoil spoil;
    const char* reason;
    uint64_t have;  // The records before the broken one are good.
  } cases[] = {
      {"a snapshot that makes no sense",
       [](Message& m) {
         RecordOf(m, 0).mutable_snapshot()->set_complete_clock(-1);
       },
       "record 1: clock -1 is outside", 0},
      {"a held gradient of another size",
       [](Message& m) { m.payloads[3] = Floats(4, kElements + 1); },
       "a part of 44 bytes at 0 of tensor 3", 4},
      {"no payload frames", [](Message& m) { m.payloads.clear(); },
       "record 2 needs 1 payload frames, and has 0", 1},
      {"a payload frame too few", [](Message& m) { m.payloads.pop_back(); },
       "record 5 needs 1 payload frames, and has 0", 4},
      {"a tensor that there is not",
       [](Message& m) { RecordOf(m, 4).mutable_part()->set_tensor(4); },
       "of tensor 4: the next one is at 0 of tensor 3; the shard has 4 "
       "tensors, and this one 40 bytes",
       4},
      {"a tensor before its turn",
       [](Message& m) { RecordOf(m, 2).mutable_part()->set_tensor(2); },
       "of tensor 2: the next one is at 0 of tensor 1", 2},
      {"a negative tensor",
       [](Message& m) { RecordOf(m, 2).mutable_part()->set_tensor(-1); },
       "of tensor -1: the next one is at 0 of tensor 1", 2},
      {"an empty part", [](Message& m) { m.payloads[0] = Payload(); },
       "a part of 0 bytes at 0 of tensor 0", 1},
      {"a part beyond the end",
       [](Message& m) { RecordOf(m, 1).mutable_part()->set_offset(4); },
       "a part of 40 bytes at 4 of tensor 0", 1},
      {"an offset that overflows",
       [](Message& m) {
         RecordOf(m, 1).mutable_part()->set_offset(~uint64_t{0} - 7);
       },
       "a part of 40 bytes at 18446744073709551608", 1},
      {"a part too large", [](Message& m) { m.payloads[0] = Floats(1, 11); },
       "a part of 44 bytes at 0 of tensor 0", 1},
      {"a part before the snapshot",
       [](Message& m) {
         m.header.mutable_hand_over()->mutable_record()->DeleteSubrange(0, 1);
       },
       "record 1: a part without a snapshot before it", 0},
      {"a go before the snapshot is complete",
       [](Message& m) { RecordOf(m, 3).mutable_go(); },
       "record 4: it is of a kind that is not known, or has no place", 3},
      {"a record before the snapshot is complete",
       [](Message& m) { RecordOf(m, 3).mutable_record()->mutable_leave(); },
       "record 4: it comes before the snapshot is complete", 3},
      {"a record of no kind", [](Message& m) { RecordOf(m, 3).Clear(); },
       "record 4: it is of a kind that is not known, or has no place", 3},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    NewTarget();
    Message broken = good;
    c.spoil(broken);
    const absl::Status taken = Take(broken);
    EXPECT_EQ(taken.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(taken.message()), HasSubstr(c.reason));
    EXPECT_EQ(target_->have(), c.have);
    EXPECT_FALSE(Arrived().has_value());
    ASSERT_TRUE(Take(good).ok()) << "the source sends it again";
    source_.emplace(options_, kTarget, MoveFeed(), *shard_, now_);
    Deliver();
    source_->Go(wire::Go(), now_);
    Deliver();
    const std::optional<ShardMachine> arrived = Arrived();
    ASSERT_TRUE(arrived.has_value());
    EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
  }
}

TEST_F(LogFeedTest, ABrokenRecordOfTheHistoryIsRefusedAndChangesNothing) {
  const Message snapshot = Snapshot();
  const struct {
    const char* what;
    Spoil make;
    const char* reason;
  } cases[] = {
      {"a gradient of another size",
       [&](Message& m) { Put(GradientOf(0, 0, Floats(1, kElements + 1)), &m); },
       "record 5: a tensor of 44 bytes; the shard has 40"},
      {"no gradient",
       [&](Message& m) {
         Put(GradientOf(0, 0, Floats(1, kElements)), &m);
         m.payloads.clear();
       },
       "record 5 needs 1 payload frames, and has 0"},
      {"an installation without its slots",
       [](Message& m) {
         Put(
             InstallRecord{
                 .who = Worker(0), .clock = 3, .values = Floats(1, kElements)},
             &m);
       },
       "record 5 needs 3 payload frames, and has 1"},
      {"a rank joins that takes part",
       [](Message& m) { Put(JoinRecord{.who = Worker(1)}, &m); },
       "record 5: rank 1 (incarnation 11) joins, and takes part already"},
      {"a split",
       [](Message& m) { Put(SplitRecord{.at = 25, .part = ShardId{4}}, &m); },
       "record 5: a shard on its way is not split in two"},
      {"a record of no kind",
       [](Message& m) { RecordOf(m, 0).mutable_record(); },
       "record 5: a record of a kind that is not known"},
      {"no kind", [](Message&) {},
       "record 5: it is of a kind that is not known"},
  };
  ASSERT_TRUE(Take(snapshot).ok());
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Message broken;
    broken.header.mutable_hand_over()->set_position(5);
    broken.header.mutable_hand_over()->add_record();
    c.make(broken);
    // What comes before is taken, what comes behind is not.
    const absl::Status taken = Take(broken);
    EXPECT_EQ(taken.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(taken.message()), HasSubstr(c.reason));
    EXPECT_EQ(target_->have(), 4u);
  }
  Confirm(4);
  source_->Go(wire::Go(), now_);
  Deliver();
  const std::optional<ShardMachine> arrived = Arrived();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*shard_));
}

// ---- Random histories over a bad link ---------------------------------------

// Loses, repeats and reorders.
template <typename T>
class BadLink {
 public:
  explicit BadLink(double fault) : fault_(fault) {}
  void Send(const T& message, Rng& rng) {
    if (rng.Chance(fault_)) return;
    on_the_way_.push_back(message);
    if (rng.Chance(fault_)) on_the_way_.push_back(message);
  }
  bool empty() const { return on_the_way_.empty(); }
  T Receive(Rng& rng) {
    const size_t i = rng.Chance(fault_) ? rng.Below(on_the_way_.size()) : 0;
    T message = std::move(on_the_way_[i]);
    on_the_way_.erase(on_the_way_.begin() + static_cast<std::ptrdiff_t>(i));
    return message;
  }

 private:
  const double fault_;
  std::vector<T> on_the_way_;
};

ShardRecord RandomRecord(Rng& rng, bool bsp, const ShardMachine& shard,
                         Incarnation* next_incarnation) {
  const Participants& all = shard.participants();
  const uint64_t kind = rng.Below(20);
  const Rank other{static_cast<int32_t>(rng.Below(5))};
  if ((kind == 0 || all.empty()) && !all.Has(other)) {
    return JoinRecord{.who = {other, (*next_incarnation)++},
                      .clock = shard.complete_clock()};
  }
  if (all.empty()) return LeaveRecord{};
  const Participant& who = all.begin()[rng.Below(all.size())];
  const WorkerLife life{who.rank, who.incarnation};
  if (kind == 1) return LeaveRecord{.incarnations = {who.incarnation}};
  if (kind == 2 && rng.Chance(0.2)) {
    return InstallRecord{.who = life,
                         .clock = shard.complete_clock() + rng.Between(1, 3),
                         .version = shard.shard().version() + 5,
                         .values = RandomGradient(rng),
                         .slots = {RandomGradient(rng), RandomGradient(rng)}};
  }
  if (kind <= 3 || (bsp && who.clock != shard.complete_clock()))
    return AdvanceRecord{.who = life, .clock = who.clock + rng.Between(0, 2)};
  return GradientRecord{.who = life,
                        .clock = who.clock,
                        .gradient = RandomGradient(rng),
                        .held = bsp,
                        .spare = bsp ? static_cast<int>(rng.Below(2)) : 0,
                        .options = {.rate_factor = bsp ? 1 : rng.Uniform()}};
}

class HandOverHistories : public ::testing::TestWithParam<bool> {};

TEST_P(HandOverHistories, TheTargetEndsWithTheBitsOfATwinThatNeverMoved) {
  const bool bsp = GetParam();
  int64_t records_on_the_way = 0;
  int64_t repetitions = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const int workers = static_cast<int>(rng.Between(1, 4));
    ShardMachine twin = NewShard(workers);
    std::optional<ShardMachine> serving(NewShard(workers));
    std::optional<LogFeed> source;
    Incarnation next_incarnation = 100;

    // A record that fits, done to both.
    const auto act = [&] {
      const ShardRecord record =
          RandomRecord(rng, bsp, twin, &next_incarnation);
      const absl::Status applied = serving->Apply(record).status();
      ASSERT_TRUE(applied.ok()) << applied;
      ASSERT_TRUE(twin.Apply(record).ok());
      if (!source.has_value()) return;
      source->OnRecord(record, serving->position());
      ++records_on_the_way;
    };

    for (int i = 0; i < 10; ++i) act();
    LogFeedOptions options;
    options.part_bytes = static_cast<size_t>(4 * rng.Between(1, 20));
    options.window_bytes = static_cast<size_t>(4 * rng.Between(1, 60));
    absl::Time now = absl::UnixEpoch();
    options.link.window_bytes = static_cast<size_t>(rng.Between(100, 1000));
    options.link.messages_max = static_cast<int>(rng.Between(1, 20));
    FeedLink link(options.link);
    source.emplace(options, kTarget, MoveFeed(), *serving, now);
    LogCopy target(kSourcePeer, MoveFeed(), RangeOfShard(),
                   RangeOfShard().region, Rule());
    const double fault = 0.3 * rng.Uniform();
    const double activity = 0.3 * rng.Uniform();
    BadLink<Message> there(fault);
    BadLink<wire::HandOverReply> back(fault);
    std::optional<ShardMachine> arrived;
    for (int step = 0; !source->owned_by_target(); ++step) {
      ASSERT_LT(step, 20000) << "no progress";
      const bool quiet = step > 300;  // Then the target can catch up.
      if (!source->gone() && !quiet && rng.Chance(activity)) act();
      if (rng.Chance(0.1) || (there.empty() && back.empty())) {
        now += absl::Milliseconds(20);
      }
      std::vector<Message> messages;
      link.TakeWaiting();  // It is the only feed.
      if (source->Pump(link, now, &messages) > 0) ++repetitions;
      if (const auto late = link.OnTick(now))
        messages.push_back(link.Probe(*late, now));
      for (const Message& message : messages) there.Send(message, rng);
      if (!there.empty() && rng.Chance(0.5)) {
        const Message message = there.Receive(rng);
        const absl::Status taken =
            target.OnHandOver(message.header.hand_over(), message.payloads);
        ASSERT_TRUE(taken.ok()) << taken;
        if (target.go().has_value() && target.machine() != nullptr) {
          ASSERT_FALSE(arrived.has_value()) << "it has arrived twice";
          ASSERT_TRUE(source->gone()) << "two owners";
          arrived = target.Take();
        }
        wire::HandOverReply reply;
        reply.set_shard(message.header.hand_over().shard());
        *reply.mutable_feed() = MoveFeed();
        reply.set_have(target.have());
        reply.set_owned(arrived.has_value());
        reply.set_number(message.header.hand_over().number());
        back.Send(reply, rng);
      }
      if (!back.empty() && rng.Chance(0.5)) {
        const wire::HandOverReply reply = back.Receive(rng);
        for (const FeedLink::Feed& feed : link.OnReply(reply, now)) {
          if (source->IsInDoubt(feed.feed, reply.number()))
            there.Send(link.Probe(feed, now), rng);
        }
        source->OnReply(reply, &*serving, now);
        if (source->CaughtUp()) source->Go(wire::Go(), now);
      }
    }
    ASSERT_TRUE(arrived.has_value());
    ASSERT_EQ(Portrait(*arrived), Portrait(twin));
    serving = std::move(arrived);
    source.reset();
    for (int i = 0; i < 10; ++i) act();
    ASSERT_EQ(Portrait(*serving), Portrait(twin)) << "as a new owner";
  }
  EXPECT_GT(records_on_the_way, 2000);
  EXPECT_GT(repetitions, 2000);
}

INSTANTIATE_TEST_SUITE_P(BothKinds, HandOverHistories, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Bsp" : "Async";
                         });

}  // namespace slackline::log_feed_test
