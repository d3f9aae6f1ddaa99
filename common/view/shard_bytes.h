// How many bytes a shard is: its values and its optimizer state.
#pragma once

#include <cstdint>

#include "common/view/shard_map.h"

namespace slackline {

// Of elements of the table.
inline int64_t StateBytes(const View& view, TableId table, int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float)) *
         (1 + view.optimizer(table).slot_count());
}

inline int64_t BytesOf(const View& view, ShardId shard) {
  const ShardRange& range = view.shard(shard);
  return StateBytes(view, range.table, range.elements());
}

}  // namespace slackline
