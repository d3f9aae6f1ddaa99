// LoadMeter: what a shard thread was occupied with lately, shard by shard.
//
// Rates are exponentially decayed means, with the bias of the beginning taken
// out: a shard that has just arrived does not look idle. The thread's working
// time, which is measured per batch of messages, is shared out among the shards
// of the batch in proportion to the bytes that each made it touch.
//
// A batch costs what its own shards cost, however many others there are.
//
// Pure arithmetic on what it is told: no clock of its own. Thread-compatible.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/run.pb.h"
#include "server/shard/shard_effects.h"

namespace slackline {

class LoadMeter {
 public:
  struct Options {
    // What is so long ago counts 1/e.
    absl::Duration decay = absl::Seconds(1);
    // What a shard's entry in a message, and a message, cost a shard thread,
    // in bytes of gradients that an update reads; 1 MiB takes about 0.15 ms.
    double bytes_per_request = 6144;
    double bytes_per_message = 32768;
    // Other bytes cost little: they are passed on by reference.
    double cost_of_passing = 0.25;
  };
  struct Batch {
    absl::Duration busy;  // Wall time, from the first message to the last.
    absl::Duration cpu;   // Processor time of this thread in it.
    int messages = 0;
    absl::Duration queued;  // Sum over messages of their wait in the batch.
    absl::Span<const ShardWork> work;
  };

  LoadMeter(const Options& options, absl::Time now)
      : options_(options), started_(now), updated_(now) {}

  void OnBatch(const Batch& batch, absl::Time now);
  // The load, with that of the shards that `owned` names; the others are
  // forgotten.
  template <typename Owned>
  run::ThreadLoad Report(absl::Time now, const Owned& owned) {
    Decay(now);
    const size_t before = shards_.size();
    std::erase_if(shards_,
                  [&](const ShardSums& sums) { return !owned(sums.shard); });
    if (shards_.size() < before) IndexShards();
    return Report();
  }

 private:
  // Sums with decay; divided by the sum of weights they are means per second.
  struct ShardSums {
    ShardId shard{};
    absl::Time since;
    absl::Time decayed;  // Up to this time.
    double pushes = 0, pulls = 0, bytes_in = 0, bytes_out = 0, busy = 0;
  };
  void Decay(absl::Time now);
  // Decayed seconds since `since`.
  double Seconds(absl::Time since) const;
  double DecayFactor(absl::Duration time) const;
  void Decay(ShardSums* sums) const;  // Up to updated_.
  ShardSums& SumsOf(ShardId shard, absl::Time since);
  void IndexShards();
  run::ThreadLoad Report();

  const Options options_;
  const absl::Time started_;
  absl::Time updated_;
  double busy_ = 0, cpu_ = 0, messages_ = 0, queued_ = 0, bytes_ = 0;
  double bytes_per_busy_second_ = 0;  // When there was enough work last.
  std::vector<ShardSums> shards_;     // In the order of their first batches.
  absl::flat_hash_map<ShardId, size_t> index_of_;  // Into shards_.
};

}  // namespace slackline
