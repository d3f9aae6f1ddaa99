// How many bytes a shard is: its values and its optimizer state.
#pragma once

#include <cstdint>

#include "common/view/shard_map.h"

namespace slackline {

// How many bytes a region of the table has with its optimizer slots.
inline int64_t StateBytes(const View& view, TableId table,
                          const Region& region) {
  return static_cast<int64_t>(region.DenseBytes()) *
         (1 + view.optimizer(table).slot_count());
}

inline int64_t BytesOf(const View& view, ShardId shard) {
  const ShardRange& range = view.shard(shard);
  return StateBytes(view, range.table, range.region);
}

}  // namespace slackline
