// PendingPulls: the pulls of all shards that somebody waits for, and what has
// come of each. A pull asks many shards in many messages, wherever these go;
// here their answers are put together.
//
// Owns a PullResult for each of them, until its last shard has come or it is
// forgotten. Whoever asks bounds their number; a pull keeps one value for each
// shard of the view. Transitions: Add(), Bring() of one shard's values,
// Forget(), and Split() where a newer view splits a shard in two.
//
// Deterministic, without I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "common/view/shard_map.h"
#include "worker/client/client_effects.h"
#include "worker/client/pull_result.h"
#include "worker/client/shard_split.h"

namespace slackline {

class PendingPulls {
 public:
  // Begins a pull of all shards of the view, of which nothing has come. Returns
  // its id; ids count from 1. `clock` is that of a pull behind pushes.
  uint64_t Add(std::shared_ptr<const View> view, Clock clock = 0);
  // Nobody waits for it any more. Without effect if it is not under way.
  void Forget(uint64_t pull_id) { pulls_.erase(pull_id); }

  // The clock given to Add(); nullopt if the pull is not under way.
  std::optional<Clock> ClockOf(uint64_t pull_id) const;
  // Whether the pull is under way and no shard of the table is missing; then,
  // what it has brought of the table.
  bool HasBrought(uint64_t pull_id, TableId table) const;
  std::optional<TableValues> BroughtBy(uint64_t pull_id, TableId table) const;

  // A shard of a pull that is under way has come, for the first time. With the
  // last shard of a table the effects say so, and with the last of all they
  // have the result, and the pull is not under way any more.
  void Bring(uint64_t pull_id, int32_t shard, ShardValue value,
             ClientEffects* effects);

  // The view has split a shard in two. A value that has come is split, too, as
  // references to the same memory; else both parts are missing.
  void Split(const ShardSplit& split);

  size_t size() const { return pulls_.size(); }

 private:
  struct Pending {
    PullResult result;
    Clock clock = 0;
    int32_t missing = 0;              // Shards that have not come,
    std::vector<int32_t> missing_of;  // and those of each table.
  };

  uint64_t last_id_ = 0;
  std::map<uint64_t, Pending> pulls_;  // By id.
};

}  // namespace slackline
