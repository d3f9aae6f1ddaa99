// ShardSplit: a newer view has split a shard in two. What waits for the shard,
// is under way to it or has come from it is split as it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackline {

struct ShardSplit {
  int32_t kept = 0;          // The shard that keeps its number,
  int32_t split_off = 0;     // and the one that has its elements from
  size_t kept_elements = 0;  // this one on.
};

}  // namespace slackline
