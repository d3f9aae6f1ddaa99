#include "worker/data/dataset.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace slackline {
namespace {

void WriteRow(const CodedRows& rows, int64_t row, int64_t features, float* to) {
  const uint8_t* const codes = rows.codes.data() + row * features;
  for (int64_t i = 0; i < features; ++i) to[i] = rows.value[codes[i]];
}

void WriteRow(const SparseRows& rows, int64_t row, int64_t features,
              float* to) {
  std::fill_n(to, features, 0.0f);
  for (int64_t i = rows.row_begin[row]; i < rows.row_begin[row + 1]; ++i) {
    to[rows.column[i]] = rows.value[i];
  }
}

bool Fits(const CodedRows& rows, int64_t examples, int64_t features) {
  return static_cast<int64_t>(rows.codes.size()) == examples * features;
}

bool Fits(const SparseRows& rows, int64_t examples, int64_t) {
  return static_cast<int64_t>(rows.row_begin.size()) == examples + 1 &&
         rows.row_begin.back() == static_cast<int64_t>(rows.column.size()) &&
         rows.column.size() == rows.value.size();
}

}  // namespace

Dataset::Dataset(Options options, std::variant<CodedRows, SparseRows> inputs,
                 std::vector<int32_t> labels)
    : options_(std::move(options)),
      inputs_(std::move(inputs)),
      labels_(std::move(labels)) {
  SL_CHECK(std::visit(
               [this](const auto& rows) {
                 return Fits(rows, examples(), features());
               },
               inputs_),
           absl::StrCat("inputs of another size than ", examples(),
                        " examples of ", features()));
}

void Dataset::Gather(absl::Span<const int64_t> rows, float* inputs,
                     int64_t* labels) const {
  for (const int64_t row : rows) {
    SL_CHECK(row >= 0 && row < examples(),
             absl::StrCat("row ", row, " is outside [0, ", examples(), ")"));
    *labels++ = labels_[static_cast<size_t>(row)];
  }
  std::visit(
      [&](const auto& stored) {
        for (const int64_t row : rows) {
          WriteRow(stored, row, features(), inputs);
          inputs += features();
        }
      },
      inputs_);
}

}  // namespace slackline
