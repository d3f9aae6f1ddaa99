// Which examples a worker trains on at each step: every example at most once an
// epoch, no two workers the same one, and the W workers of a step together
// exactly what one worker with the W-fold batch would take.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/example_range.h"
#include "common/ids.h"

namespace slackline {

// A pure function of its options and the step, so a worker that joins again
// goes on anywhere. Thread-compatible.
class Sampler {
 public:
  struct Options {
    int64_t examples = 0;    // In the whole training set.
    int64_t batch_size = 0;  // Per worker and step. At least 1.
    Rank rank{};             // In [0, world_size).
    int64_t world_size = 0;  // Workers. At least 1.
    uint64_t seed = 0;       // The same for all workers.
    // The coordinator says which places of an epoch's order a step has: any
    // number of examples will do.
    bool elastic = false;
    // Another order in each epoch; else it is that of the training set.
    bool shuffle = true;
  };
  // InvalidArgument names the option, its value and its bound; among others
  // when the examples do not make one batch for every worker.
  static absl::StatusOr<Sampler> Create(const Options& options);

  // examples / (batch_size * world_size), rounded down: each epoch leaves out
  // the few examples that would not make a full step, others each time. Not for
  // elastic sampling.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // The places that step `step`, at least 0, has in its epoch's order. Not for
  // elastic sampling.
  ExampleRange PlacesOf(Clock step) const;
  // The batch_size rows of step `step`, at least 0. Valid until the next call.
  absl::Span<const int64_t> Batch(Clock step);
  // The rows at the places [begin, end) of this epoch's order, which are in [0,
  // examples]. Valid until the next call.
  absl::Span<const int64_t> At(int64_t epoch, int64_t begin, int64_t end);

 private:
  explicit Sampler(const Options& options);

  Options options_;
  int64_t steps_per_epoch_;
  int64_t epoch_ = -1;  // Of `rows_`; -1: none yet.
  // All, in this epoch's order. Without shuffling those of the last call: a
  // training set may have more than the memory.
  std::vector<int64_t> rows_;
};

}  // namespace slackline
