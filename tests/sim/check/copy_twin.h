// Copies: all of a shard have one history, and at one place of its log they are
// the same to the last bit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "server/shard/shard_core.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

// What a thread had of a shard when it was looked at last.
struct HeldCopy {
  LogPosition at;
  ShardRange range;
  bool served = false;  // Else it is followed.
  // Where it was as a part of another copy, until a view split it off from that
  // because nobody would tell any more where its owner had.
  std::optional<std::pair<ShardRange, LogPosition>> cut_from = {};
};

class CopyTwin {
 public:
  CopyTwin(const Scenario& scenario, const ShardComparison& comparison,
           const ShardTwins& shards, Findings& findings)
      : scenario_(scenario),
        comparison_(comparison),
        shards_(shards),
        findings_(findings) {}

  // What the thread has of shards after an event, served and followed.
  void FollowCopies(Owner owner, const ShardCore& core);
  // nullptr: it has none. Perhaps of the shard before it was split in two.
  const HeldCopy* CopyAt(int32_t shard, Owner owner) const;
  // By shard. Those of servers that are gone stay.
  const std::map<int32_t, HeldCopy>& CopiesOf(Owner owner) {
    return copies_[owner];
  }

 private:
  void CompareCopy(Owner owner, int32_t shard, const ShardMachine& machine);

  const Scenario& scenario_;
  const ShardComparison& comparison_;
  const ShardTwins& shards_;
  Findings& findings_;
  std::map<Owner, std::map<int32_t, HeldCopy>> copies_;
  // What a shard was at a place of its log, whoever had it.
  std::map<std::tuple<int32_t, uint64_t, uint64_t>, uint64_t> digests_;
};

}  // namespace slackline::sim
