// ShardMaker: what shards begin as, from the job's config and the view: with
// initial values, or those of a checkpoint, and the rules of their tables.
//
// Deterministic; a checkpoint is read through StoredShards. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/view/shard_map.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_parts.h"

namespace slackline {

class ShardMaker {
 public:
  explicit ShardMaker(config::LearningRateSchedule schedule)
      : schedule_(std::move(schedule)) {}

  // Makes the rules of the tables, with the first view of a job that runs.
  void OnView(const ShardParts& at);
  // The rule of the shard's table. The rules have been made.
  const std::shared_ptr<const TableRule>& RuleFor(
      const ShardRange& range) const {
    return rules_[static_cast<size_t>(range.table)];
  }
  // What the shard begins as: with the founders of the view, and the values
  // that its table's initializer names.
  absl::StatusOr<ShardMachine> NewMachine(const ShardRange& range,
                                          const ShardParts& at) const;
  // This thread owns the shard from here on, in a term of its own. These
  // followers are awaited, as those are that the view says to be in sync.
  ShardPlaces::Serving BeginToServe(ShardMachine machine, uint64_t term,
                                    std::vector<FollowerFeeds::Known> awaited,
                                    const ShardParts& at) const;

 private:
  const config::LearningRateSchedule schedule_;
  std::vector<std::shared_ptr<const TableRule>> rules_;  // By table.
  // By table.
  std::vector<std::shared_ptr<const ServedShard::Rules>> served_rules_;
};

}  // namespace slackline
