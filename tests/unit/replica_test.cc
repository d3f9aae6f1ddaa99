// Goal: a worker's copy of the model and its optimizer state is, bit for bit,
// what the servers had, would have made of the same gradients, and get back;
// and a group that fails leaves it as it was.
// Method: a small model cut into uneven shards, next to a ShardCore; groups in
// memory, which fail where a test says.
#include "worker/session/replica.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_core.h"
#include "tests/support/dense_shard.h"
#include "tests/support/fake_group.h"
#include "tests/support/modes.h"
#include "tests/support/optimizers.h"
#include "worker/model/model.h"

namespace slackline::replica_test {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;
// Of the weights, and of the biases.
constexpr char kAdam[] = "adam { learning_rate: 0.1 weight_decay: 0.01 }";
constexpr char kMomentum[] = "momentum { learning_rate: 0.5 }";

std::unique_ptr<Model> NewModel() {
  config::Model config;
  config.mutable_softmax();
  absl::StatusOr<std::unique_ptr<Model>> model =
      CreateModel(config, /*features=*/5, /*classes=*/3);
  SL_CHECK(model.ok(), model.status().ToString());
  return *std::move(model);
}

// A running job with the model's tables, in shards of at most 4 elements.
wire::View NewView(int workers) {
  wire::View view;
  view.set_number(1);
  view.set_state(wire::RUNNING);
  view.set_steps_total(100);
  view.set_steps_per_epoch(100);
  *view.add_phase()->mutable_mode() = ModeOf("bsp");
  view.add_server()->add_thread();
  for (int rank = 0; rank < workers; ++rank) {
    wire::WorkerMember& worker = *view.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(10 + rank);
    worker.set_founder(true);
  }
  const std::unique_ptr<Model> model = NewModel();
  std::vector<wire::Table> tables(model->tables().begin(),
                                  model->tables().end());
  *tables[0].mutable_optimizer() = ParseOptimizer(kAdam);
  *tables[1].mutable_optimizer() = ParseOptimizer(kMomentum);
  PlaceTables(tables, {Owner{0, 0}}, /*shard_elements=*/4, &view);
  return view;
}

std::shared_ptr<const View> Seen(const wire::View& view) {
  absl::StatusOr<std::shared_ptr<const View>> seen = View::Create(view);
  SL_CHECK(seen.ok(), seen.status().ToString());
  return *std::move(seen);
}

Payload Floats(const std::vector<float>& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

std::string BytesOf(const Payload& payload) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(payload.data()), payload.size()));
}

// A state to the last bit.
std::vector<std::string> Portrait(Version version, const Payload& values,
                                  const std::vector<Payload>& slots) {
  std::vector<std::string> portrait = {absl::StrCat("version ", version),
                                       BytesOf(values)};
  for (const Payload& slot : slots) portrait.push_back(BytesOf(slot));
  return portrait;
}
std::vector<std::string> Portrait(const ShardValue& state) {
  return Portrait(state.version, state.values, state.slots);
}

LearningRateSchedule NoSchedule() {
  return *LearningRateSchedule::Create(
      {}, {.steps_total = 100, .steps_per_epoch = 100});
}

// One worker's copy.
struct Copy {
  explicit Copy(
      const wire::View& view, int64_t bucket_bytes = 40,
      std::unique_ptr<FloatMemory> memory = std::make_unique<HostMemory>())
      : model(NewModel()), seen(Seen(view)) {
    absl::StatusOr<std::unique_ptr<Replica>> created = Replica::Create(
        model.get(), NoSchedule(), bucket_bytes, std::move(memory), seen);
    SL_CHECK(created.ok(), created.status().ToString());
    replica = *std::move(created);
    EXPECT_TRUE(replica->Initialize(kSeed, {}).ok());
  }
  std::vector<std::vector<std::string>> Portraits() const {
    std::vector<std::vector<std::string>> portraits;
    for (int shard = 0; shard < seen->shard_count(); ++shard)
      portraits.push_back(
          Portrait(replica->CopyOut(*seen, ShardId{shard}).value()));
    return portraits;
  }

  std::unique_ptr<Model> model;
  std::shared_ptr<const View> seen;
  std::unique_ptr<Replica> replica;
};

// By table.
using Gradients = std::vector<std::vector<float>>;
Gradients RandomGradients(Rng& rng, const Model& model) {
  Gradients gradients;
  for (const wire::Table& table : model.tables()) {
    gradients.emplace_back(static_cast<size_t>(TableElements(table)));
    for (float& value : gradients.back())
      value = static_cast<float>(rng.Normal());
  }
  return gradients;
}

// One step with these gradients, last table first.
absl::StatusOr<Replica::StepResult> Step(Replica& replica, Collective& group,
                                         const Gradients& gradients,
                                         bool* group_failed) {
  *group_failed = false;
  replica.StartStep();
  for (int table = static_cast<int>(gradients.size()) - 1; table >= 0;
       --table) {
    EXPECT_FALSE(replica.Complete());
    SL_RETURN_IF_ERROR(replica.Add(
        group, TableId{table}, Floats(gradients[static_cast<size_t>(table)]),
        StepOptions()));
  }
  return replica.FinishStep(group, /*clock=*/0, group_failed);
}

