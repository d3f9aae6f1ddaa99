// Shards of dense tables, as tests begin with them.
#pragma once

#include <cstdint>

#include "server/shard/shard.h"
#include "server/shard/store/store_kinds.h"

namespace slackline {

// With initial values, slots zero.
inline Shard DenseShard(const wire::Table& table, const ShardRange& range,
                        uint64_t seed, const Optimizer& optimizer) {
  return Shard(
      range, 0,
      DenseKind()->Initial(table, range.region, seed, optimizer).value());
}

}  // namespace slackline
