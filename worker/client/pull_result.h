// PullResult: what a pull of all shards has brought, and its parts. Values
// without behaviour of their own; the tensors are references to memory that
// does not change any more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/payload.h"
#include "common/view/shard_map.h"

namespace slackline {

// Between these times a pull waited at a gate for other workers' steps.
struct ParkedTime {
  absl::Time from = absl::InfinitePast();
  absl::Time until = absl::InfinitePast();
  // How much of the time from `begin` to `end` it was.
  absl::Duration Within(absl::Time begin, absl::Time end) const {
    return std::max(std::min(until, end) - std::max(from, begin),
                    absl::ZeroDuration());
  }
  // Becomes the other one if that is longer.
  void Lengthen(const ParkedTime& other) {
    if (other.until - other.from > until - from) *this = other;
  }
};

struct ShardValue {
  Version version = 0;
  Clock shard_clock = 0;
  Payload values;
  std::vector<Payload> slots;  // None but in the answer to PullState().
  ParkedTime parked;
};

// The parameters of one table, in the order of its elements.
struct TableValues {
  struct Piece {
    ShardId shard{};
    Version version = 0;
    Payload values;
  };
  TableId table{};
  std::vector<Piece> pieces;
  ParkedTime parked = {};  // The longest of a piece.
};

struct PullResult {
  uint64_t pull_id = 0;
  std::vector<ShardValue> shards;    // By shard id.
  std::shared_ptr<const View> view;  // The shards are those of this view.
  // The smallest and the largest clock of a shard.
  std::pair<Clock, Clock> ShardClocks() const;
  TableValues Of(TableId table) const;
  ParkedTime LongestParked() const;
};

}  // namespace slackline