// What PullState() would get.
PullResult RandomState(Rng& rng, const wire::View& view) {
  PullResult pulled;
  pulled.view = Seen(view);
  for (int shard = 0; shard < pulled.view->shard_count(); ++shard) {
    const auto tensor = [&] {
      std::vector<float> values(static_cast<size_t>(
          pulled.view->shard(ShardId{shard}).region.size()));
      for (float& value : values)
        value = static_cast<float>(rng.Normal() * rng.Normal());
      return Floats(values);
    };
    ShardValue& state = pulled.shards.emplace_back();
    // Numbers that no float holds.
    state.version = (Version{1} << 40) + 12345678901 + rng.Below(1000);
    state.values = tensor();
    const int slots =
        pulled.view->optimizer(pulled.view->shard(ShardId{shard}).table)
            .slot_count();
    for (int slot = 0; slot < slots; ++slot) state.slots.push_back(tensor());
  }
  return pulled;
}

// The servers, with BSP.
class Servers {
 public:
  explicit Servers(const wire::View& view)
      : seen_(Seen(view)),
        core_({.self = {0, 0}, .seed = kSeed}, config::LearningRateSchedule()) {
    ShardCore::Effects effects;
    core_.OnView(seen_, &effects);
  }
  void Push(int rank, Clock clock, const Gradients& gradients) {
    for (int shard = 0; shard < seen_->shard_count(); ++shard) {
      const ShardRange& range = seen_->shard(ShardId{shard});
      Message message;
      message.header.set_view_number(seen_->number());
      wire::Push& push = *message.header.mutable_push_request()->add_push();
      push.set_clock(clock);
      push.set_shard(shard);
      push.set_seq(static_cast<uint64_t>(clock) + 1);
      push.set_gradient(0);
      message.payloads.push_back(
          Payload::Copy(gradients[static_cast<size_t>(range.table)].data() +
                            range.region.begin(),
                        range.region.DenseBytes()));
      ShardCore::Effects effects;
      core_.OnMessage({.kind = PeerId::Kind::kWorker,
                       .index = rank,
                       .instance = static_cast<uint64_t>(10 + rank)},
                      message, &effects);
      ASSERT_FALSE(effects.sends.at(0)
                       .message.header.push_reply()
                       .answer(0)
                       .has_refusal());
    }
  }
  const Shard& shard(int shard) const {
    return core_.MachineOf(ShardId{shard})->shard();
  }
  std::vector<std::vector<std::string>> Portraits() const {
    std::vector<std::vector<std::string>> portraits;
    for (int s = 0; s < seen_->shard_count(); ++s) {
      portraits.push_back(
          Portrait(shard(s).version(), shard(s).values(), shard(s).slots()));
    }
    return portraits;
  }
  uint64_t Hash() const {
    std::vector<uint64_t> hashes;
    for (int s = 0; s < seen_->shard_count(); ++s) {
      hashes.push_back(
          StateHash(shard(s).version(), shard(s).values(), shard(s).slots()));
    }
    return ModelHash(hashes);
  }

 private:
  std::shared_ptr<const View> seen_;
  ShardCore core_;
};

// Shard `shard` keeps what is below `at`.
void Split(int32_t shard, int64_t at, wire::View* view) {
  view->set_number(view->number() + 1);
  wire::Split& split = *view->add_split();
  split.set_shard(shard);
  split.set_at(at);
  split.set_since(view->number());
  view->add_owner_server(0);
  view->add_owner_thread(0);
}

// ---- Taking and giving ------------------------------------------------------

TEST(ReplicaTest, BeginsAsTheServersDo) {
  const wire::View view = NewView(1);
  ASSERT_EQ(Seen(view)->shard_count(), 5) << "15 weights and 3 biases";
  EXPECT_EQ(Copy(view).Portraits(), Servers(view).Portraits());
}

TEST(ReplicaTest, InitializingForgetsEverything) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy copy(view);
  EXPECT_TRUE(copy.replica->CopyIn(RandomState(rng, view)).ok());
  EXPECT_TRUE(copy.replica->Initialize(kSeed, {}).ok());
  EXPECT_EQ(copy.Portraits(), Servers(view).Portraits());
}

TEST(ReplicaTest, GivesWhatItTookToTheLastBit) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy copy(view);
  const PullResult state = RandomState(rng, view);
  EXPECT_TRUE(copy.replica->CopyIn(state).ok());
  for (int shard = 0; shard < copy.seen->shard_count(); ++shard) {
    EXPECT_EQ(
        Portrait(copy.replica->CopyOut(*copy.seen, ShardId{shard}).value()),
        Portrait(state.shards[static_cast<size_t>(shard)]));
  }
}

