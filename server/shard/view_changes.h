// ViewChanges: what a newer view does to the shards of a thread: which begin
// here, which have another owner or other followers, which are split in two,
// who takes part in them no more, and which moves begin and end.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include "common/view/shard_map.h"
#include "server/shard/shard_parts.h"

namespace slackline {

class ViewChanges {
 public:
  // `at` has a newer view than `before`, in which the job runs. `before` may
  // be nullptr. ShardEffects::failure says why the thread cannot go on.
  void Apply(const View* before, const ShardParts& at);

 private:
  bool created_ = false;  // The shards that are here from the start are made.
};

}  // namespace slackline
