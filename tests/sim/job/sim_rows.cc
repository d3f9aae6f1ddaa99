#include "tests/sim/job/sim_rows.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/rng.h"
#include "server/shard/store/store_kinds.h"
#include "tests/support/row_store.h"

namespace slackline::sim {
namespace {

class LosingStore : public RowStore {
 public:
  explicit LosingStore(RowStore store) : RowStore(std::move(store)) {}

  std::unique_ptr<ShardStore> Clone() const override {
    return std::make_unique<LosingStore>(*this);
  }
  absl::StatusOr<std::unique_ptr<ShardStore>> Split(
      const Region& kept, const Region& part) override {
    absl::StatusOr<std::unique_ptr<ShardStore>> rest =
        RowStore::Split(kept, part);
    LoseLastRow();
    return rest;
  }
};

class LosingKind : public RowKind {
 public:
  LosingKind(size_t width, PlantedRowLoss loss)
      : RowKind(width, RowFrames::kFloats), loss_(loss) {}

  absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& region, Payload values,
      std::vector<Payload> slots) const override {
    absl::StatusOr<std::unique_ptr<ShardStore>> store =
        RowKind::Of(region, std::move(values), std::move(slots));
    auto& rows = static_cast<RowStore&>(**store);
    if (loss_ == PlantedRowLoss::kInSnapshots) {
      rows.LoseLastRow();
      return store;
    }
    return std::make_unique<LosingStore>(std::move(rows));
  }

 private:
  const PlantedRowLoss loss_;
};

}  // namespace

void NameSomeRows(const Scenario& scenario, wire::PullRequest* request) {
  if (!scenario.HasRows()) return;
  const int64_t most = *absl::c_max_element(scenario.table_elements);
  for (wire::Pull& pull : *request->mutable_pull()) {
    const uint64_t hash = Mix64(scenario.seed ^ pull.id());
    if (!pull.has_step() || pull.step().exact() || hash % 2 == 0) continue;
    for (int64_t key = 0; key < most; ++key) {
      if (Mix64(hash ^ static_cast<uint64_t>(key)) % 2 == 0)
        NameRow(key, &pull);
    }
  }
}

std::shared_ptr<const StoreKind> StoreOf(const Scenario& scenario,
                                         TableId table) {
  const auto width = static_cast<size_t>(scenario.RowWidth(table));
  if (width == 0) return DenseKind();
  if (scenario.planted_row_loss != PlantedRowLoss::kNone)
    return std::make_shared<LosingKind>(width, scenario.planted_row_loss);
  return std::make_shared<RowKind>(width, RowFrames::kFloats);
}

std::function<std::shared_ptr<const StoreKind>(const wire::Table&)> StoresOf(
    const Scenario& scenario) {
  std::map<std::string, std::shared_ptr<const StoreKind>> stores;
  int32_t next = 0;
  for (const wire::Table& table : scenario.Tables())
    stores[table.name()] = StoreOf(scenario, TableId{next++});
  return [stores = std::move(stores)](const wire::Table& table) {
    return stores.at(table.name());
  };
}

std::vector<float> FloatsOf(const Scenario& scenario, TableId table,
                            const Region& region, const Payload& tensor) {
  const auto width = static_cast<size_t>(scenario.RowWidth(table));
  if (width == 0) {
    std::vector<float> floats(tensor.size() / sizeof(float));
    std::memcpy(floats.data(), tensor.data(), floats.size() * sizeof(float));
    return floats;
  }
  const absl::StatusOr<RowBlock> rows = RowBlock::Decode(tensor, region, width);
  return rows.ok() ? rows->Floats() : std::vector<float>();
}

}  // namespace slackline::sim
