// Goal: what is encoded is decoded as it was, and bytes that make no sense are
// refused before they are used.
// Method: random snapshots and records there and back; tables of broken ones.
#include "server/shard/shard_codec.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/optimizers.h"

namespace slackline::shard_codec_test {

using ::testing::SizeIs;

constexpr Clock kFar = std::numeric_limits<Clock>::max();
constexpr int kSlots = 2;
const UpdateRule kRule{.optimizer = MakeOptimizer("adam { learning_rate: 1 }"),
                       .schedule = *LearningRateSchedule::Create(
                           {}, {.steps_total = 100, .steps_per_epoch = 100})};

Payload RandomTensor(Rng& rng) {
  const uint64_t bits = rng.Next();
  return Payload::Copy(&bits, sizeof(bits));
}

WorkerLife RandomLife(Rng& rng) {
  return {.rank = Rank{static_cast<int32_t>(rng.Below(9))},
          .incarnation = rng.Below(99) + 1};
}

std::string BytesOf(const std::vector<Payload>& tensors) {
  std::string bytes;
  for (const Payload& tensor : tensors) {
    absl::StrAppend(
        &bytes, tensor.size(), ":",
        absl::string_view(reinterpret_cast<const char*>(tensor.data()),
                          tensor.size()));
  }
  return bytes;
}

StepOptions RandomOptions(Rng& rng) {
  StepOptions options;
  if (rng.Chance(0.8)) options.rate_factor = 3 * rng.Uniform();
  if (rng.Chance(0.5)) options.momentum = rng.Uniform();
  return options;
}

ShardSnapshot RandomSnapshot(Rng& rng) {
  ShardSnapshot snapshot{
      .version = rng.Below(1000),
      .values = RandomTensor(rng),
      .slots = {RandomTensor(rng), RandomTensor(rng)},
      .min_clock = rng.Between(0, 20),
      .spare = static_cast<int>(rng.Below(3)),
      .running_rms = RunningRms(rng.Uniform(), rng.Below(9))};
  snapshot.complete_clock = snapshot.min_clock + rng.Between(0, 2);
  for (int32_t rank = 0; rank < 4; ++rank) {
    if (rng.Chance(0.3)) continue;
    Participant who{.rank = Rank{rank},
                    .incarnation = rng.Below(50) + 1,
                    .joined_at = rng.Between(0, snapshot.min_clock),
                    .clock = snapshot.complete_clock + rng.Between(0, 2),
                    .next_seq = rng.Below(30) + 1};
    if (snapshot.participants.empty()) who.clock = snapshot.min_clock;
    if (who.clock > snapshot.complete_clock) {
      snapshot.held.push_back({.who = {who.rank, who.incarnation},
                               .gradient = RandomTensor(rng),
                               .options = RandomOptions(rng),
                               .rms = rng.Uniform()});
    }
    // Of one that has left.
    if (rng.Chance(0.2)) {
      snapshot.held.push_back({.who = {who.rank, who.incarnation + 1},
                               .gradient = RandomTensor(rng),
                               .options = RandomOptions(rng)});
    }
    snapshot.participants.push_back(who);
  }
  return snapshot;
}

ShardRecord RandomRecord(Rng& rng) {
  switch (rng.Below(7)) {
    case 0:
      return JoinRecord{.who = RandomLife(rng), .clock = rng.Between(0, 9)};
    case 1:
      return GradientRecord{.who = RandomLife(rng),
                            .clock = rng.Between(0, 9),
                            .gradient = RandomTensor(rng),
                            .held = rng.Chance(0.5),
                            .spare = static_cast<int>(rng.Below(3)),
                            .options = RandomOptions(rng),
                            .rms = rng.Uniform()};
    case 2:
      return AdvanceRecord{.who = RandomLife(rng), .clock = rng.Between(0, 9)};
    case 3:
      return InstallRecord{.who = RandomLife(rng),
                           .clock = rng.Between(0, 9),
                           .version = rng.Below(1000),
                           .values = RandomTensor(rng),
                           .slots = {RandomTensor(rng), RandomTensor(rng)},
                           .joining = {RandomLife(rng), RandomLife(rng)}};
    case 4:
      return LeaveRecord{.incarnations = {rng.Below(9), rng.Below(9)}};
    case 5:
      return SumRecord{.clock = rng.Between(0, 9),
                       .who = {RandomLife(rng), RandomLife(rng)},
                       .sum = RandomTensor(rng),
                       .spare = static_cast<int>(rng.Below(3)),
                       .options = RandomOptions(rng),
                       .rms = {rng.Uniform(), rng.Uniform()}};
    default:
      return SplitRecord{.at = rng.Between(1, 9), .part = ShardId{7}};
  }
}

TEST(ShardCodecTest, ASnapshotComesBackAsItWas) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const ShardSnapshot snapshot = RandomSnapshot(rng);
    wire::ShardSnapshot message;
    ASSERT_TRUE(
        message.ParseFromString(EncodeSnapshot(snapshot).SerializeAsString()));
    const absl::Status checked = CheckSnapshot(message, kRule);
    ASSERT_TRUE(checked.ok()) << checked << "\n" << message.DebugString();
    const std::vector<Payload> tensors = TensorsOf(snapshot);
    ASSERT_THAT(tensors, SizeIs(TensorCount(message, kSlots)));
    const ShardSnapshot back = DecodeSnapshot(message, kSlots, tensors);
    EXPECT_EQ(EncodeSnapshot(back).DebugString(), message.DebugString());
    EXPECT_EQ(BytesOf(TensorsOf(back)), BytesOf(tensors));
  }
}

