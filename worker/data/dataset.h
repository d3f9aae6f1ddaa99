// Dataset: labelled examples in compact memory, made dense a minibatch at a
// time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/types/span.h"

namespace slackline {

// Inputs of which each takes one of 256 values: pictures, and generated data. A
// quarter of the memory of floats, which matters with several workers on a
// host.
struct CodedRows {
  std::vector<uint8_t> codes;      // [examples, features], row-major.
  std::array<float, 256> value{};  // What a code stands for.
};

// Inputs that are mostly zero, in compressed sparse row form.
struct SparseRows {
  std::vector<int64_t> row_begin = {
      0};  // Row i: entries [row_begin[i], row_begin[i + 1]).
  std::vector<int32_t> column;  // In [0, features).
  std::vector<float> value;
};

// Immutable, so every thread may read it.
class Dataset {
 public:
  struct Options {
    int64_t features = 0;  // Numbers per input. At least 1.
    int32_t classes = 0;   // Labels are in [0, classes). At least 2.
    // Where it is from and how much there is, for people.
    std::string description;
  };
  // The readers check what comes from outside; sizes that do not match are
  // fatal.
  Dataset(Options options, std::variant<CodedRows, SparseRows> inputs,
          std::vector<int32_t> labels);

  int64_t examples() const { return static_cast<int64_t>(labels_.size()); }
  int64_t features() const { return options_.features; }
  int32_t classes() const { return options_.classes; }
  const std::string& description() const { return options_.description; }
  int32_t label(int64_t row) const { return labels_[static_cast<size_t>(row)]; }

  // Writes the examples `rows` in that order: inputs to
  // inputs[0, rows.size() * features()), row-major, labels to
  // labels[0, rows.size()). Each row is in [0, examples()); another is fatal.
  void Gather(absl::Span<const int64_t> rows, float* inputs,
              int64_t* labels) const;

 private:
  const Options options_;
  const std::variant<CodedRows, SparseRows> inputs_;
  const std::vector<int32_t> labels_;
};

}  // namespace slackline
