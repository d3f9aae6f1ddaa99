// BatchMemory: the memory of a minibatch, filled from a data set again and
// again.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace slackline {

// Thread-compatible.
class BatchMemory {
 public:
  // For batches of at most `examples_max` examples of `data`, or of data of the
  // same shape.
  BatchMemory(int64_t examples_max, const Dataset& data);

  // The examples `rows`, as Dataset::Gather() has them. Valid until the next
  // call. More than examples_max are fatal.
  Batch Fill(const Dataset& data, absl::Span<const int64_t> rows);

 private:
  const size_t examples_max_;
  std::vector<float> inputs_;
  std::vector<int64_t> labels_;  // Of data with classes.
  std::vector<float> numbers_;   // Of data with real numbers.
};

}  // namespace slackline
