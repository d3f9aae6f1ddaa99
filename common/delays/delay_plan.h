// What a delay trace means for a job: whose turn it is at a shard, and which
// version each gradient is to be computed from. A turn is one update of the
// trace; turns count from 0, and "after n turns" names a version of a shard.
//
// Immutable once made; any thread may call anything at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/delays/delay_trace.h"

namespace slackline {

class DelayPlan {
 public:
  // Gradients of all shards that have delays of their own; a plan takes some
  // 100 bytes for each.
  static constexpr int64_t kGradientsMax = 4000000;

  // For a job of so many workers and steps of each, of which those from `first`
  // on are over servers. InvalidArgument: the trace is of another number of
  // workers or steps, lacks a gradient, has one twice, or contradicts itself,
  // so that the job would stand still.
  static absl::StatusOr<std::shared_ptr<const DelayPlan>> Create(
      DelayTrace trace, int workers, Clock first, Clock steps);

  int workers() const { return trace_.workers; }
  // Turns begin with gradients of this clock.
  Clock first() const { return trace_.first; }
  Clock steps() const { return steps_; }
  // It says what happens to that shard.
  bool Has(ShardId shard) const;
  // The shard of the trace whose turns this one takes, which it Has(): delays
  // by name are those of one shard, which stands for all.
  ShardId TracedAs(ShardId shard) const {
    return trace_.any_model ? ShardId{0} : shard;
  }
  // OK if it says what happens to a model of so many shards.
  absl::Status CheckShards(int shards) const;
  // Versions of a shard that have to be kept at the same time for gradients
  // that are still to be computed from them, in the worst case; of the shard
  // that needs most, the present one not counted.
  int64_t kept_versions_max() const;

  // Where a checkpoint can be cut: the clock of each worker, by rank, before
  // which all of its gradients are in the checkpoint, and no others. They are
  // the smallest clocks, none of them below that of `at_least`, with which
  // whatever these gradients are computed from is made of these gradients. A
  // common clock would not do: a gradient of it may be computed from another
  // worker's gradient of a later clock, for which it would wait for ever.
  // `at_least` has a clock for each worker.
  std::vector<Clock> CutAt(const std::vector<Clock>& at_least) const;

  struct Reader {
    int64_t turns = 0;  // It is computed from the version after so many.
    int32_t rank = 0;
    Clock clock = 0;
  };
  // Of one shard of the job.
  class OfShard {
   public:
    int64_t turn_count() const {
      return static_cast<int64_t>(shard_->updates.size());
    }
    const DelayTrace::Update& turn(int64_t index) const {
      return shard_->updates[static_cast<size_t>(index)];
    }
    bool IsMean(const DelayTrace::Update& update) const {
      return plan_->trace_.IsMean(update);
    }
    // The gradient of this worker and clock, at least first(), is computed from
    // the version after so many turns. After the last step: after all.
    int64_t TurnsBefore(int32_t rank, Clock clock) const;
    // As CompleteClocks() has it for what that gradient is computed from.
    Clock CompleteFor(int32_t rank, Clock clock) const;
    // False: the shard drops it, whenever it comes.
    bool Uses(int32_t rank, Clock clock) const;
    // Who computes from the version after so many turns.
    absl::Span<const Reader> ReadersAfter(int64_t turns) const;
    // Those who compute from a version after fewer turns than that, sorted by
    // these.
    absl::Span<const Reader> ReadersBefore(int64_t turns) const;

   private:
    friend class DelayPlan;
    OfShard(const DelayPlan* plan, size_t index);
    const DelayPlan* plan_;
    const DelayTrace::Shard* shard_;
    size_t index_;
  };
  // It Has() the shard; the plan outlives what is returned.
  OfShard Of(ShardId shard) const;

 private:
  // Beside a shard of the trace.
  struct Index {
    std::vector<int64_t> turns_before;  // By GradientId().
    std::vector<Clock> complete;        // By turns that are over.
    std::vector<bool> uses;             // By GradientId().
    std::vector<Reader> readers;        // Sorted by turns.
  };
  explicit DelayPlan(DelayTrace trace, Clock steps)
      : trace_(std::move(trace)), steps_(steps) {}

  absl::Status MakeIndex(size_t shard);
  // Follows the trace without a model.
  absl::Status CheckFeasible() const;
  size_t GradientId(int32_t rank, Clock clock) const {
    return static_cast<size_t>((clock - trace_.first) * trace_.workers + rank);
  }

  const DelayTrace trace_;
  const Clock steps_;
  std::vector<Index> index_;  // By shard of the trace.
};

}  // namespace slackline
