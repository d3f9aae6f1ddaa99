// ShardSplit: a newer view has split a shard in two. What waits for the shard,
// is under way to it or has come from it is split as it is.
#pragma once

#include <cstdint>
#include <memory>

#include "common/region.h"
#include "common/view/shard_map.h"

namespace slackline {

struct ShardSplit {
  int32_t kept = 0;       // The shard that keeps its number,
  int32_t split_off = 0;  // and the one that has the rest of its elements.
  Region of_kept;         // What they have right after the split.
  Region of_split_off;
  std::shared_ptr<const View> view;  // This view has split it.
};

}  // namespace slackline
