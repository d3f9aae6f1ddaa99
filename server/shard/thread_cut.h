// ThreadCut: what the shards of one thread are at the present cut of a
// checkpoint, gathered until each shard has its state (ShardCut says when that
// is), or one will never have it.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/checkpoint/shard_state.h"
#include "server/shard/shard_effects.h"
#include "server/shard/shard_parts.h"

namespace slackline {

class ThreadCut {
 public:
  // Drops the cut that is under way if the view has a newer one, or the job
  // runs no more.
  void OnView(const ShardParts& at);
  // Begins the view's cut, if it is a newer one.
  void Begin(const ShardParts& at);
  // A shard whose cut is under way has this state at it.
  void Add(ShardState state, const ShardParts& at);
  // The shard, whose cut is under way, will have no state at it.
  void Fail(ShardId shard, const absl::Status& why, const ShardParts& at);

 private:
  struct Pending {
    ShardCutState state;
    size_t missing = 0;  // Shards whose cuts are under way.
  };
  // Nobody waits for the cut that is under way any more, if one is.
  void Drop(ShardPlaces& places);
  void EndIfComplete(const ShardParts& at);

  int32_t seen_ = 0;  // The number of the last cut of a view.
  // The last cut, until it is complete in all shards.
  std::optional<Pending> pending_;
};

}  // namespace slackline
