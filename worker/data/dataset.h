// Dataset: labelled examples in compact memory, made dense a minibatch at a
// time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "worker/model/data_shape.h"

namespace slackline {

// Inputs of which each takes one of 256 values: pictures, and generated data. A
// quarter of the memory of floats, which matters with several workers on a
// host.
struct CodedRows {
  std::vector<uint8_t> codes;  // [examples, features], row-major.
  // What a code stands for: one table, or one for each of equal parts of an
  // input, in their order (channels of images).
  std::vector<std::array<float, 256>> values;
};

struct DenseRows {
  std::vector<float> values;  // [examples, features], row-major.
};

// Inputs that are mostly zero, in compressed sparse row form.
struct SparseRows {
  std::vector<int64_t> row_begin = {
      0};  // Row i: entries [row_begin[i], row_begin[i + 1]).
  std::vector<int32_t> column;  // In [0, features).
  std::vector<float> value;
};

using Inputs = std::variant<CodedRows, DenseRows, SparseRows>;

// What an input x becomes: (x - mean) / deviation. One pair for all numbers, or
// one for each of equal parts of an input; none: inputs stay as they are.
struct Scaling {
  std::vector<float> mean;
  std::vector<float> deviation;  // As many. Not 0.
};

// By class, or a real number for each example.
using Labels = std::variant<std::vector<int32_t>, std::vector<float>>;

// Immutable, so every thread may read it.
class Dataset {
 public:
  struct Options {
    DataShape shape;
    Scaling scaling;  // What Gather() still has to do.
    // Where it is from and how much there is, for people.
    std::string description;
  };
  // The readers check what comes from outside; sizes that do not match are
  // fatal.
  Dataset(Options options, Inputs inputs, Labels labels);

  int64_t examples() const;
  const DataShape& shape() const { return options_.shape; }
  int64_t features() const { return shape().features; }
  int32_t classes() const { return shape().classes; }
  const std::string& description() const { return options_.description; }
  // Of data with classes; else fatal.
  int32_t label(int64_t row) const;

  // Writes the examples `rows` in that order: inputs to
  // inputs[0, rows.size() * features()), row-major, labels to
  // labels[0, rows.size()). Each row is in [0, examples()); another is fatal.
  // The first one is for data with classes, the second one for real numbers;
  // the wrong one is fatal.
  void Gather(absl::Span<const int64_t> rows, float* inputs,
              int64_t* labels) const;
  void Gather(absl::Span<const int64_t> rows, float* inputs,
              float* labels) const;

  // XXH3 (64 bits) of everything that training sees: sizes, inputs, how they
  // are normalised, and labels.
  uint64_t Hash() const;

 private:
  void CheckRows(absl::Span<const int64_t> rows) const;
  void GatherInputs(absl::Span<const int64_t> rows, float* inputs) const;

  const Options options_;
  const Inputs inputs_;
  const Labels labels_;
};

}  // namespace slackline
