// All examples of a data set, as training sees them.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "worker/data/dataset.h"

namespace slackline {

struct DatasetRows {
  std::vector<float> inputs;    // [examples, features], row-major.
  std::vector<int64_t> labels;  // Of data with classes.
  std::vector<float> numbers;   // Of data with real numbers.
};

inline DatasetRows RowsOf(const Dataset& data) {
  std::vector<int64_t> order(data.examples());
  std::iota(order.begin(), order.end(), 0);
  DatasetRows rows;
  rows.inputs.resize(data.examples() * data.features());
  if (data.classes() > 0) {
    rows.labels.resize(order.size());
    data.Gather(order, rows.inputs.data(), rows.labels.data());
  } else {
    rows.numbers.resize(order.size());
    data.Gather(order, rows.inputs.data(), rows.numbers.data());
  }
  return rows;
}

}  // namespace slackline