TEST(ReplicaTest, BeginsWithWhatAnotherOptimizerHad) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy of(view);
  const PullResult state = RandomState(rng, view);
  EXPECT_TRUE(of.replica->CopyIn(state).ok());
  const std::vector<TableState> had = of.replica->State().value();
  // One number of updates for each table, that of its newest shard.
  ASSERT_EQ(had.size(), 2u);
  Version newest = 0;
  for (const ShardRange& range : of.seen->ShardsOf(TableId{0})) {
    newest = std::max(newest,
                      state.shards[static_cast<size_t>(range.shard)].version);
  }
  EXPECT_EQ(had[0].updates, static_cast<int64_t>(newest));
  ASSERT_EQ(had[0].slots.size(), 2u) << "Adam has two";
  ASSERT_EQ(had[1].slots.size(), 1u) << "momentum has one";

  Copy copy(view);
  EXPECT_TRUE(copy.replica->Initialize(kSeed, had).ok());
  const std::vector<TableState> has = copy.replica->State().value();
  for (size_t t = 0; t < had.size(); ++t) {
    EXPECT_EQ(has[t].updates, had[t].updates);
    EXPECT_EQ(Portrait(0, {}, has[t].slots), Portrait(0, {}, had[t].slots));
  }
  for (const ShardRange& range : copy.seen->ShardsOf(TableId{0})) {
    EXPECT_EQ(copy.replica->CopyOut(*copy.seen, range.shard).value().version,
              newest);
  }
}

TEST(ReplicaTest, ServersAndReplicasTellTheSameState) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy copy(view);
  const PullResult pulled = RandomState(rng, view);
  EXPECT_TRUE(copy.replica->CopyIn(pulled).ok());
  const std::vector<TableState> of_replica = copy.replica->State().value();
  const std::vector<TableState> of_servers = TableStatesOf(pulled);
  ASSERT_EQ(of_replica.size(), of_servers.size());
  for (size_t t = 0; t < of_replica.size(); ++t) {
    EXPECT_EQ(of_replica[t].updates, of_servers[t].updates);
    EXPECT_EQ(Portrait(0, {}, of_replica[t].slots),
              Portrait(0, {}, of_servers[t].slots));
  }
}

TEST(ReplicaTest, WhatItTookIsInTheModel) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy copy(view);
  const PullResult state = RandomState(rng, view);
  EXPECT_TRUE(copy.replica->CopyIn(state).ok());
  const absl::Span<const float> weight = copy.model->parameter(0);
  EXPECT_EQ(std::memcmp(weight.data() + 4, state.shards[1].values.data(), 16),
            0);
}

TEST(ReplicaTest, WhatItGaveDoesNotChange) {
  Rng rng(1);
  const wire::View view = NewView(1);
  Copy copy(view);
  const ShardValue given =
      copy.replica->CopyOut(*copy.seen, ShardId{0}).value();
  const std::vector<std::string> before = Portrait(given);
  EXPECT_TRUE(copy.replica->CopyIn(RandomState(rng, view)).ok());
  EXPECT_EQ(Portrait(given), before);
}

TEST(ReplicaTest, GivesTheShardsOfANewerView) {
  Rng rng(1);
  wire::View view = NewView(1);
  Copy copy(view);
  const PullResult state = RandomState(rng, view);
  EXPECT_TRUE(copy.replica->CopyIn(state).ok());
  Split(1, 5, &view);  // Elements 4 to 8 of the weights.
  Split(5, 7, &view);
  const std::shared_ptr<const View> cut = Seen(view);
  std::string values;
  for (const int shard : {1, 5, 6}) {
    const ShardValue part = copy.replica->CopyOut(*cut, ShardId{shard}).value();
    EXPECT_EQ(part.version, state.shards[1].version);
    EXPECT_EQ(part.values.size(),
              cut->shard(ShardId{shard}).region.DenseBytes());
    values += BytesOf(part.values);
  }
  EXPECT_EQ(values, BytesOf(state.shards[1].values));
}

TEST(ReplicaTest, HasTheHashThatTheServersWouldHave) {
  const wire::View view = NewView(1);
  Copy copy(view);
  Servers servers(view);
  EXPECT_EQ(copy.replica->Hash(*copy.seen).value(), servers.Hash());
  Rng rng(3);
  const Gradients gradients = RandomGradients(rng, *copy.model);
  servers.Push(0, 0, gradients);
  EXPECT_NE(copy.replica->Hash(*copy.seen).value(), servers.Hash());
  FakeGroup group(1);
  bool group_failed = false;
  ASSERT_TRUE(Step(*copy.replica, group.of(0), gradients, &group_failed).ok());
  EXPECT_EQ(copy.replica->Hash(*copy.seen).value(), servers.Hash());
}

TEST(ReplicaTest, HasOneHashHoweverShardsAreCutInTwo) {
  wire::View view = NewView(1);
  Copy copy(view);
  const uint64_t whole = Servers(view).Hash();
  Split(1, 5, &view);
  EXPECT_EQ(copy.replica->Hash(*Seen(view)).value(), whole);
}

TEST(ReplicaTest, CountsParametersAndSlots) {
  EXPECT_EQ(Copy(NewView(1)).replica->bytes(), (3 * 15 + 2 * 3) * 4);
}

// ---- Steps ------------------------------------------------------------------

