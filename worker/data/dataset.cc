#include "worker/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

void WriteRow(const CodedRows& rows, int64_t row, int64_t features, float* to) {
  const uint8_t* codes = rows.codes.data() + row * features;
  const int64_t part = features / static_cast<int64_t>(rows.values.size());
  for (const std::array<float, 256>& value : rows.values) {
    for (int64_t i = 0; i < part; ++i) to[i] = value[codes[i]];
    codes += part;
    to += part;
  }
}

void WriteRow(const DenseRows& rows, int64_t row, int64_t features, float* to) {
  std::copy_n(rows.values.data() + row * features, features, to);
}

void WriteRow(const SparseRows& rows, int64_t row, int64_t features,
              float* to) {
  std::fill_n(to, features, 0.0f);
  for (int64_t i = rows.row_begin[row]; i < rows.row_begin[row + 1]; ++i) {
    to[rows.column[i]] = rows.value[i];
  }
}

void Scale(const Scaling& scaling, int64_t features, float* row) {
  const auto parts = static_cast<int64_t>(scaling.mean.size());
  for (int64_t p = 0; p < parts; ++p) {
    const float mean = scaling.mean[p];
    const float deviation = scaling.deviation[p];
    for (int64_t i = 0; i < features / parts; ++i, ++row)
      *row = (*row - mean) / deviation;
  }
}

bool Fits(const CodedRows& rows, int64_t examples, int64_t features) {
  return static_cast<int64_t>(rows.codes.size()) == examples * features &&
         !rows.values.empty() &&
         features % static_cast<int64_t>(rows.values.size()) == 0;
}

bool Fits(const DenseRows& rows, int64_t examples, int64_t features) {
  return static_cast<int64_t>(rows.values.size()) == examples * features;
}

bool Fits(const SparseRows& rows, int64_t examples, int64_t) {
  return static_cast<int64_t>(rows.row_begin.size()) == examples + 1 &&
         rows.row_begin.back() == static_cast<int64_t>(rows.column.size()) &&
         rows.column.size() == rows.value.size();
}

bool Fits(const Scaling& scaling, int64_t features) {
  return scaling.mean.size() == scaling.deviation.size() &&
         (scaling.mean.empty() ||
          features % static_cast<int64_t>(scaling.mean.size()) == 0);
}

class Hasher {
 public:
  Hasher() { XXH3_64bits_reset(state_.get()); }
  // The counts keep apart what stands in two vectors that follow each other.
  template <typename Values>
  void Add(const Values& values) {
    const uint64_t count = values.size();
    XXH3_64bits_update(state_.get(), &count, sizeof(count));
    XXH3_64bits_update(state_.get(), values.data(), count * sizeof(values[0]));
  }
  void Add(const CodedRows& rows) {
    Add(rows.codes);
    Add(rows.values);
  }
  void Add(const DenseRows& rows) { Add(rows.values); }
  void Add(const SparseRows& rows) {
    Add(rows.row_begin);
    Add(rows.column);
    Add(rows.value);
  }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_{
      XXH3_createState(), &XXH3_freeState};
};

}  // namespace

Dataset::Dataset(Options options, Inputs inputs, Labels labels)
    : options_(std::move(options)),
      inputs_(std::move(inputs)),
      labels_(std::move(labels)) {
  const ImageShape& image = shape().image;
  SL_CHECK(!image.is_image() ||
               image.channels * image.rows * image.columns == features(),
           absl::StrCat(InputText(shape()), " of ", features(), " features"));
  SL_CHECK(Fits(options_.scaling, features()),
           absl::StrCat(options_.scaling.mean.size(), " means and ",
                        options_.scaling.deviation.size(), " deviations for ",
                        features(), " features"));
  SL_CHECK(std::visit(
               [this](const auto& rows) {
                 return Fits(rows, examples(), features());
               },
               inputs_),
           absl::StrCat("inputs of another size than ", examples(),
                        " examples of ", features()));
  SL_CHECK(
      (classes() > 0) == std::holds_alternative<std::vector<int32_t>>(labels_),
      absl::StrCat("labels of another kind than ", classes(), " classes"));
}

int64_t Dataset::examples() const {
  return std::visit(
      [](const auto& labels) { return static_cast<int64_t>(labels.size()); },
      labels_);
}

int32_t Dataset::label(int64_t row) const {
  SL_CHECK(classes() > 0, "the labels are real numbers");
  return std::get<std::vector<int32_t>>(labels_)[static_cast<size_t>(row)];
}

void Dataset::CheckRows(absl::Span<const int64_t> rows) const {
  for (const int64_t row : rows) {
    SL_CHECK(row >= 0 && row < examples(),
             absl::StrCat("row ", row, " is outside [0, ", examples(), ")"));
  }
}

void Dataset::GatherInputs(absl::Span<const int64_t> rows,
                           float* inputs) const {
  std::visit(
      [&](const auto& stored) {
        for (const int64_t row : rows) {
          WriteRow(stored, row, features(), inputs);
          Scale(options_.scaling, features(), inputs);
          inputs += features();
        }
      },
      inputs_);
}

void Dataset::Gather(absl::Span<const int64_t> rows, float* inputs,
                     int64_t* labels) const {
  CheckRows(rows);
  for (const int64_t row : rows) *labels++ = label(row);
  GatherInputs(rows, inputs);
}

void Dataset::Gather(absl::Span<const int64_t> rows, float* inputs,
                     float* labels) const {
  CheckRows(rows);
  SL_CHECK(classes() == 0, "the labels are classes");
  const auto& numbers = std::get<std::vector<float>>(labels_);
  for (const int64_t row : rows) *labels++ = numbers[static_cast<size_t>(row)];
  GatherInputs(rows, inputs);
}

uint64_t Dataset::Hash() const {
  Hasher hasher;
  const ImageShape& image = shape().image;
  hasher.Add(std::array<int64_t, 6>{features(), classes(), image.channels,
                                    image.rows, image.columns,
                                    static_cast<int64_t>(inputs_.index())});
  std::visit([&](const auto& rows) { hasher.Add(rows); }, inputs_);
  hasher.Add(options_.scaling.mean);
  hasher.Add(options_.scaling.deviation);
  std::visit([&](const auto& labels) { hasher.Add(labels); }, labels_);
  return hasher.Digest();
}

}  // namespace slackline
