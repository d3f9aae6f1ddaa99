// Goal: whatever the network loses, repeats or reorders, the target ends with
// the bits that the shard would have had without a move; the source keeps its
// bounds; a message that makes no sense changes nothing.
// Method: examples with a perfect link, a table of broken messages, and random
// histories over a bad link against a twin that never moves.
#include "server/shard/hand_over.h"

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

namespace slackline {
namespace {

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
  return {.shard = ShardId{3}, .table = TableId{0}, .begin = 20, .end = 30};
}

Payload Floats(float value, int count = kElements) {
  const std::vector<float> values(count, value);
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

Payload RandomGradient(Rng& rng) {
  std::vector<float> values(kElements);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return Payload::Copy(values.data(), kBytes);
}

// What an owner does, in few words: the same at the source, the target and the
// twin.
class PlainOwner : public HandOverTarget::Replay {
 public:
  explicit PlainOwner(bool bsp) : bsp_(bsp), optimizer_(Adam()) {}

  ShardState NewShard(int workers) const {
    wire::Table table;
    table.set_name("weight");
    table.add_shape(100);
    table.mutable_initializer()->set_kind(wire::Initializer::UNIFORM);
    table.mutable_initializer()->set_b(1);
    ShardState state{.shard = Shard(table, RangeOfShard(), 1, optimizer_),
                     .gate = {},
                     .held = {},
                     .stale = {}};
    for (int rank = 0; rank < workers; ++rank) {
      state.gate.Join(Rank{rank}, static_cast<Incarnation>(10 + rank), 0);
    }
    return state;
  }

  void Push(ShardState& state, const wire::TakenPush& push,
            const Payload& gradient) override {
    StalenessGate::Participant* const participant =
        state.gate.Find(Rank{push.rank()}, push.incarnation());
    SL_CHECK(participant != nullptr, "a push by nobody");
    ++participant->next_seq;
    state.gate.Advance(*participant, push.clock() + (push.advance() ? 0 : 1));
    if (!push.advance() && !bsp_) Apply(state, {gradient});
    if (!push.advance() && bsp_) {
      const auto at =
          std::find_if(state.held.begin(), state.held.end(),
                       [&](const ShardState::Held& held) {
                         return held.rank > Rank{push.rank()} ||
                                (held.rank == Rank{push.rank()} &&
                                 held.incarnation > push.incarnation());
                       });
      state.held.insert(at, {.rank = Rank{push.rank()},
                             .incarnation = push.incarnation(),
                             .gradient = gradient});
    }
    ApplyHeld(state);
  }

  void Left(ShardState& state, const wire::LeftWorkers& left) override {
    state.gate.RemoveUnless([&](const StalenessGate::Participant& p) {
      return std::count(left.incarnation().begin(), left.incarnation().end(),
                        p.incarnation) == 0;
    });
    ApplyHeld(state);
  }

 private:
  void Apply(ShardState& state, const std::vector<Payload>& gradients) const {
    state.shard.Apply(optimizer_, gradients,
                      1.0f / static_cast<float>(gradients.size()), 0.1f);
  }
  void ApplyHeld(ShardState& state) const {
    if (!bsp_ || state.gate.MinClock() <= state.bsp_clock) return;
    std::vector<Payload> gradients;
    for (const ShardState::Held& held : state.held)
      gradients.push_back(held.gradient);
    if (!gradients.empty()) Apply(state, gradients);
    state.held.clear();
    state.bsp_clock = state.gate.MinClock();
  }

  const bool bsp_;
  const Optimizer optimizer_;
};

std::string BytesOf(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     payload.size());
}

// Everything that a shard is, to the last bit.
std::vector<std::string> Portrait(const ShardState& state) {
  std::vector<std::string> portrait = {
      absl::StrCat("shard ", static_cast<int>(state.shard.range().shard), "[",
                   state.shard.range().begin, ", ", state.shard.range().end,
                   ") version ", state.shard.version(), " bsp clock ",
                   state.bsp_clock, " min clock ", state.gate.MinClock()),
      BytesOf(state.shard.values())};
  for (const Payload& slot : state.shard.slots())
    portrait.push_back(BytesOf(slot));
  for (const ShardState::Held& held : state.held) {
    portrait.push_back(absl::StrCat("held ", static_cast<int>(held.rank), ".",
                                    held.incarnation));
    portrait.push_back(BytesOf(held.gradient));
  }
  for (const StalenessGate::Participant& p : state.gate.participants()) {
    portrait.push_back(absl::StrCat(
        "rank ", static_cast<int>(p.rank), ".", p.incarnation, " joined at ",
        p.joined_at, " clock ", p.clock, " next seq ", p.next_seq));
  }
  return portrait;
}

wire::TakenPush PushOf(int rank, Clock clock, bool advance = false) {
  wire::TakenPush push;
  push.set_rank(rank);
  push.set_incarnation(static_cast<uint64_t>(10 + rank));
  push.set_clock(clock);
  push.set_advance(advance);
  return push;
}

class HandOverTest : public ::testing::Test {
 protected:
  HandOverTest() {
    options_.part_bytes = 16;
    options_.window_bytes = 48;
    options_.backlog_bytes_max = 3 * kBytes;
    options_.catch_up_max = absl::Milliseconds(200);
    options_.resend_initial = absl::Milliseconds(50);
    options_.resend_max = absl::Milliseconds(300);
    Use(/*bsp=*/false);
  }