TEST(ReplicaTest, AStepAloneHasTheBitsOfAStepOverServers) {
  const wire::View view = NewView(1);
  Copy copy(view);
  Servers servers(view);
  FakeGroup group(1);
  Rng rng(2);
  for (Clock clock = 0; clock < 5; ++clock) {
    const Gradients gradients = RandomGradients(rng, *copy.model);
    servers.Push(0, clock, gradients);
    bool group_failed = true;
    const absl::StatusOr<Replica::StepResult> step =
        Step(*copy.replica, group.of(0), gradients, &group_failed);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_FALSE(group_failed);
    ASSERT_EQ(copy.Portraits(), servers.Portraits()) << "clock " << clock;
  }
}

// As after an asynchronous phase, where a push may count at one shard and not
// yet at another.
TEST(ReplicaTest, ShardsOfDifferentVersionsStepAsTheyWouldOverServers) {
  Rng rng(4);
  const wire::View view = NewView(1);
  Copy copy(view);
  PullResult state = RandomState(rng, view);
  for (size_t s = 0; s < state.shards.size(); ++s) {
    state.shards[s].version = s == 1 ? 7 : 3;
    // Second moments are not negative.
    state.shards[s].slots.back() =
        Floats(std::vector<float>(state.shards[s].values.size() / 4, 0.3f));
  }
  EXPECT_TRUE(copy.replica->CopyIn(state).ok());
  const Gradients gradients = RandomGradients(rng, *copy.model);
  FakeGroup group(1);
  bool group_failed = false;
  ASSERT_TRUE(Step(*copy.replica, group.of(0), gradients, &group_failed).ok());
  for (size_t s = 0; s < state.shards.size(); ++s) {
    const ShardRange& range = copy.seen->shard(ShardId{static_cast<int>(s)});
    Shard twin(
        range, state.shards[s].version,
        DenseKind()
            ->Of(range.region, state.shards[s].values, state.shards[s].slots)
            .value());
    const Payload gradient =
        Payload::Copy(gradients[static_cast<size_t>(range.table)].data() +
                          range.region.begin(),
                      range.region.DenseBytes());
    const Optimizer& rule = copy.seen->optimizer(range.table);
    PayloadMemory heap;
    ASSERT_TRUE(twin.ApplyMean(rule,
                               {.parts = absl::MakeConstSpan(&gradient, 1),
                                .count = 1,
                                .workers = 1},
                               {.learning_rate = rule.learning_rate()}, heap)
                    .ok());
    EXPECT_EQ(Portrait(copy.replica->CopyOut(*copy.seen, range.shard).value()),
              Portrait(twin.version(), twin.values(), twin.slots()))
        << "shard " << s;
  }
}

TEST(ReplicaTest, EachTableHasItsRuleItsSlotsAndTheOptionsOfItsGradient) {
  const wire::View view = NewView(1);
  Copy copy(view);
  Rng rng(6);
  const Gradients gradients = RandomGradients(rng, *copy.model);
  const std::vector<StepOptions> options = {
      {.rate_factor = 0.5}, {.rate_factor = 3, .momentum = 0.25}};
  std::vector<Shard> twins;
  for (int shard = 0; shard < copy.seen->shard_count(); ++shard) {
    const ShardRange& range = copy.seen->shard(ShardId{shard});
    const Optimizer& rule = copy.seen->optimizer(range.table);
    const auto table = static_cast<size_t>(range.table);
    Shard& twin = twins.emplace_back(
        DenseShard(copy.seen->table(range.table), range, kSeed, rule));
    PayloadMemory heap;
    const Payload gradient =
        Payload::Copy(gradients[table].data() + range.region.begin(),
                      range.region.DenseBytes());
    ASSERT_TRUE(twin.ApplyMean(rule,
                               {.parts = absl::MakeConstSpan(&gradient, 1),
                                .count = 1,
                                .workers = 1},
                               {.learning_rate = rule.learning_rate() *
                                                 options[table].rate_factor,
                                .momentum = options[table].momentum},
                               heap)
                    .ok());
  }
  FakeGroup group(1);
  copy.replica->StartStep();
  for (const int table : {1, 0}) {
    const auto index = static_cast<size_t>(table);
    ASSERT_TRUE(copy.replica
                    ->Add(group.of(0), TableId{table}, Floats(gradients[index]),
                          options[index])
                    .ok());
  }
  // The same step, once more, for another group.
  ASSERT_TRUE(copy.replica->AddAgain(group.of(0)).ok());
  bool group_failed = false;
  ASSERT_TRUE(copy.replica->FinishStep(group.of(0), 0, &group_failed).ok());
  for (size_t s = 0; s < twins.size(); ++s) {
    const Shard& twin = twins[s];
    EXPECT_EQ(copy.Portraits()[s],
              Portrait(twin.version(), twin.values(), twin.slots()));
  }
}

