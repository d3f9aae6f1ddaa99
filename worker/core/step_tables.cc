#include "worker/core/step_tables.h"

namespace slackline {

void StepTables::BeginWith(const PullResult& parameters) {
  versions_.clear();
  for (const ShardValue& value : parameters.shards)
    versions_.push_back(value.version);
}

void StepTables::BeginWithout(const View& view) {
  versions_.assign(static_cast<size_t>(view.shard_count()), 0);
  has_come_.assign(static_cast<size_t>(view.proto().table_size()), false);
}

void StepTables::Take(const TableValues& values) {
  has_come_[static_cast<size_t>(values.table)] = true;
  for (const TableValues::Piece& piece : values.pieces)
    versions_[static_cast<size_t>(piece.shard)] = piece.version;
}

std::vector<TableId> StepTables::Missing() const {
  std::vector<TableId> missing;
  for (size_t table = 0; table < has_come_.size(); ++table) {
    if (!has_come_[table])
      missing.push_back(TableId{static_cast<int32_t>(table)});
  }
  return missing;
}

void StepTables::OnView(const View& view) {
  if (!is_missing()) return;
  for (auto shard = static_cast<int32_t>(versions_.size());
       shard < view.shard_count(); ++shard) {
    versions_.push_back(
        versions_[static_cast<size_t>(view.OriginOf(ShardId{shard}))]);
  }
}

}  // namespace slackline
