// Decides which shards go to which shard threads so that no thread has much
// more to do than the others: a short list of moves, and splits of shards that
// are too hot for one thread. A pure function: no I/O, threads, time or
// randomness, and equal arguments give equal plans.
//
// A thread's utilisation is the demand of its shards and its background work
// over its capacity. The
// ideal is the mean: all demand over the capacity of all threads that accept
// shards. A plan
//  - is empty unless the most loaded thread is above threshold times the mean
//    and takes it to target times the mean if it can, so noise smaller than the
//    gap between the two moves nothing;
//  - takes from overloaded threads only, unless one has to make room for
//    something hotter;
//  - prefers moves that relieve much for their bytes, and leaves out those that
//    cost more time than they save within the horizon;
//  - never raises the utilisation of the most loaded thread, except where the
//    threads that are drained leave too little room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/region.h"

namespace slackline {

// One shard thread, as the planner sees it.
struct PlannerThread {
  Owner owner;
  // Relative speed: seconds of reference work that it does per second, as
  // measured, so a machine that is busy with other things has less. Above 0.
  double capacity = 1;
  bool accepts = true;  // False: is being drained, everything goes off it.
  // What its own work demands, beside its shards', and which stays here: that
  // of copies of shards. Measured as PlannerShard::demand.
  double background = 0;
};

struct PlannerShard {
  ShardId shard{};
  int thread = 0;     // Index into threads: where it is now.
  double demand = 0;  // Seconds of reference work per second. At least 0.
  int64_t bytes = 0;  // What a move takes along: values and optimizer state.
  Region region;      // What it has of its table, for splitting.
  // Has moved lately or is on its way: stays where it is, in one piece, even on
  // a thread that is being drained.
  bool pinned = false;
  // Shards of one group >= 0 never share a server, not even while moves of one
  // plan are under way. They are not split: their pieces would need partners.
  int32_t apart = -1;
};

struct PlannerOptions {
  // Times the mean utilisation; 1 <= target <= threshold.
  double threshold = 1.2;  // Acts when the most loaded thread is above this,
  double target = 1.05;    // and plans until it is at or below this.
  double min_utilisation = 0.05;  // ... and that thread is at least so busy.
  // Bounds of one plan. Moves off drained threads do not count.
  int64_t bytes_max = 1 << 30;
  int moves_max = 1000;
  int64_t split_elements_min = 1024;  // No piece is smaller. At least 1.
  // A move is worth while if the load that it takes off an overloaded thread,
  // over the horizon, exceeds what it costs in time.
  double horizon_seconds = 60;
  double bytes_per_second = 1e9;
  double move_seconds = 0.01;  // Each move takes so long, whatever its size.
};

struct PlannerMove {
  enum class Reason {
    kDrained,     // Its thread gives everything away.
    kOverloaded,  // Its thread had more than the target.
    kMakesRoom,   // It makes room for something hotter.
  };
  ShardId shard{};  // May be a new piece; in at most one move of the plan.
  int from = 0;     // Thread indexes.
  int to = 0;
  Reason reason = Reason::kOverloaded;
};

// `shard` keeps what is before `at`, `new_shard` gets the rest on the same
// thread. Demand and bytes go with the elements.
struct PlannerSplit {
  ShardId shard{};
  ShardId new_shard{};  // Numbered on from the number of shards.
  int64_t at = 0;
};

struct PlannerResult {
  std::vector<PlannerSplit> splits;  // To be done in this order, before moves.
  std::vector<PlannerMove> moves;    // The most urgent first.
  double worst_before = 0;           // Utilisation of the most loaded thread.
  double mean = 0;
  double worst_after = 0;  // What worst_before becomes, as predicted.
  int64_t bytes = 0;       // Of all moves.
  std::string summary;     // One sentence, also when there is nothing to do.
};

// Shard ids are [0, shards.size()), in any order. Values outside the bounds
// above are fatal. Takes O(shards + touched log touched), where the touched
// shards are those of overloaded threads and of threads that make room.
PlannerResult PlanMoves(absl::Span<const PlannerThread> threads,
                        absl::Span<const PlannerShard> shards,
                        const PlannerOptions& options);

}  // namespace slackline