  // A shard of two workers.
  void Use(bool bsp) {
    owner_.emplace(bsp);
    state_.emplace(owner_->NewShard(2));
    source_.reset();
    target_.reset();
  }

  void Begin() {
    source_.emplace(options_, kTarget, kMove, *state_, now_);
    target_.emplace(kSourcePeer, kMove);
  }

  // At the source, which serves.
  void Push(const wire::TakenPush& push, const Payload& gradient) {
    owner_->Push(*state_, push, gradient);
    if (!source_.has_value()) return;
    source_->OnPush(Rank{push.rank()}, push.incarnation(), push.clock(),
                    push.advance(), gradient, /*rate_factor=*/1);
  }

  std::vector<Message> Pump() {
    std::vector<Message> messages;
    source_->Pump(now_, &messages);
    return messages;
  }

  absl::Status Take(const Message& message) {
    return target_->OnRecords(message.header.hand_over(), message.payloads,
                              RangeOfShard(), kSlots, &*owner_);
  }

  wire::HandOverReply ReplyOf(uint64_t have, bool owned = false) {
    wire::HandOverReply reply;
    reply.set_shard(3);
    reply.set_move(kMove);
    reply.set_have(have);
    reply.set_owned(owned);
    return reply;
  }
  void Confirm(uint64_t have) { source_->OnReply(ReplyOf(have), now_); }

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