TEST(ReplicaTest, SeveralRanksApplyTheMeanAndStayEqual) {
  constexpr int kRanks = 3;
  const wire::View view = NewView(kRanks);
  Servers servers(view);
  FakeGroup group(kRanks);
  std::vector<std::unique_ptr<Copy>> copies;
  for (int rank = 0; rank < kRanks; ++rank)
    copies.push_back(std::make_unique<Copy>(view));
  Rng rng(2);
  for (Clock clock = 0; clock < 5; ++clock) {
    std::vector<Gradients> gradients;
    for (int rank = 0; rank < kRanks; ++rank) {
      gradients.push_back(RandomGradients(rng, *copies[0]->model));
      servers.Push(rank, clock, gradients.back());
    }
    group.Run([&](int rank, Collective& own) {
      bool group_failed = false;
      EXPECT_TRUE(
          Step(*copies[rank]->replica, own, gradients[rank], &group_failed)
              .ok());
    });
  }
  EXPECT_GE(group.operations(), 5 * 2) << "a bucket for each table";
  for (int rank = 1; rank < kRanks; ++rank)
    EXPECT_EQ(copies[rank]->Portraits(), copies[0]->Portraits());
  for (int s = 0; s < copies[0]->seen->shard_count(); ++s) {
    const ShardRange& range = copies[0]->seen->shard(ShardId{s});
    const float* const own =
        copies[0]->model->parameter(static_cast<int>(range.table)).data() +
        range.region.begin();
    for (int64_t i = 0; i < range.region.size(); ++i) {
      float expected = 0;
      std::memcpy(&expected, servers.shard(s).values().data() + 4 * i, 4);
      EXPECT_NEAR(own[i], expected, 1e-6);
    }
  }
}

