#include "worker/client/pull_result.h"

#include <limits>

namespace slackline {

std::pair<Clock, Clock> PullResult::ShardClocks() const {
  Clock smallest = std::numeric_limits<Clock>::max();
  Clock largest = 0;
  for (const ShardValue& value : shards) {
    smallest = std::min(smallest, value.shard_clock);
    largest = std::max(largest, value.shard_clock);
  }
  return {smallest, largest};
}

TableValues PullResult::Of(TableId table) const {
  TableValues values{.table = table, .pieces = {}};
  for (const ShardRange& range : view->ShardsOf(table)) {
    const ShardValue& shard = shards[static_cast<size_t>(range.shard)];
    values.pieces.push_back({.shard = range.shard,
                             .version = shard.version,
                             .values = shard.values});
    values.parked.Lengthen(shard.parked);
  }
  return values;
}

ParkedTime PullResult::LongestParked() const {
  ParkedTime longest;
  for (const ShardValue& shard : shards) longest.Lengthen(shard.parked);
  return longest;
}

}  // namespace slackline
