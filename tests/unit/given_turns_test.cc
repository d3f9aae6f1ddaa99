// Goal: a shard of a job whose delays are given ends with the same bits
// whatever order its gradients come in, and wherever it goes on the way: to
// another thread as bytes, or into two parts. Method: random orders of pushes
// in small jobs with delays by name, with rules for stale gradients that
// remember and with bounds, against a shard that stays where it is; and
// snapshots that make no sense.
#include "server/shard/given_turns.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/delays/delay_source.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_codec.h"
#include "tests/support/optimizers.h"
#include "tests/unit/shard_core_fixture.h"
#include "tests/unit/shard_machine_fixture.h"

namespace slackline::given_turns_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kWorkers = 3;
constexpr Clock kSteps = 8;

config::StaleGradients RuleOf(int which) {
  config::StaleGradients stale;
  if (which == 1) stale.mutable_adaptive_delay_compensation();
  if (which == 2) stale.mutable_gap_aware();
  if (which == 3) stale.mutable_drop()->set_beyond_clocks(1);
  return stale;
}

std::shared_ptr<const TableRule> MakeRule(const std::string& delays,
                                          int stale) {
  UpdateRule rule{.optimizer = MakeOptimizer("momentum { learning_rate: 0.1 }"),
                  .schedule = *LearningRateSchedule::Create(
                      {}, {.steps_total = kSteps, .steps_per_epoch = kSteps})};
  config::Sync sync;
  if (stale > 0) *sync.add_stale() = RuleOf(stale);
  rule.stale = StaleOf(sync).For("weight");
  config::GradientBound bound;
  bound.set_times_running_rms(1.5);
  bound.set_warm_up_gradients(3);
  rule.gradient_bound = GradientBound(bound);
  const auto source = DelaySource::Load(delays);
  SL_CHECK(source.ok(), source.status().ToString());
  rule.delays = *source->PlanFor(kWorkers, 0, kSteps, /*seed=*/7);
  return std::make_shared<const TableRule>(
      TableRule{std::move(rule), StoreKindOf(wire::Table())});
}

// Elements [0, 6) of a table, of which all clocks are to come.
ShardMachine Begin(const std::shared_ptr<const TableRule>& rule) {
  const ShardRange range{.shard = ShardId{0}, .region = Region::First(6)};
  ShardSnapshot snapshot;
  snapshot.values = Floats(0.5, 6);
  snapshot.slots = {Floats(0, 6)};
  for (int rank = 0; rank < kWorkers; ++rank) {
    snapshot.participants.push_back(
        {.rank = Rank{rank},
         .incarnation = static_cast<Incarnation>(10 + rank)});
  }
  snapshot.turns = TurnState{.plan = ShardId{0}};
  return ShardMachine::Create(rule, range, std::move(snapshot)).value();
}

// That of elements [begin, end) of the table.
Payload GradientOf(int rank, Clock clock, const ShardRange& range) {
  Rng rng = Rng(5).Fork(absl::StrCat(rank, " ", clock));
  std::vector<float> whole(6);
  const float scale = rng.Chance(0.2) ? 4 : 1;  // Some are above the bound.
  for (float& value : whole)
    value = scale * static_cast<float>(rng.Uniform() - 0.5);
  return Payload::Copy(whole.data() + range.region.begin(),
                       range.region.DenseBytes());
}

// The worker's next push, if what it is computed from is there.
std::optional<ShardRecord> NextOf(const ShardMachine& shard, int rank) {
  const Participant* const who = shard.participants().Find(
      Rank{rank}, static_cast<Incarnation>(10 + rank));
  if (who->clock == kSteps) return std::nullopt;
  if (!shard.turns()->BaseOf(who->rank, who->clock, shard.shard()).has_value())
    return std::nullopt;
  if (!shard.turns()->Uses(who->rank, who->clock) || who->clock % 5 == 4)
    return AdvanceRecord{.who = Life(rank), .clock = who->clock + 1};
  Payload gradient = GradientOf(rank, who->clock, shard.shard().range());
  const double rms = *shard.rule()->gradient_bound.Measure(
      gradient.data(), gradient.size() / sizeof(float));
  return GradientRecord{.who = Life(rank),
                        .clock = who->clock,
                        .gradient = std::move(gradient),
                        .options = {.rate_factor = rank == 1 ? 0.5 : 1},
                        .rms = rms};
}

void Apply(ShardMachine& shard, const ShardRecord& record) {
  const absl::StatusOr<ShardOutcome> outcome = shard.Apply(record);
  SL_CHECK(outcome.ok(), outcome.status().ToString());
}