TEST(ReplicaTest, ASumThatIsNotFiniteIsAppliedNowhereAndTheCulpritsAreNamed) {
  constexpr int kRanks = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float most = std::numeric_limits<float>::max();
  const struct {
    const char* what;
    std::vector<std::pair<int, float>> spoilt;  // Rank, and what it has.
    std::vector<Rank> culprits;
  } cases[] = {
      {"one NaN", {{1, nan}}, {Rank{1}}},
      {"two", {{0, nan}, {2, -nan}}, {Rank{0}, Rank{2}}},
      {"infinities that meet",
       {{0, std::numeric_limits<float>::infinity()},
        {1, -std::numeric_limits<float>::infinity()}},
       {Rank{0}, Rank{1}}},
      {"finite ones whose sum is not", {{0, most}, {1, most}}, {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const wire::View view = NewView(kRanks);
    FakeGroup group(kRanks);
    std::vector<std::unique_ptr<Copy>> copies;
    for (int rank = 0; rank < kRanks; ++rank)
      copies.push_back(std::make_unique<Copy>(view));
    const auto before = copies[0]->Portraits();
    Rng rng(2);
    std::vector<Gradients> good;
    for (int rank = 0; rank < kRanks; ++rank)
      good.push_back(RandomGradients(rng, *copies[0]->model));
    std::vector<Gradients> bad = good;
    for (const auto& [rank, value] : c.spoilt) bad[rank].back().back() = value;
    for (const bool spoilt : {true, false}) {
      group.Run([&](int rank, Collective& own) {
        bool group_failed = true;
        const absl::StatusOr<Replica::StepResult> step =
            Step(*copies[rank]->replica, own, spoilt ? bad[rank] : good[rank],
                 &group_failed);
        ASSERT_TRUE(step.ok()) << step.status();
        EXPECT_FALSE(group_failed);
        EXPECT_EQ(step->nonfinite, spoilt);
        EXPECT_EQ(step->culprits, spoilt ? c.culprits : std::vector<Rank>());
      });
      for (const auto& copy : copies) {
        EXPECT_EQ(copy->Portraits() == before, spoilt);
        EXPECT_EQ(copy->Portraits(), copies[0]->Portraits());
      }
    }
  }
}

// The mean is over those who have a gradient, at the rate of the lowest of
// them.
TEST(ReplicaTest, RanksWithoutAGradientDoNotCount) {
  const wire::View view = NewView(3);
  Rng rng(2);
  std::vector<std::unique_ptr<Copy>> copies;
  for (int rank = 0; rank < 3; ++rank)
    copies.push_back(std::make_unique<Copy>(view));
  std::vector<Gradients> gradients;
  for (int rank = 0; rank < 3; ++rank)
    gradients.push_back(RandomGradients(rng, *copies[0]->model));
  const std::vector<StepOptions> options = {
      {.rate_factor = 0.25},
      {.rate_factor = 0.5, .momentum = 0.7},
      {.rate_factor = 4, .momentum = 0.2}};
  const auto step = [&](Copy& copy, Collective& group, int rank, bool counts) {
    copy.replica->StartStep();
    if (counts) {
      for (int table = 1; table >= 0; --table) {
        ASSERT_TRUE(copy.replica
                        ->Add(group, TableId{table},
                              Floats(gradients[rank][table]), options[rank])
                        .ok());
      }
    } else {
      ASSERT_TRUE(copy.replica->AddNothing(group).ok());
    }
    bool group_failed = true;
    EXPECT_TRUE(
        copy.replica
            ->FinishStepOfSome(group, /*clock=*/0, counts, &group_failed)
            .ok());
    EXPECT_FALSE(group_failed);
  };
  FakeGroup group(3);
  group.Run([&](int rank, Collective& own) {
    step(*copies[rank], own, rank, /*counts=*/rank != 0);
  });
  // As two ranks would do it, of which the first has that rate and momentum.
  Copy first(NewView(2)), second(NewView(2));
  FakeGroup pair(2);
  pair.Run([&](int rank, Collective& own) {
    step(rank == 0 ? first : second, own, rank + 1, /*counts=*/true);
  });
  for (const auto& copy : copies)
    EXPECT_EQ(copy->Portraits(), first.Portraits());
  EXPECT_EQ(first.Portraits(), second.Portraits());
}

// Two optimizers: each step() is of one's tables. Momentum, and the updates
// that Adam counts, are those of its own steps.
TEST(ReplicaTest, ATableThatIsSkippedKeepsValuesStateAndVersion) {
  const wire::View view = NewView(2);
  Rng rng(8);
  Copy whole(view), left(view), right(view);
  const Gradients gradients = RandomGradients(rng, *whole.model);
  bool failed = false;
  FakeGroup alone(1);
  ASSERT_TRUE(Step(*whole.replica, alone.of(0), gradients, &failed).ok());
  const auto begin = left.Portraits();
  for (const int skipped : {1, 0}) {
    const auto before = left.Portraits();
    FakeGroup group(2);
    group.Run([&](int rank, Collective& own) {
      Replica& replica = *(rank == 0 ? left : right).replica;
      replica.StartStep();
      const int stepping = 1 - skipped;
      ASSERT_TRUE(replica
                      .Add(own, TableId{stepping},
                           Floats(gradients[static_cast<size_t>(stepping)]), {})
                      .ok());
      ASSERT_TRUE(replica.Skip(own, TableId{skipped}).ok());
      bool group_failed = false;
      ASSERT_TRUE(replica.FinishStep(own, 0, &group_failed).ok());
    });
    EXPECT_EQ(left.Portraits(), right.Portraits());
    for (int s = 0; s < left.seen->shard_count(); ++s) {
      const bool of_skipped =
          left.seen->shard(ShardId{s}).table == TableId{skipped};
      EXPECT_EQ(left.Portraits()[s] == before[s], of_skipped) << "shard " << s;
    }
  }
  // Both tables have had their step, with the gradient that both ranks had.
  EXPECT_EQ(left.Portraits(), whole.Portraits());
  EXPECT_NE(left.Portraits(), begin);
}

// Momentum would go on without a gradient.
TEST(ReplicaTest, AStepInWhichNobodyCountsChangesNothing) {
  const wire::View view = NewView(2);
  Copy first(view), second(view);
  Copy* const copies[] = {&first, &second};
  Rng rng(2);
  const PullResult state = RandomState(rng, view);
  for (Copy* const copy : copies)
    ASSERT_TRUE(copy->replica->CopyIn(state).ok());
  const auto before = first.Portraits();
  FakeGroup group(2);
  group.Run([&](int rank, Collective& own) {
    Replica& replica = *copies[rank]->replica;
    replica.StartStep();
    ASSERT_TRUE(replica.AddNothing(own).ok());
    bool group_failed = true;
    const absl::StatusOr<Replica::StepResult> step = replica.FinishStepOfSome(
        own, /*clock=*/0, /*counts=*/false, &group_failed);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_FALSE(step->nonfinite);
    EXPECT_FALSE(group_failed);
  });
  for (const Copy* const copy : copies) EXPECT_EQ(copy->Portraits(), before);
}

TEST(ReplicaTest, AGroupThatFailsWhileItLooksForTheCulpritHasFailed) {
  const wire::View view = NewView(2);
  Copy first(view);
  Copy second(view);
  Copy* const copies[] = {&first, &second};
  const auto before = first.Portraits();
  Rng rng(2);
  Gradients gradients = RandomGradients(rng, *first.model);
  gradients[0][0] = std::numeric_limits<float>::quiet_NaN();
  FakeGroup group(2);
  group.FailAt(2, 1);  // Behind a bucket for each of the two tables.
  group.Run([&](int rank, Collective& own) {
    bool group_failed = false;
    const absl::Status stepped =
        Step(*copies[rank]->replica, own, gradients, &group_failed).status();
    EXPECT_EQ(group_failed, !stepped.ok());
    EXPECT_TRUE(group_failed || rank != 1);
  });
  EXPECT_EQ(first.Portraits(), before);
  EXPECT_EQ(second.Portraits(), before);
}

TEST(ReplicaTest, AGroupThatFailsLeavesEverythingAsItWas) {
  const wire::View view = NewView(2);
  Rng rng(2);
  for (const int64_t operation : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    FakeGroup group(2);
    group.FailAt(operation, 1);
    Copy first(view);
    Copy second(view);
    Copy* const copies[] = {&first, &second};
    const auto before = first.Portraits();
    const Gradients gradients = RandomGradients(rng, *first.model);
    bool ok[2] = {false, false};
    group.Run([&](int rank, Collective& own) {
      bool group_failed = false;
      const absl::Status stepped =
          Step(*copies[rank]->replica, own, gradients, &group_failed).status();
      ok[rank] = stepped.ok();
      EXPECT_EQ(group_failed, !stepped.ok()) << stepped;
    });
    EXPECT_FALSE(ok[1]);
    EXPECT_EQ(second.Portraits(), before);
    // Another rank may have finished the last operation, and with it the step.
    EXPECT_EQ(ok[0], operation == group.operations() - 1);
    EXPECT_EQ(first.Portraits() == before, !ok[0]);
    // Both go on with others.
    FakeGroup alone(1);
    bool group_failed = false;
    EXPECT_TRUE(
        Step(*second.replica, alone.of(0), gradients, &group_failed).ok());
    EXPECT_NE(second.Portraits(), before);
  }
}

TEST(ReplicaTest, WhoGivesUpInTheMiddleFailsTheStepOfTheOthers) {
  const wire::View view = NewView(2);
  Rng rng(2);
  FakeGroup group(2);
  Copy first(view);
  Copy second(view);
  const auto before = first.Portraits();
  const Gradients gradients = RandomGradients(rng, *first.model);
  group.Run([&](int rank, Collective& own) {
    if (rank == 1) {
      second.replica->StartStep();
      EXPECT_TRUE(
          second.replica
              ->Add(own, TableId{1}, Floats(gradients[1]), StepOptions())
              .ok());
      own.Abort(absl::CancelledError("the loss is nan"));
      return;
    }
    bool group_failed = false;
    EXPECT_FALSE(Step(*first.replica, own, gradients, &group_failed).ok());
    EXPECT_TRUE(group_failed);
  });
  EXPECT_EQ(first.Portraits(), before);
  EXPECT_EQ(second.Portraits(), before);
}

TEST(ReplicaTest, AStepThatAGroupLostIsFinishedByAnotherWithTheSameGradients) {
  const wire::View view = NewView(2);
  Rng rng(2);
  FakeGroup group(2);
  group.FailAt(0, 1);
  Copy first(view);
  Copy second(view);
  Copy never_failed(view);
  Copy* const copies[] = {&first, &second};
  const Gradients gradients = RandomGradients(rng, *first.model);
  group.Run([&](int rank, Collective& own) {
    bool group_failed = false;
    EXPECT_FALSE(
        Step(*copies[rank]->replica, own, gradients, &group_failed).ok());
    EXPECT_TRUE(group_failed);
  });
  for (Copy* copy : copies) {
    FakeGroup alone(1);
    bool group_failed = false;
    ASSERT_TRUE(copy->replica->AddAgain(alone.of(0)).ok());
    ASSERT_TRUE(copy->replica->Complete());
    ASSERT_TRUE(copy->replica->FinishStep(alone.of(0), 0, &group_failed).ok());
  }
  FakeGroup alone(1);
  bool group_failed = false;
  ASSERT_TRUE(
      Step(*never_failed.replica, alone.of(0), gradients, &group_failed).ok());
  EXPECT_EQ(first.Portraits(), never_failed.Portraits());
  EXPECT_EQ(second.Portraits(), never_failed.Portraits());
}

TEST(ReplicaTest, AGradientThatDoesNotFitIsAnErrorOfThisRank) {
  const wire::View view = NewView(1);
  FakeGroup group(1);
  Copy copy(view);
  const auto before = copy.Portraits();
  Rng rng(2);
  Gradients gradients = RandomGradients(rng, *copy.model);
  gradients[0].pop_back();
  bool group_failed = true;
  EXPECT_EQ(Step(*copy.replica, group.of(0), gradients, &group_failed)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(group_failed);
  EXPECT_EQ(copy.Portraits(), before);
}

// ---- Catching up ------------------------------------------------------------

// Ranks with states of their own, and the clocks that they tell.
struct Group {
  explicit Group(std::vector<Clock> own_clocks, std::set<int> own_values = {})
      : clocks(std::move(own_clocks)),
        own(std::move(own_values)),
        fake(static_cast<int>(clocks.size())) {
    Rng rng(8);
    const wire::View view = NewView(static_cast<int>(clocks.size()));
    for (size_t rank = 0; rank < clocks.size(); ++rank) {
      copies.push_back(std::make_unique<Copy>(view));
      EXPECT_TRUE(copies.back()->replica->CopyIn(RandomState(rng, view)).ok());
      before.push_back(copies.back()->Portraits());
    }
  }
  void CatchUp() {
    results.assign(clocks.size(), absl::UnknownError("did not run"));
    fake.Run([&](int rank, Collective& member) {
      bool group_failed = true;
      const absl::StatusOr<Replica::CaughtUp> caught_up =
          copies[rank]->replica->CatchUp(
              member,
              {.clock = clocks[rank], .own_values = own.count(rank) > 0},
              &group_failed);
      if (!caught_up.ok()) {
        EXPECT_TRUE(group_failed);
        results[rank] = caught_up.status();
        return;
      }
      results[rank] = caught_up->clock;
      EXPECT_EQ(caught_up->took_state,
                copies[rank]->Portraits() != before[rank]);
    });
  }

  std::vector<Clock> clocks;
  std::set<int> own;  // Ranks whose values nobody has agreed on.
  FakeGroup fake;
  std::vector<std::unique_ptr<Copy>> copies;
  std::vector<std::vector<std::vector<std::string>>> before;
  std::vector<absl::StatusOr<Clock>> results;
};

TEST(ReplicaTest, WhoIsBehindGetsTheStateOfOneWhoIsNot) {
  constexpr Clock kBig = (Clock{1} << 50) + 3;  // No float holds it.
  for (const std::vector<Clock>& clocks : std::vector<std::vector<Clock>>{
           {kBig, kBig - 1, kBig, -1}, {7, 8}, {-1, 0}, {0, -1, -1}}) {
    Group group(clocks);
    group.CatchUp();
    const Clock most = *std::max_element(clocks.begin(), clocks.end());
    const size_t root =
        std::max_element(clocks.begin(), clocks.end()) - clocks.begin();
    for (size_t rank = 0; rank < clocks.size(); ++rank) {
      SCOPED_TRACE(absl::StrCat("clock ", clocks[rank], " of ", most));
      ASSERT_TRUE(group.results[rank].ok()) << group.results[rank].status();
      EXPECT_EQ(*group.results[rank], most);
      EXPECT_EQ(group.copies[rank]->Portraits(),
                group.before[clocks[rank] == most ? rank : root]);
    }
  }
}

TEST(ReplicaTest, ValuesOfAWorkerAreThoseOfTheFirstUntilAGroupHasAgreed) {
  for (const bool agreed : {false, true}) {
    Group group({0, 0, 0}, agreed ? std::set<int>{0, 2} : std::set{0, 1, 2});
    group.CatchUp();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(group.results[rank].value(), 0);
      EXPECT_EQ(group.copies[rank]->Portraits(), group.before[agreed ? 1 : 0]);
    }
  }
}

TEST(ReplicaTest, WhereNobodyIsBehindNothingIsSent) {
  Group group({4, 4, 4});
  group.CatchUp();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(*group.results[rank], 4);
    EXPECT_EQ(group.copies[rank]->Portraits(), group.before[rank]);
  }
  EXPECT_EQ(group.fake.operations(), 1);
}

TEST(ReplicaTest, OneAloneHasWhatItHas) {
  Group group({4});
  group.CatchUp();
  EXPECT_EQ(*group.results[0], 4);
}

TEST(ReplicaTest, WhereNobodyKnowsTheStateThereIsNone) {
  Group group({-1, -1});
  group.CatchUp();
  for (const absl::StatusOr<Clock>& result : group.results) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  }
}