TEST(ShardCodecTest, ARecordComesBackAsItWas) {
  Rng rng(2);
  for (int i = 0; i < 1000; ++i) {
    const ShardRecord record = RandomRecord(rng);
    std::vector<Payload> frames;
    wire::ShardRecord message;
    ASSERT_TRUE(message.ParseFromString(
        EncodeRecord(record, &frames).SerializeAsString()));
    ASSERT_THAT(frames, SizeIs(FrameCount(message, kSlots)));
    const absl::StatusOr<ShardRecord> back = DecodeRecord(message, frames);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->index(), record.index());
    std::vector<Payload> frames_back;
    EXPECT_EQ(EncodeRecord(*back, &frames_back).DebugString(),
              message.DebugString());
    EXPECT_EQ(BytesOf(frames_back), BytesOf(frames));
  }
}

// Ranks 0 and 2 at clocks 4 and 5, of which the second one waits.
wire::ShardSnapshot GoodSnapshot() {
  wire::ShardSnapshot snapshot;
  snapshot.set_version(3);
  snapshot.set_min_clock(4);
  snapshot.set_complete_clock(4);
  for (const int rank : {0, 2}) {
    wire::ShardParticipant& who = *snapshot.add_participant();
    who.mutable_id()->set_rank(rank);
    who.mutable_id()->set_incarnation(static_cast<uint64_t>(10 + rank));
    who.set_joined_at(1);
    who.set_clock(rank == 0 ? 4 : 5);
    who.set_next_seq(7);
  }
  *snapshot.add_held()->mutable_who() = snapshot.participant(1).id();
  snapshot.mutable_held(0)->mutable_options()->set_rate_factor(0.5);
  return snapshot;
}

