// What a simulated worker has while it steps by all-reduce: all parameters, all
// optimizer state, and the version of every shard. Replica without a model.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/job/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

struct SimReplica {
  using Tensor = std::vector<float>;

  std::vector<Tensor> values;              // By table.
  std::vector<std::vector<Tensor>> slots;  // By table, then slot.
  std::vector<Version> versions;           // By shard of `view`.
  std::shared_ptr<const View> view;

  // Of this worker: where tables begin with what a worker has, no two have the
  // same.
  static SimReplica Initial(const Scenario& scenario, Rank rank,
                            std::shared_ptr<const View> view);
  // `pulled` is of PullState().
  static SimReplica Of(const PullResult& pulled);

  // One shard, as `in` cuts it.
  ShardValue CopyOut(const View& in, ShardId shard) const;
  // ModelHash() over the shards as they were before any was split in two.
  uint64_t Hash(const View& in) const;
  Version VersionOf(const View& in, ShardId shard) const;
  ShardValue CopyOf(const ShardRange& range, Version version) const;
  // The step of `clock` with the sum of the gradients, by table.
  void Apply(const Scenario& scenario, const std::vector<Tensor>& sum,
             int divisor, Clock clock);
  bool SameBits(const SimReplica& other) const;
};

}  // namespace slackline::sim