// One push of somebody who can; false: nobody can.
bool Step(ShardMachine& shard, Rng& rng) {
  for (int tries = 0; tries < 100; ++tries) {
    const auto record = NextOf(shard, static_cast<int>(rng.Below(kWorkers)));
    if (!record.has_value()) continue;
    Apply(shard, *record);
    return true;
  }
  return false;
}

void Finish(ShardMachine& shard, Rng& rng) {
  while (Step(shard, rng)) {
  }
  ASSERT_EQ(shard.participants().MinClock(), kSteps);
}

// As another thread gets it.
ShardMachine Travelled(const ShardMachine& shard) {
  const ShardSnapshot snapshot = shard.Snapshot();
  wire::ShardSnapshot message;
  SL_CHECK(
      message.ParseFromString(EncodeSnapshot(snapshot).SerializeAsString()),
      "not parsed");
  const absl::Status fits = CheckSnapshot(message, *shard.rule());
  SL_CHECK(fits.ok(), fits.ToString());
  std::vector<Payload> tensors = TensorsOf(snapshot);
  SL_CHECK(tensors.size() == TensorCount(message, 1), "another number");
  return ShardMachine::Create(shard.rule(), shard.shard().range(),
                              DecodeSnapshot(message, 1, std::move(tensors)))
      .value();
}

class GivenTurnsTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr const char* kDelays[] = {"constant:0", "uniform:3",
                                            "straggler:4", "geometric:6"};
  template <typename Body>
  void ForEachJob(const Body& body) {
    for (const char* const delays : kDelays) {
      SCOPED_TRACE(delays);
      const auto rule = MakeRule(delays, GetParam());
      Rng first(1);
      ShardMachine stays = Begin(rule);
      Finish(stays, first);
      ASSERT_EQ(stays.turns()->state().over,
                rule->delays->Of(ShardId{0}).turn_count());
      ASSERT_THAT(stays.turns()->state().waiting, IsEmpty());
      ASSERT_THAT(stays.turns()->state().kept, IsEmpty());
      for (uint64_t seed = 2; seed < 12; ++seed) {
        SCOPED_TRACE(absl::StrCat("seed ", seed));
        Rng rng(seed);
        body(rule, stays, rng);
      }
    }
  }
};

std::vector<std::string> BitsOf(const ShardMachine& shard) {
  std::vector<std::string> bits = {BytesOf(shard.shard().values()),
                                   absl::StrCat(shard.shard().version()),
                                   absl::StrCat(shard.running_rms().mean())};
  for (const Payload& slot : shard.shard().slots())
    bits.push_back(BytesOf(slot));
  return bits;
}

TEST_P(GivenTurnsTest, TheBitsAreTheSameInAnyOrder) {
  ForEachJob([](const auto& rule, const ShardMachine& stays, Rng& rng) {
    ShardMachine shard = Begin(rule);
    Finish(shard, rng);
    EXPECT_EQ(BitsOf(shard), BitsOf(stays));
  });
}

TEST_P(GivenTurnsTest, TheBitsAreTheSameWhereverItGoes) {
  int travelled_with_some = 0;
  ForEachJob([&](const auto& rule, const ShardMachine& stays, Rng& rng) {
    ShardMachine shard = Begin(rule);
    do {
      travelled_with_some +=
          shard.waiting_count() > 0 && !shard.turns()->state().kept.empty();
      if (rng.Chance(0.5)) shard = Travelled(shard);
    } while (Step(shard, rng));
    EXPECT_EQ(BitsOf(shard), BitsOf(stays));
  });
  EXPECT_GT(travelled_with_some, 10);
}

TEST_P(GivenTurnsTest, APartGoesOnWithItsShareOfAllThatWaits) {
  // Sizes are those of the parts, so a bound may judge them otherwise.
  ForEachJob([&](const auto& with_bound, const ShardMachine&, Rng& rng) {
    TableRule without = *with_bound;
    without.gradient_bound = {};
    const auto rule = std::make_shared<const TableRule>(std::move(without));
    ShardMachine whole = Begin(rule);
    Finish(whole, rng);
    ShardMachine kept = Begin(rule);
    for (uint64_t left = rng.Below(kWorkers * kSteps); left > 0; --left)
      Step(kept, rng);
    absl::StatusOr<ShardOutcome> outcome =
        kept.Apply(SplitRecord{.at = 2, .part = ShardId{9}});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ShardMachine part = Travelled(*outcome->part);
    Finish(kept, rng);
    Finish(part, rng);
    EXPECT_EQ(BytesOf(kept.shard().values()) + BytesOf(part.shard().values()),
              BytesOf(whole.shard().values()));
    EXPECT_EQ(part.shard().version(), whole.shard().version());
  });
}