TEST(ShardCodecTest, ASnapshotThatMakesNoSenseIsRefused) {
  const auto who = [](wire::ShardSnapshot& s, int i) {
    return s.mutable_participant(i);
  };
  const struct {
    const char* what;
    std::function<void(wire::ShardSnapshot&)> spoil;
  } cases[] = {
      {"a version that cannot be counted on",
       [](auto& s) { s.set_version(~uint64_t{0}); }},
      {"a negative clock", [](auto& s) { s.set_complete_clock(-1); }},
      {"a clock behind the workers'", [](auto& s) { s.set_complete_clock(3); }},
      {"a clock beyond all", [](auto& s) { s.set_complete_clock(kFar); }},
      {"another smallest clock", [](auto& s) { s.set_min_clock(3); }},
      {"a negative smallest clock of nobody",
       [](auto& s) {
         s.Clear();
         s.set_min_clock(-4);
       }},
      {"a negative spare", [](auto& s) { s.set_spare(-1); }},
      {"a worker without its name", [&](auto& s) { who(s, 0)->clear_id(); }},
      {"a negative rank",
       [&](auto& s) { who(s, 0)->mutable_id()->set_rank(-1); }},
      {"a negative clock of a worker",
       [&](auto& s) {
         who(s, 0)->set_joined_at(-5);
         who(s, 0)->set_clock(-4);
       }},
      {"a worker's clock beyond all",
       [&](auto& s) { who(s, 1)->set_clock(kFar); }},
      {"a worker behind its beginning",
       [&](auto& s) { who(s, 0)->set_joined_at(5); }},
      {"no sequence number", [&](auto& s) { who(s, 0)->set_next_seq(0); }},
      {"a sequence number at its end",
       [&](auto& s) { who(s, 0)->set_next_seq(~uint64_t{0}); }},
      {"a rank twice", [&](auto& s) { who(s, 1)->mutable_id()->set_rank(0); }},
      {"ranks out of order",
       [](auto& s) { s.mutable_participant()->SwapElements(0, 1); }},
      {"a gradient of a worker that has not pushed it",
       [](auto& s) {
         *s.mutable_held(0)->mutable_who() = s.participant(0).id();
       }},
      {"a gradient twice", [](auto& s) { *s.add_held() = s.held(0); }},
      {"a gradient of no worker",
       [](auto& s) { s.mutable_held(0)->clear_who(); }},
      {"a gradient that goes backwards",
       [](auto& s) {
         s.mutable_held(0)->mutable_options()->set_rate_factor(-1);
       }},
      {"a gradient with a momentum of 1",
       [](auto& s) { s.mutable_held(0)->mutable_options()->set_momentum(1); }},
      {"a gradient with a momentum that is no number",
       [](auto& s) {
         s.mutable_held(0)->mutable_options()->set_momentum(std::nan(""));
       }},
      {"a gradient with a factor that is no number",
       [](auto& s) {
         s.mutable_held(0)->mutable_options()->set_rate_factor(std::nan(""));
       }},
      {"a gradient with a size that is no number",
       [](auto& s) { s.mutable_held(0)->set_rms(std::nan("")); }},
      {"a negative running size", [](auto& s) { s.set_running_rms(-1); }},
      {"a running size that is no number",
       [](auto& s) { s.set_running_rms(std::nan("")); }},
      {"more gradients than can be counted",
       [](auto& s) { s.set_running_gradients(~uint64_t{0}); }},
  };
  ASSERT_TRUE(CheckSnapshot(GoodSnapshot(), kRule).ok());
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    wire::ShardSnapshot broken = GoodSnapshot();
    c.spoil(broken);
    EXPECT_EQ(CheckSnapshot(broken, kRule).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ShardCodecTest, ARecordThatMakesNoSenseIsRefused) {
  const WorkerLife who{Rank{1}, 11};
  const WorkerLife nobody{Rank{-1}, 11};
  const WorkerLife unborn{Rank{1}, 0};
  const Payload tensor = Payload::Allocate(8);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ShardRecord cases[] = {
      JoinRecord{.who = nobody},
      JoinRecord{.who = unborn},
      JoinRecord{.who = who, .clock = -1},
      JoinRecord{.who = who, .clock = kFar},
      AdvanceRecord{.who = nobody},
      AdvanceRecord{.who = who, .clock = -1},
      AdvanceRecord{.who = who, .clock = kFar},
      GradientRecord{.who = nobody, .gradient = tensor},
      GradientRecord{.who = who, .clock = -1, .gradient = tensor},
      GradientRecord{.who = who, .clock = kClockMax, .gradient = tensor},
      GradientRecord{.who = who, .clock = kFar, .gradient = tensor},
      GradientRecord{.who = who, .gradient = tensor, .spare = -1},
      GradientRecord{
          .who = who, .gradient = tensor, .options = {.rate_factor = nan}},
      GradientRecord{
          .who = who, .gradient = tensor, .options = {.rate_factor = -1}},
      GradientRecord{
          .who = who, .gradient = tensor, .options = {.momentum = -0.5}},
      GradientRecord{.who = who, .gradient = tensor, .rms = nan},
      GradientRecord{.who = who, .gradient = tensor, .rms = -1},
      SumRecord{.who = {who}, .sum = tensor, .rms = {nan}},
      SumRecord{.who = {who}, .sum = tensor, .options = {.momentum = 1}},
      SumRecord{.clock = -1, .who = {who}, .sum = tensor},
      SumRecord{.clock = kClockMax, .who = {who}, .sum = tensor},
      SumRecord{.who = {who, nobody}, .sum = tensor},
      SumRecord{.who = {unborn}, .sum = tensor},
      SumRecord{.who = {who}, .sum = tensor, .spare = -1},
      SumRecord{.who = {who}, .sum = tensor, .options = {.rate_factor = nan}},
      InstallRecord{.who = nobody, .values = tensor},
      InstallRecord{.who = who, .clock = kFar, .values = tensor},
      InstallRecord{.who = who, .version = ~uint64_t{0}, .values = tensor},
      InstallRecord{.who = who, .values = tensor, .joining = {unborn}},
      SplitRecord{.at = 5, .part = ShardId{-1}},
  };
  for (const ShardRecord& record : cases) {
    std::vector<Payload> frames;
    const wire::ShardRecord message = EncodeRecord(record, &frames);
    SCOPED_TRACE(message.ShortDebugString());
    EXPECT_EQ(DecodeRecord(message, frames).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(DecodeRecord(wire::ShardRecord(), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace slackline::shard_codec_test