// A GPU that fails once it is told to.
class FailingMemory final : public FloatMemory {
 public:
  explicit FailingMemory(const bool* fails) : fails_(*fails) {}

  absl::StatusOr<Array> Allocate(size_t elements) override {
    return host_.Allocate(elements);
  }
  absl::Status Copy(const void* from, absl::Span<float> to) override {
    return host_.Copy(from, to);
  }
  absl::Status CopyIn(const void* from, absl::Span<float> to) override {
    return fails_ ? absl::InternalError("a copy to the GPU")
                  : host_.CopyIn(from, to);
  }
  absl::Status CopyOut(absl::Span<const float> from, void* to) override {
    return host_.CopyOut(from, to);
  }
  absl::StatusOr<bool> AllFinite(
      absl::Span<const absl::Span<const float>> arrays) override {
    return host_.AllFinite(arrays);
  }
  absl::Status Apply(const Optimizer& optimizer,
                     const Optimizer::ApplyArgs& args) override {
    return host_.Apply(optimizer, args);
  }

 private:
  const bool& fails_;
  HostMemory host_;
};

// Else it would connect and fail again and again.
TEST(ReplicaTest, AGpuThatFailsIsNoFailureOfTheGroup) {
  bool fails = false;
  Copy copy(NewView(1), /*bucket_bytes=*/40,
            std::make_unique<FailingMemory>(&fails));
  fails = true;
  FakeGroup group(1);
  bool group_failed = true;
  EXPECT_EQ(copy.replica->CatchUp(group.of(0), {.clock = 3}, &group_failed)
                .status()
                .code(),
            absl::StatusCode::kInternal);
  EXPECT_FALSE(group_failed);
}

TEST(ReplicaTest, AFailureInTheMiddleChangesNothing) {
  int64_t operations = 1;
  for (int64_t operation = 0; operation < operations; ++operation) {
    for (const int rank : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat("operation ", operation, " of rank ", rank));
      Group group({3, 5, 3});
      group.fake.FailAt(operation, rank);
      group.CatchUp();
      operations = group.fake.operations();
      EXPECT_FALSE(group.results[rank].ok());
      for (int r = 0; r < 3; ++r) {
        if (!group.results[r].ok()) {
          EXPECT_EQ(group.copies[r]->Portraits(), group.before[r]);
        } else {
          EXPECT_EQ(operation, operations - 1) << "rank " << r << " has all";
          EXPECT_EQ(group.copies[r]->Portraits(), group.before[1]);
        }
      }
    }
  }
  EXPECT_EQ(operations, 1 + 1 + 3 + 2) << "clocks, versions, tensors";
}

}  // namespace slackline::replica_test
