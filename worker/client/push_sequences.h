// PushSequences: the numbers of this worker's pushes to each shard, from 1 on
// without gaps, and up to which of them the shard has accepted them. The server
// counts the same (docs/protocols/push-pull.md), so a push is applied once.
//
// Owns two numbers for each shard. Transitions: Next() gives one out, Accept()
// moves the other one forward and never back, Split() lets the new shard go on
// where the whole was.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/client/shard_split.h"

namespace slackline {

class PushSequences {
 public:
  explicit PushSequences(int32_t shard_count)
      : next_(static_cast<size_t>(shard_count), 1),
        accepted_(static_cast<size_t>(shard_count), 0) {}

  // The number of the next push to the shard.
  uint64_t Next(int32_t shard) { return next_[Index(shard)]++; }
  // The shard has accepted its pushes up to `seq`. False if that was known.
  bool Accept(int32_t shard, uint64_t seq) {
    if (seq <= accepted(shard)) return false;
    accepted_[Index(shard)] = seq;
    return true;
  }
  // 0: none yet.
  uint64_t accepted(int32_t shard) const { return accepted_[Index(shard)]; }
  bool AllAccepted(int32_t shard) const {
    return accepted(shard) + 1 == next_[Index(shard)];
  }

  // The shard that is split off is the one after the last one.
  void Split(const ShardSplit& split) {
    next_.push_back(next_[Index(split.kept)]);
    accepted_.push_back(accepted(split.kept));
  }
  size_t shard_count() const { return next_.size(); }

 private:
  static size_t Index(int32_t shard) { return static_cast<size_t>(shard); }

  std::vector<uint64_t> next_;      // By shard.
  std::vector<uint64_t> accepted_;  // By shard.
};

}  // namespace slackline
