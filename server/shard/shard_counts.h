// ShardCounts: what the requests to one shard thread and the gradients in them
// came to, since the thread began. Every counter of run::ServerStats that only
// grows is here and nowhere else. One that is a number for itself is counted
// with Count(), by its field: who adds one needs no change here. Several that
// grow together, and what happens with each push and pull, have functions.
//
// Each gradient that was accepted is counted once by Pushed() or Inherited(),
// and once more when it is known what became of it: Updated(), Dropped(),
// Nonfinite() or Oversized(). Until then its shard holds it.
//
// Pure bookkeeping. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "proto/run.pb.h"

namespace slackline {

class ShardCounts {
 public:
  struct Options {
    int32_t server = 0;
    // A gradient with a NaN or an infinity ends the job.
    bool nonfinite_stops = false;
    // A gradient above the bound ends the job.
    bool oversized_stops = false;
  };

  explicit ShardCounts(const Options& options);

  // The counter of this field grows, as in
  // Count(run::ServerStats::kMalformedFieldNumber). It is a uint64 of
  // run::ServerStats; another one is fatal.
  void Count(int field, uint64_t by = 1);

  // ---- Requests.
  void Answered(size_t bytes);   // A pull, with so many bytes on the wire.
  void Installed(size_t bytes);  // A shard, with so many bytes on the wire.
  // The parameters of the step of clock `step` were read when all workers had
  // completed the clocks before `complete`.
  void Lead(Clock step, Clock complete);

  // ---- Gradients.
  void Pushed(size_t bytes);  // A gradient, with so many bytes on the wire.
  // Gradients that a shard holds and that no push to this thread has brought.
  void Inherited(size_t gradients);
  void Updated(size_t gradients);  // An update has applied so many.
  void Dropped(size_t gradients);
  // A gradient is applied `missed` updates after the version that it was
  // computed from; a clock has so many updates there.
  void Missed(int64_t missed, int updates_per_clock);
  // These two return whether the coordinator waits for this news.
  [[nodiscard]] bool Nonfinite(ShardId shard, Rank rank, Clock clock);
  [[nodiscard]] bool Oversized(ShardId shard, Rank rank, Clock clock,
                               const GradientBound::Excess& excess);

  const run::ServerStats& stats() const { return stats_; }

 private:
  const Options options_;
  run::ServerStats stats_;
  // The indices of the ranks' entries in stats_.nonfinite().
  absl::flat_hash_map<int32_t, int> nonfinite_entries_;
  // The indices of the ranks' entries in stats_.oversized().
  absl::flat_hash_map<int32_t, int> oversized_entries_;
};

}  // namespace slackline
