// Collects the gradients of a step in few large buffers, so that all-reduce
// runs on buffers worth sending and starts while backward still computes.
//
// As in PyTorch DDP (Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", VLDB 2020, section 3.2): tables fill
// the buckets last layer first, the order in which backward completes them, and
// the first bucket is small so that communication starts early. A table is
// never split; one larger than a bucket has a bucket of its own.
//
// Pure logic: no I/O, threads or time. Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/payload.h"
#include "worker/collective/lane_plan.h"
#include "worker/memory/float_memory.h"

namespace slackline {

class GradientBuckets {
 public:
  struct Options {
    // Number of floats of each table, by TableId. At least one table, at least
    // one float each.
    std::vector<int64_t> table_elements;
    // Size that a bucket of several tables does not exceed. The first bucket
    // gets an eighth, unless one bucket has room for all: each operation costs
    // hand-overs between all ranks. At least 4. All ranks give the same.
    int64_t bucket_bytes = 0;
    // Where the buckets and the gradients lie; outlives this object. Null: on
    // the host.
    FloatMemory* memory = nullptr;
    // The lane of each table, by TableId: a bucket has tables of one lane.
    // Empty: all go among the ranks.
    std::vector<Lane> lanes = {};
  };
  // Where a table's gradient lies: floats [offset, offset + elements) of
  // bucket.
  struct Place {
    int bucket = 0;
    int64_t offset = 0;
    int64_t elements = 0;
  };

  // Allocates all buckets: as many bytes as the tables have. InvalidArgument
  // names the option, its value and its bound; others are the memory's. A step
  // has begun.
  static absl::StatusOr<GradientBuckets> Create(const Options& options);

  // Forgets which gradients were added. No bucket is in use by then.
  void BeginStep();

  // Copies the complete gradient of `table` (elements x float, any alignment,
  // in Options::memory) into its bucket. Appends to `*issue` the buckets that
  // are to be all-reduced now, in the order in which to start them. Over a step
  // that is 0, 1, 2, ... whatever the order of the tables, so all ranks start
  // the same. From then until the next BeginStep() nothing here writes to those
  // buckets. OutOfRange: no such table. InvalidArgument: wrong size.
  // FailedPrecondition: added before in this step. None of these changes
  // anything. Others: the memory's.
  absl::Status Add(TableId table, const Payload& gradient,
                   std::vector<int>* issue);

  // True if every bucket of this step has been issued.
  bool AllIssued() const { return next_bucket_ == bucket_count(); }

  Lane LaneOf(int bucket) const { return buckets_[bucket].lane; }
  int bucket_count() const { return static_cast<int>(buckets_.size()); }
  // Valid as long as this object is not moved from or destroyed.
  absl::Span<float> bucket(int index) { return buckets_[index].memory.values; }
  const Place& PlaceOf(TableId table) const {
    return places_[static_cast<size_t>(table)];
  }
  // The table's part of its bucket.
  absl::Span<float> Gradient(TableId table);

 private:
  struct Bucket {
    FloatMemory::Array memory;
    Lane lane = Lane::kRanks;
    int tables = 0;
    int tables_missing = 0;
  };
  explicit GradientBuckets(FloatMemory* memory) : memory_(memory) {}

  FloatMemory& memory() { return memory_ == nullptr ? host_ : *memory_; }

  HostMemory host_;
  FloatMemory* memory_;        // Null: host_.
  std::vector<Place> places_;  // By table.
  std::vector<Bucket> buckets_;
  std::vector<bool> added_;  // By table.
  int next_bucket_ = 0;      // Buckets before this one have been issued.
};

}  // namespace slackline