INSTANTIATE_TEST_SUITE_P(StaleRules, GivenTurnsTest, ::testing::Range(0, 4));

TEST(GivenTurnsRecordTest, ARecordThatHasNoTurnIsRefused) {
  const auto rule = MakeRule("uniform:3", 0);
  ShardMachine shard = Begin(rule);
  const Payload gradient = GradientOf(0, 0, shard.shard().range());
  GradientRecord held{.who = Life(0), .gradient = gradient, .held = true};
  EXPECT_THAT(shard.Apply(held).status().ToString(), HasSubstr("no update"));
  const SumRecord sum{.who = {Life(0), Life(1), Life(2)}, .sum = gradient};
  EXPECT_FALSE(shard.Apply(sum).ok());
  Rng rng(3);
  Finish(shard, rng);
  EXPECT_FALSE(shard
                   .Apply(GradientRecord{
                       .who = Life(0), .clock = kSteps, .gradient = gradient})
                   .ok());
}

TEST(GivenTurnsRecordTest, ASnapshotThatMakesNoSenseIsRefused) {
  const auto rule = MakeRule("straggler:4", 1);
  ShardMachine shard = Begin(rule);
  Rng rng(3);
  while (shard.turns()->state().waiting.size() < 2 ||
         shard.turns()->state().kept.size() < 2) {
    ASSERT_TRUE(Step(shard, rng));
  }
  const wire::ShardSnapshot good = EncodeSnapshot(shard.Snapshot());
  ASSERT_TRUE(CheckSnapshot(good, *rule).ok());
  const struct {
    const char* what;
    std::function<void(wire::ShardSnapshot&)> spoil;
  } cases[] = {
      {"no turns", [](auto& s) { s.clear_turns(); }},
      {"a plan that is not there",
       [](auto& s) { s.mutable_turns()->set_plan(-1); }},
      {"fewer than no turns", [](auto& s) { s.mutable_turns()->set_over(-1); }},
      {"more turns than there are",
       [](auto& s) { s.mutable_turns()->set_over(kWorkers * kSteps + 1); }},
      {"a turn less",
       [](auto& s) { s.mutable_turns()->set_over(s.turns().over() - 1); }},
      {"a gradient of nobody",
       [](auto& s) { s.mutable_turns()->mutable_waiting(0)->set_rank(-1); }},
      {"a gradient of one who is not there",
       [](auto& s) { s.mutable_turns()->mutable_waiting(0)->set_rank(99); }},
      {"a gradient that was not pushed",
       [](auto& s) {
         s.mutable_turns()->mutable_waiting(1)->set_clock(kSteps - 1);
       }},
      {"a gradient after the end",
       [](auto& s) { s.mutable_turns()->mutable_waiting(1)->set_clock(900); }},
      {"a gradient twice",
       [](auto& s) {
         *s.mutable_turns()->mutable_waiting(1) = s.turns().waiting(0);
       }},
      {"a gradient of a version to come",
       [](auto& s) {
         s.mutable_turns()->mutable_waiting(0)->set_base(s.version() + 1);
       }},
      {"a size below zero",
       [](auto& s) { s.mutable_turns()->mutable_waiting(0)->set_rms(-1); }},
      {"a version too few",
       [](auto& s) { s.mutable_turns()->mutable_kept()->RemoveLast(); }},
      {"a version twice",
       [](auto& s) {
         *s.mutable_turns()->mutable_kept(1) = s.turns().kept(0);
       }},
      {"a version of a turn to come",
       [](auto& s) {
         s.mutable_turns()->add_kept()->set_turns(s.turns().over());
       }},
      {"a version after the present",
       [](auto& s) {
         s.mutable_turns()->mutable_kept(0)->set_version(s.version() + 1);
       }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    wire::ShardSnapshot broken = good;
    c.spoil(broken);
    EXPECT_EQ(CheckSnapshot(broken, *rule).code(),
              absl::StatusCode::kInvalidArgument);
  }
  UpdateRule without = *rule;
  without.delays = nullptr;
  EXPECT_FALSE(CheckSnapshot(good, without).ok()) << "delays are not given";
}

}  // namespace slackline::given_turns_test
