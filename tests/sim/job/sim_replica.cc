#include "tests/sim/job/sim_replica.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/view/initializer.h"

namespace slackline::sim {
namespace {

Payload PayloadOf(const SimReplica::Tensor& tensor, const ShardRange& range) {
  return Payload::Copy(tensor.data() + range.region.begin(),
                       range.region.DenseBytes());
}

void CopyTo(const Payload& payload, const ShardRange& range,
            SimReplica::Tensor* tensor) {
  std::memcpy(tensor->data() + range.region.begin(), payload.data(),
              payload.size());
}

bool Same(const SimReplica::Tensor& a, const SimReplica::Tensor& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

SimReplica SimReplica::Initial(const Scenario& scenario, Rank rank,
                               std::shared_ptr<const View> view) {
  SimReplica replica;
  replica.versions.assign(static_cast<size_t>(view->shard_count()), 0);
  // Of a worker's values the optimizer may have some past, too.
  Rng past =
      Rng(scenario.seed).Fork(absl::StrCat("past of ", static_cast<int>(rank)));
  for (int t = 0; t < view->proto().table_size(); ++t) {
    wire::Table table = view->proto().table(t);
    Tensor initial(static_cast<size_t>(TableElements(table)));
    uint64_t seed = scenario.seed;
    std::vector<Tensor>& slots = replica.slots.emplace_back(
        view->optimizer(TableId{t}).slot_count(), Tensor(initial.size(), 0.0f));
    if (table.initializer().kind() == wire::Initializer::OF_WORKER) {
      table.mutable_initializer()->set_kind(wire::Initializer::UNIFORM);
      seed += static_cast<uint64_t>(rank);
      const auto updates = static_cast<Version>(past.Between(0, 20));
      for (const ShardRange& range : view->ShardsOf(TableId{t}))
        replica.versions[static_cast<size_t>(range.shard)] = updates;
      for (Tensor& slot : slots) {
        for (float& value : slot)
          value = static_cast<float>(updates > 0 ? past.Uniform() : 0);
      }
    }
    InitializeElements(table, seed, 0, absl::MakeSpan(initial));
    replica.values.push_back(std::move(initial));
  }
  replica.view = std::move(view);
  return replica;
}

SimReplica SimReplica::Of(const PullResult& pulled) {
  SimReplica replica;
  replica.view = pulled.view;
  for (int t = 0; t < replica.view->proto().table_size(); ++t) {
    const TableId table{t};
    const Tensor zeros(
        static_cast<size_t>(TableElements(replica.view->table(table))), 0.0f);
    replica.values.push_back(zeros);
    replica.slots.emplace_back(replica.view->optimizer(table).slot_count(),
                               zeros);
  }
  for (size_t s = 0; s < pulled.shards.size(); ++s) {
    const ShardRange& range =
        replica.view->shard(ShardId{static_cast<int32_t>(s)});
    const size_t table = static_cast<size_t>(range.table);
    const ShardValue& value = pulled.shards[s];
    CopyTo(value.values, range, &replica.values[table]);
    for (size_t i = 0; i < replica.slots[table].size(); ++i)
      CopyTo(value.slots[i], range, &replica.slots[table][i]);
    replica.versions.push_back(value.version);
  }
  return replica;
}

Version SimReplica::VersionOf(const View& in, ShardId shard) const {
  while (static_cast<size_t>(shard) >= versions.size())
    shard = in.OriginOf(shard);
  return versions[static_cast<size_t>(shard)];
}

ShardValue SimReplica::CopyOut(const View& in, ShardId shard) const {
  return CopyOf(in.shard(shard), VersionOf(in, shard));
}

ShardValue SimReplica::CopyOf(const ShardRange& range, Version version) const {
  const size_t table = static_cast<size_t>(range.table);
  ShardValue value;
  value.version = version;
  value.values = PayloadOf(values[table], range);
  for (const Tensor& slot : slots[table])
    value.slots.push_back(PayloadOf(slot, range));
  return value;
}

uint64_t SimReplica::Hash(const View& in) const {
  std::vector<uint64_t> hashes;
  ShardRange range;
  for (int t = 0; t < in.proto().table_size(); ++t) {
    range.table = TableId{t};
    const wire::Table& table = in.table(range.table);
    const int64_t elements = TableElements(table);
    for (int64_t begin = 0; begin < elements; begin = range.region.end()) {
      range.region = {begin,
                      std::min(begin + table.shard_elements(), elements)};
      const ShardId shard{static_cast<int32_t>(hashes.size())};
      const ShardValue value = CopyOf(range, VersionOf(in, shard));
      hashes.push_back(StateHash(value.version, value.values, value.slots));
    }
  }
  return ModelHash(hashes);
}

void SimReplica::Apply(const Scenario& scenario, const std::vector<Tensor>& sum,
                       int divisor, Clock clock) {
  if (divisor == 0) return;
  for (int32_t id = 0; id < view->shard_count(); ++id) {
    const ShardRange& range = view->shard(ShardId{id});
    const size_t table = static_cast<size_t>(range.table);
    const Optimizer& optimizer = view->optimizer(range.table);
    const auto* const gradient = reinterpret_cast<const std::byte*>(
        sum[table].data() + range.region.begin());
    Optimizer::ApplyArgs args;
    args.in = args.out = values[table].data() + range.region.begin();
    for (size_t i = 0; i < slots[table].size(); ++i)
      args.slots[i] = slots[table][i].data() + range.region.begin();
    args.gradients = absl::MakeConstSpan(&gradient, 1);
    args.elements = static_cast<size_t>(range.region.size());
    args.gradient_scale = 1.0f / static_cast<float>(divisor);
    const StepOptions options =
        scenario.GradientOptions(Rank{0}, clock, range.table);
    args.numbers = {.learning_rate = optimizer.learning_rate() *
                                     scenario.RateFactorAt(clock) *
                                     options.rate_factor,
                    .momentum = options.momentum};
    args.update_count =
        static_cast<int64_t>(versions[static_cast<size_t>(id)]) + 1;
    optimizer.Apply(args);
  }
  for (Version& version : versions) ++version;
}

bool SimReplica::SameBits(const SimReplica& other) const {
  // Shards may have been split in two between the views of the two.
  if (versions.size() < other.versions.size()) return other.SameBits(*this);
  for (size_t s = 0; s < versions.size(); ++s) {
    const ShardId shard{static_cast<int32_t>(s)};
    if (versions[s] != other.VersionOf(*view, shard)) return false;
  }
  if (values.size() != other.values.size()) return false;
  for (size_t t = 0; t < values.size(); ++t) {
    if (!Same(values[t], other.values[t]) ||
        slots[t].size() != other.slots[t].size()) {
      return false;
    }
    for (size_t i = 0; i < slots[t].size(); ++i) {
      if (!Same(slots[t][i], other.slots[t][i])) return false;
    }
  }
  return true;
}

}  // namespace slackline::sim
