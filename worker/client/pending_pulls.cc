#include "worker/client/pending_pulls.h"

#include <utility>

#include "common/status.h"
#include "worker/client/shard_tensors.h"

namespace slackline {

uint64_t PendingPulls::Add(std::shared_ptr<const View> view, Clock clock) {
  const uint64_t pull_id = ++last_id_;
  Pending& pending = pulls_[pull_id];
  pending.clock = clock;
  pending.missing = view->shard_count();
  for (int table = 0; table < view->proto().table_size(); ++table) {
    pending.missing_of.push_back(
        static_cast<int32_t>(view->ShardsOf(TableId{table}).size()));
  }
  pending.result.pull_id = pull_id;
  pending.result.shards.resize(static_cast<size_t>(view->shard_count()));
  pending.result.view = std::move(view);
  return pull_id;
}

std::optional<Clock> PendingPulls::ClockOf(uint64_t pull_id) const {
  const auto pending = pulls_.find(pull_id);
  if (pending == pulls_.end()) return std::nullopt;
  return pending->second.clock;
}

bool PendingPulls::HasBrought(uint64_t pull_id, TableId table) const {
  const auto pending = pulls_.find(pull_id);
  return pending != pulls_.end() &&
         pending->second.missing_of[static_cast<size_t>(table)] == 0;
}

std::optional<TableValues> PendingPulls::BroughtBy(uint64_t pull_id,
                                                   TableId table) const {
  if (!HasBrought(pull_id, table)) return std::nullopt;
  return pulls_.at(pull_id).result.Of(table);
}

void PendingPulls::Bring(uint64_t pull_id, int32_t shard, ShardValue value,
                         ClientEffects* effects) {
  const auto at = pulls_.find(pull_id);
  SL_CHECK(at != pulls_.end(), "values of a pull that nobody waits for");
  Pending& pending = at->second;
  pending.result.shards[static_cast<size_t>(shard)] = std::move(value);
  const TableId table = pending.result.view->shard(ShardId{shard}).table;
  if (--pending.missing_of[static_cast<size_t>(table)] == 0)
    effects->brought.push_back({.pull_id = pull_id, .table = table});
  if (--pending.missing > 0) return;
  effects->pulled.push_back(std::move(pending.result));
  pulls_.erase(at);
}

void PendingPulls::Split(const ShardSplit& split) {
  const auto kept = static_cast<size_t>(split.kept);
  for (auto& [id, pending] : pulls_) {
    pending.result.view = split.view;
    std::vector<ShardValue>& shards = pending.result.shards;
    shards.push_back(shards[kept]);
    if (shards[kept].values.empty()) {  // It has not come yet.
      ++pending.missing;
      const TableId table = split.view->shard(ShardId{split.kept}).table;
      ++pending.missing_of[static_cast<size_t>(table)];
      continue;
    }
    shards.back().values = TakeRest(&shards[kept].values, split);
    for (size_t i = 0; i < shards[kept].slots.size(); ++i)
      shards.back().slots[i] = TakeRest(&shards[kept].slots[i], split);
  }
}

}  // namespace slackline