  HandOverOptions options_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<PlainOwner> owner_;
  std::optional<ShardState> state_;
  std::optional<HandOverSource> source_;
  std::optional<HandOverTarget> target_;
};

// ---- From one to the other --------------------------------------------------

TEST_F(HandOverTest, AnIdleShardArrivesAsItWas) {
  Push(PushOf(0, 0), Floats(1));
  Push(PushOf(0, 1), Floats(-2));
  Push(PushOf(1, 0), Floats(3));
  Begin();
  Deliver();
  ASSERT_TRUE(source_->CaughtUp());
  EXPECT_FALSE(target_->TakeIfGone().has_value()) << "before the go";
  source_->Go(now_);
  Deliver();
  const std::optional<ShardState> arrived = target_->TakeIfGone();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
  EXPECT_EQ(arrived->shard.version(), 3u);
}

TEST_F(HandOverTest, HeldGradientsGoAlong) {
  Use(/*bsp=*/true);
  Push(PushOf(1, 0), Floats(4));
  Begin();
  Deliver();
  source_->Go(now_);
  Deliver();
  std::optional<ShardState> arrived = target_->TakeIfGone();
  ASSERT_TRUE(arrived.has_value());
  ASSERT_THAT(arrived->held, SizeIs(1));
  EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
  owner_->Push(*arrived, PushOf(0, 0), Floats(2));
  owner_->Push(*state_, PushOf(0, 0), Floats(2));
  EXPECT_EQ(arrived->shard.version(), 1u);
  EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
}

TEST_F(HandOverTest, WhatHappensOnTheWayHappensToTheCopyToo) {
  Begin();
  Push(PushOf(0, 0), Floats(1));
  const StalenessGate::Participant joined = state_->gate.Join(Rank{2}, 12, 0);
  source_->OnJoin(joined);
  Push(PushOf(2, 0), Floats(5));
  Push(PushOf(1, 4, /*advance=*/true), Payload());
  wire::LeftWorkers left;
  left.add_incarnation(10);
  owner_->Left(*state_, left);
  source_->OnLeft({10});
  Deliver();
  source_->Go(now_);
  Deliver();
  const std::optional<ShardState> arrived = target_->TakeIfGone();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
  EXPECT_THAT(arrived->gate.participants(), SizeIs(2));
}

TEST_F(HandOverTest, TheSnapshotIsOneVersionWhateverIsPushedMeanwhile) {
  const Message snapshot = Snapshot();
  const std::vector<std::string> before = Portrait(*state_);
  Push(PushOf(0, 0), Floats(1));
  Push(PushOf(0, 1), Floats(1));
  ASSERT_TRUE(Take(snapshot).ok());
  Message go;
  go.header.mutable_hand_over()->set_position(target_->have() + 1);
  go.header.mutable_hand_over()->add_record()->set_go(true);
  ASSERT_TRUE(Take(go).ok());
  EXPECT_EQ(Portrait(*target_->TakeIfGone()), before);
}

TEST_F(HandOverTest, TheShardIsTakenOnceAndNothingComesAfterTheGo) {
  Begin();
  Deliver();
  source_->Go(now_);
  const std::vector<Message> messages = Pump();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_TRUE(Take(messages[0]).ok());
  const uint64_t have = target_->have();
  EXPECT_TRUE(target_->TakeIfGone().has_value());
  EXPECT_TRUE(Take(messages[0]).ok()) << "a repetition";
  EXPECT_FALSE(target_->TakeIfGone().has_value());
  Message more = messages[0];
  more.header.mutable_hand_over()->set_position(have + 1);
  EXPECT_TRUE(Take(more).ok());
  EXPECT_EQ(target_->have(), have);
}

TEST_F(HandOverTest, TheTargetTakesOnlyTheRecordsThatAreNext) {
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

TEST_F(HandOverTest, NoMoreThanTheWindowIsUnconfirmed) {
  Push(PushOf(0, 0), Floats(1));
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

TEST_F(HandOverTest, SmallRecordsThatShareAMessageKeepTheWindow) {
  options_.part_bytes = 3 * kBytes;
  options_.window_bytes = 4 * kBytes;
  Begin();
  Deliver();  // The snapshot.
  for (Clock clock = 0; clock < 8; ++clock) Push(PushOf(0, clock), Floats(1));
  const std::vector<Message> messages = Pump();
  EXPECT_THAT(messages, SizeIs(2)) << "three gradients, then one";
  EXPECT_EQ(PayloadBytes(messages), options_.window_bytes);
}

TEST_F(HandOverTest, ARecordLargerThanTheWindowGoesAlone) {
  options_.window_bytes = 4;
  Begin();
  while (!source_->CaughtUp()) {
    const std::vector<Message> messages = Pump();
    ASSERT_THAT(messages, SizeIs(1));
    ASSERT_TRUE(Take(messages[0]).ok());
    Confirm(target_->have());
  }
}

TEST_F(HandOverTest, SilenceIsFollowedByAllThatIsUnconfirmed) {
  Begin();
  const std::vector<uint64_t> sent = PositionsOf(Pump());
  EXPECT_THAT(Pump(), IsEmpty());
  EXPECT_EQ(source_->NextWakeup(), now_ + absl::Milliseconds(50));
  Confirm(1);
  now_ = source_->NextWakeup();
  const std::vector<uint64_t> again = PositionsOf(Pump());
  EXPECT_EQ(again.front(), 2u);
  EXPECT_GE(again.back(), sent.back());
}

TEST_F(HandOverTest, RepetitionsBackOffToTheirMaximumAndProgressEndsThat) {
  Begin();
  Pump();
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 5; ++i) {
    const absl::Time before = now_;
    now_ = source_->NextWakeup();
    EXPECT_THAT(PositionsOf(Pump()), testing::Contains(1u));
    gaps.push_back(now_ - before);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(50), absl::Milliseconds(100),
                          absl::Milliseconds(200), absl::Milliseconds(300),
                          absl::Milliseconds(300)));
  Confirm(1);
  EXPECT_EQ(source_->NextWakeup(), now_ + absl::Milliseconds(50));
}

TEST_F(HandOverTest, NothingIsToBeWokenForOnceAllIsConfirmed) {
  Begin();
  Deliver();
  EXPECT_EQ(source_->NextWakeup(), absl::InfiniteFuture());
  source_->Go(now_);
  Pump();
  EXPECT_NE(source_->NextWakeup(), absl::InfiniteFuture());
  source_->OnReply(ReplyOf(target_->have() + 1, /*owned=*/true), now_);
  EXPECT_EQ(source_->NextWakeup(), absl::InfiniteFuture());
}

TEST_F(HandOverTest, RequestsWaitWhileTheBacklogIsTooLarge) {
  Begin();
  for (Clock clock = 0; clock < 3; ++clock) Push(PushOf(0, clock), Floats(1));
  EXPECT_FALSE(source_->MustWait(now_)) << "the snapshot does not count";
  Push(PushOf(0, 3), Floats(1));
  EXPECT_TRUE(source_->MustWait(now_));
  Deliver();
  EXPECT_FALSE(source_->MustWait(now_));
}

TEST_F(HandOverTest, RequestsWaitWhenTheTargetDoesNotCatchUpInTime) {
  Begin();
  now_ += absl::Seconds(10);
  EXPECT_FALSE(source_->MustWait(now_)) << "the snapshot may take its time";
  Push(PushOf(0, 0), Floats(1));
  Deliver();
  ASSERT_TRUE(source_->CaughtUp());
  Push(PushOf(0, 1), Floats(1));
  now_ += absl::Milliseconds(200);
  EXPECT_FALSE(source_->MustWait(now_));
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(source_->MustWait(now_));
  Deliver();
  EXPECT_FALSE(source_->MustWait(now_)) << "it has";
}

TEST_F(HandOverTest, NobodyWaitsAtTheSourceAfterTheGo) {
  options_.catch_up_max = absl::ZeroDuration();
  Begin();
  Deliver();
  source_->Go(now_);
  now_ += absl::Seconds(1);
  EXPECT_FALSE(source_->MustWait(now_));
}

// ---- What the source is told ------------------------------------------------

TEST_F(HandOverTest, TheTargetHasCaughtUpWhenAllIsConfirmed) {
  Begin();
  EXPECT_FALSE(source_->CaughtUp());
  Deliver();
  EXPECT_TRUE(source_->CaughtUp());
  Push(PushOf(0, 0), Floats(1));
  EXPECT_FALSE(source_->CaughtUp());
  Deliver();
  EXPECT_TRUE(source_->CaughtUp());
  source_->Go(now_);
  EXPECT_FALSE(source_->CaughtUp()) << "there is nothing to be done twice";
}

TEST_F(HandOverTest, RepliesThatMakeNoSenseAreIgnored) {
  Begin();
  const std::vector<uint64_t> sent = PositionsOf(Pump());
  wire::HandOverReply other = ReplyOf(2);
  other.set_move(kMove + 1);
  source_->OnReply(other, now_);
  source_->OnReply(ReplyOf(0, /*owned=*/true), now_);
  EXPECT_FALSE(source_->owned_by_target()) << "it was not told to take over";
  now_ = source_->NextWakeup();
  EXPECT_EQ(PositionsOf(Pump()), sent) << "as if nothing had been heard";
  Confirm(uint64_t{1} << 60);
  EXPECT_EQ(PositionsOf(Pump()).front(), sent.back() + 1)
      << "no more can be confirmed than was sent";
  Confirm(1);  // A late one.
  now_ = source_->NextWakeup();
  EXPECT_EQ(PositionsOf(Pump()).front(), sent.back() + 1);
}

TEST_F(HandOverTest, OwnedByTheTargetOnceItSaysSo) {
  Begin();
  Deliver();
  source_->Go(now_);
  Pump();
  EXPECT_TRUE(source_->gone());
  EXPECT_FALSE(source_->owned_by_target());
  source_->OnReply(ReplyOf(0, /*owned=*/true), now_);
  EXPECT_TRUE(source_->owned_by_target());
  now_ += absl::Hours(1);
  EXPECT_THAT(Pump(), IsEmpty());
}

TEST_F(HandOverTest, ReportsBytesAndTimes) {
  Begin();
  EXPECT_EQ(source_->Report().bytes(), 0);
  Deliver();
  now_ += absl::Milliseconds(30);
  source_->Go(now_);
  Pump();
  now_ += absl::Microseconds(400);
  source_->OnReply(ReplyOf(target_->have() + 1, /*owned=*/true), now_);
  const run::HandOverState report = source_->Report();
  EXPECT_EQ(report.shard(), 3);
  EXPECT_EQ(report.move(), kMove);
  EXPECT_EQ(report.bytes(), static_cast<int64_t>((1 + kSlots) * kBytes));
  EXPECT_EQ(report.copy_micros(), 30000);
  EXPECT_EQ(report.pause_micros(), 400);
}

TEST_F(HandOverTest, RepetitionsCountAsBytesSent) {
  Begin();
  const size_t once = PayloadBytes(Pump());
  now_ = source_->NextWakeup();
  const size_t again = PayloadBytes(Pump());
  EXPECT_EQ(source_->Report().bytes(), static_cast<int64_t>(once + again));
}

// ---- Messages that make no sense --------------------------------------------

using Spoil = std::function<void(Message&)>;

wire::HandOverRecord& RecordOf(Message& message, int i) {
  return *message.header.mutable_hand_over()->mutable_record(i);
}

TEST_F(HandOverTest, ABrokenSnapshotIsRefusedAndChangesNothing) {
  Use(/*bsp=*/true);
  Push(PushOf(1, 0), Floats(4));
  const Message good = Snapshot();
  // Records: the snapshot with its held gradient, values, two slots.
  ASSERT_EQ(good.header.hand_over().record_size(), 4);
  ASSERT_THAT(good.payloads, SizeIs(4));
  const struct {
    const char* what;
    Spoil spoil;
    const char* reason;
    uint64_t have;  // The records before the broken one are good.
  } cases[] = {
      {"participants out of order",
       [](Message& m) {
         RecordOf(m, 0).mutable_snapshot()->mutable_participant()->SwapElements(
             0, 1);
       },
       "participants are not sorted by rank: 1 before 0", 0},
      {"a rank twice",
       [](Message& m) {
         RecordOf(m, 0).mutable_snapshot()->mutable_participant(1)->set_rank(0);
       },
       "participants are not sorted by rank: 0 before 0", 0},
      {"a held gradient of another size",
       [](Message& m) { m.payloads[0] = Floats(4, kElements - 1); },
       "a held gradient has 36 bytes, the shard 40", 0},
      {"no payload frames", [](Message& m) { m.payloads.clear(); },
       "record 1 lacks 1 payload frames", 0},
      {"a payload frame too few", [](Message& m) { m.payloads.pop_back(); },
       "record 4 lacks 1 payload frames", 3},
      {"a tensor that there is not",
       [](Message& m) { RecordOf(m, 2).mutable_part()->set_tensor(3); },
       "of tensor 3: the shard has 3 tensors of 40 bytes", 2},
      {"a negative tensor",
       [](Message& m) { RecordOf(m, 2).mutable_part()->set_tensor(-1); },
       "of tensor -1: the shard has 3 tensors", 2},
      {"a part beyond the end",
       [](Message& m) { RecordOf(m, 1).mutable_part()->set_offset(4); },
       "a part of 40 bytes at 4 of tensor 0", 1},
      {"an offset that overflows",
       [](Message& m) {
         RecordOf(m, 1).mutable_part()->set_offset(~uint64_t{0} - 7);
       },
       "a part of 40 bytes at 18446744073709551608", 1},
      {"a part too large", [](Message& m) { m.payloads[1] = Floats(1, 11); },
       "a part of 44 bytes at 0 of tensor 0", 1},
      {"a part before the snapshot",
       [](Message& m) {
         m.header.mutable_hand_over()->mutable_record()->DeleteSubrange(0, 1);
         m.payloads.erase(m.payloads.begin());
       },
       "the shard has 0 tensors", 0},
      {"a go before the snapshot is complete",
       [](Message& m) { RecordOf(m, 3).set_go(true); },
       "record 4 comes before the snapshot is complete", 3},
      {"a push before the snapshot is complete",
       [](Message& m) { *RecordOf(m, 3).mutable_push() = PushOf(0, 0); },
       "record 4 comes before the snapshot is complete", 3},
      {"a record of no kind", [](Message& m) { RecordOf(m, 3).Clear(); },
       "record 4 comes before the snapshot is complete", 3},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    target_.emplace(kSourcePeer, kMove);
    Message broken = good;
    c.spoil(broken);
    const absl::Status taken = Take(broken);
    EXPECT_EQ(taken.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(taken.message()), HasSubstr(c.reason));
    EXPECT_EQ(target_->have(), c.have);
    EXPECT_FALSE(target_->TakeIfGone().has_value());
    ASSERT_TRUE(Take(good).ok()) << "the source sends it again";
    source_.emplace(options_, kTarget, kMove, *state_, now_);
    Deliver();
    source_->Go(now_);
    Deliver();
    const std::optional<ShardState> arrived = target_->TakeIfGone();
    ASSERT_TRUE(arrived.has_value());
    EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
  }
}

TEST_F(HandOverTest, ABrokenRecordOfTheHistoryIsRefusedAndChangesNothing) {
  const Message snapshot = Snapshot();
  const struct {
    const char* what;
    Spoil make;
    const char* reason;
  } cases[] = {
      {"a gradient of another size",
       [](Message& m) {
         *RecordOf(m, 0).mutable_push() = PushOf(0, 0);
         m.payloads = {Floats(1, kElements + 1)};
       },
       "record 5 has a gradient of 44 bytes, the shard 40"},
      {"no gradient",
       [](Message& m) { *RecordOf(m, 0).mutable_push() = PushOf(0, 0); },
       "record 5 lacks 1 payload frames"},
      {"a rank joins that takes part",
       [](Message& m) { RecordOf(m, 0).mutable_join()->set_rank(1); },
       "record 5: rank 1 takes part already"},
      {"no kind", [](Message&) {}, "record 5 is of a kind that is not known"},
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
  source_->Go(now_);
  Deliver();
  const std::optional<ShardState> arrived = target_->TakeIfGone();
  ASSERT_TRUE(arrived.has_value());
  EXPECT_EQ(Portrait(*arrived), Portrait(*state_));
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

class HandOverHistories : public ::testing::TestWithParam<bool> {};

TEST_P(HandOverHistories, TheTargetEndsWithTheBitsOfATwinThatNeverMoved) {
  const bool bsp = GetParam();
  int64_t pushes_on_the_way = 0;
  int64_t repetitions = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    PlainOwner owner(bsp);
    const int workers = static_cast<int>(rng.Between(1, 4));
    ShardState twin = owner.NewShard(workers);
    std::optional<ShardState> serving(owner.NewShard(workers));
    std::optional<HandOverSource> source;
    Incarnation next_incarnation = 100;

    // Something that an owner takes over, done to both.
    const auto act = [&] {
      const auto& participants = twin.gate.participants();
      const uint64_t kind = rng.Below(20);
      if (kind == 0) {
        const int rank = static_cast<int>(rng.Below(5));
        if (std::any_of(participants.begin(), participants.end(),
                        [&](const auto& p) { return p.rank == Rank{rank}; })) {
          return;
        }
        twin.gate.Join(Rank{rank}, next_incarnation, 0);
        const StalenessGate::Participant joined =
            serving->gate.Join(Rank{rank}, next_incarnation, 0);
        ++next_incarnation;
        if (source.has_value()) source->OnJoin(joined);
        return;
      }
      if (participants.empty()) return;
      const StalenessGate::Participant who =
          participants[rng.Below(participants.size())];
      if (kind == 1) {
        wire::LeftWorkers left;
        left.add_incarnation(who.incarnation);
        owner.Left(twin, left);
        owner.Left(*serving, left);
        if (source.has_value()) source->OnLeft({who.incarnation});
        return;
      }
      wire::TakenPush push;
      push.set_rank(static_cast<int32_t>(who.rank));
      push.set_incarnation(who.incarnation);
      push.set_clock(who.clock);
      if (kind == 2) {
        push.set_advance(true);
        push.set_clock(who.clock + rng.Between(0, 2));
      } else if (bsp && who.clock > twin.bsp_clock) {
        return;
      }
      const Payload gradient = push.advance() ? Payload() : RandomGradient(rng);
      owner.Push(twin, push, gradient);
      owner.Push(*serving, push, gradient);
      if (!source.has_value()) return;
      source->OnPush(who.rank, who.incarnation, push.clock(), push.advance(),
                     gradient, /*rate_factor=*/1);
      ++pushes_on_the_way;
    };

    for (int i = 0; i < 10; ++i) act();
    HandOverOptions options;
    options.part_bytes = static_cast<size_t>(4 * rng.Between(1, 20));
    options.window_bytes = static_cast<size_t>(4 * rng.Between(1, 60));
    absl::Time now = absl::UnixEpoch();
    source.emplace(options, kTarget, kMove, *serving, now);
    HandOverTarget target(kSourcePeer, kMove);
    const double fault = 0.3 * rng.Uniform();
    const double activity = 0.3 * rng.Uniform();
    BadLink<Message> there(fault);
    BadLink<wire::HandOverReply> back(fault);
    std::optional<ShardState> arrived;
    for (int step = 0; !source->owned_by_target(); ++step) {
      ASSERT_LT(step, 20000) << "no progress";
      const bool quiet = step > 300;  // Then the target can catch up.
      if (!source->gone() && !quiet && rng.Chance(activity)) act();
      if (rng.Chance(0.1) || (there.empty() && back.empty())) {
        now += absl::Milliseconds(20);
      }
      std::vector<Message> messages;
      if (source->NextWakeup() <= now) ++repetitions;
      source->Pump(now, &messages);
      for (const Message& message : messages) there.Send(message, rng);
      if (!there.empty() && rng.Chance(0.5)) {
        const Message message = there.Receive(rng);
        const absl::Status taken =
            target.OnRecords(message.header.hand_over(), message.payloads,
                             RangeOfShard(), kSlots, &owner);
        ASSERT_TRUE(taken.ok()) << taken;
        if (std::optional<ShardState> taken_over = target.TakeIfGone()) {
          ASSERT_FALSE(arrived.has_value()) << "taken over twice";
          ASSERT_TRUE(source->gone()) << "two owners";
          arrived = std::move(taken_over);
        }
        wire::HandOverReply reply;
        reply.set_move(kMove);
        reply.set_have(target.have());
        reply.set_owned(arrived.has_value());
        back.Send(reply, rng);
      }
      if (!back.empty() && rng.Chance(0.5)) {
        source->OnReply(back.Receive(rng), now);
        if (source->CaughtUp()) source->Go(now);
      }
    }
    ASSERT_TRUE(arrived.has_value());
    ASSERT_EQ(Portrait(*arrived), Portrait(twin));
    serving = std::move(arrived);
    source.reset();
    for (int i = 0; i < 10; ++i) act();
    ASSERT_EQ(Portrait(*serving), Portrait(twin)) << "as a new owner";
  }
  EXPECT_GT(pushes_on_the_way, 2000);
  EXPECT_GT(repetitions, 2000);
}

INSTANTIATE_TEST_SUITE_P(BothKinds, HandOverHistories, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Bsp" : "Async";
                         });

}  // namespace
}  // namespace slackline
