#include "worker/data/data_split.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/normalisation.h"

namespace slackline {
namespace {

// More classes than that are a mistake: each has a part in the model.
constexpr int64_t kClassesMax = 1 << 20;
constexpr double kIntegerMax = 1LL << 53;  // All integers up to it are doubles.

std::string LabelText(double label) {
  if (label == std::trunc(label) && std::abs(label) <= kIntegerMax)
    return absl::StrCat(static_cast<int64_t>(label));
  return absl::StrCat(label);
}

absl::Status BadLabel(const RawData& data, size_t row, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(data.label_place(static_cast<int64_t>(row)), ": label ",
                   LabelText(data.labels[row]), " ", what));
}

absl::Status CheckIntegers(const RawData& data) {
  for (size_t row = 0; row < data.labels.size(); ++row) {
    const double label = data.labels[row];
    if (label != std::trunc(label) || std::abs(label) > kIntegerMax) {
      return BadLabel(data, row,
                      "is no integer, and classes are integers; model { linear "
                      "{} } predicts real numbers");
    }
  }
  return absl::OkStatus();
}

// How many classes there are if the largest label is of the last one.
absl::StatusOr<int64_t> CountUpToLargest(const RawData& train) {
  const auto [least, largest] =
      std::minmax_element(train.labels.begin(), train.labels.end());
  const auto row_of = [&](auto label) {
    return static_cast<size_t>(label - train.labels.begin());
  };
  if (*least < 0) {
    return BadLabel(train, row_of(least),
                    "is too small, at least 0 is required");
  }
  if (*largest >= kClassesMax) {
    return BadLabel(
        train, row_of(largest),
        absl::StrCat("is too large, at most ", kClassesMax - 1, " is allowed"));
  }
  return static_cast<int64_t>(*largest) + 1;
}

// The labels that are classes, by class. All labels here are integers.
class Classes {
 public:
  static absl::StatusOr<Classes> Create(const RawData& train,
                                        const LabelRule& rule) {
    Classes classes;
    classes.distinct_ = rule.kind == LabelRule::Kind::kDistinct;
    if (classes.distinct_) {
      classes.labels_ = train.labels;
      std::sort(classes.labels_.begin(), classes.labels_.end());
      classes.labels_.erase(
          std::unique(classes.labels_.begin(), classes.labels_.end()),
          classes.labels_.end());
      classes.count_ = static_cast<int64_t>(classes.labels_.size());
    } else if (rule.classes > 0) {
      classes.count_ = rule.classes;
    } else {
      SL_ASSIGN_OR_RETURN(classes.count_, CountUpToLargest(train));
    }
    if (classes.count_ > kClassesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          train.description, " have ", classes.count_,
          " different labels, at most ", kClassesMax,
          " are allowed; model { linear {} } predicts real numbers"));
    }
    if (classes.count_ < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          train.description, " all have the label ", LabelText(train.labels[0]),
          "; at least two classes are required"));
    }
    return classes;
  }

  absl::StatusOr<std::vector<int32_t>> Of(const RawData& data) const {
    std::vector<int32_t> classes(data.labels.size());
    for (size_t row = 0; row < data.labels.size(); ++row) {
      const int64_t found = Find(data.labels[row]);
      if (found < 0) {
        return BadLabel(data, row,
                        distinct_
                            ? absl::StrCat("is none of the ", count_,
                                           " labels of the training data, ",
                                           LabelText(labels_.front()), " to ",
                                           LabelText(labels_.back()))
                            : absl::StrCat("is outside [0, ", count_,
                                           "), the labels of the training "
                                           "data"));
      }
      classes[row] = static_cast<int32_t>(found);
    }
    return classes;
  }

  int32_t count() const { return static_cast<int32_t>(count_); }

 private:
  // -1: there is none.
  int64_t Find(double label) const {
    if (!distinct_)
      return label >= 0 && label < static_cast<double>(count_)
                 ? static_cast<int64_t>(label)
                 : -1;
    const auto found = std::lower_bound(labels_.begin(), labels_.end(), label);
    return found != labels_.end() && *found == label ? found - labels_.begin()
                                                     : -1;
  }

  bool distinct_ = false;
  int64_t count_ = 0;
  std::vector<double> labels_;  // If they are distinct: ascending.
};

absl::StatusOr<std::vector<float>> Numbers(const RawData& data) {
  std::vector<float> numbers(data.labels.size());
  for (size_t row = 0; row < numbers.size(); ++row) {
    numbers[row] = static_cast<float>(data.labels[row]);
    if (!std::isfinite(numbers[row]))
      return BadLabel(data, row, "is too large for a float");
  }
  return numbers;
}

struct SplitLabels {
  int32_t classes = 0;
  Labels train;
  Labels test;
};
absl::StatusOr<SplitLabels> LabelsOf(const RawData& train, const RawData& test,
                                     const LabelRule& rule) {
  SplitLabels labels;
  if (rule.kind == LabelRule::Kind::kRealNumbers) {
    SL_ASSIGN_OR_RETURN(labels.train, Numbers(train));
    SL_ASSIGN_OR_RETURN(labels.test, Numbers(test));
    return labels;
  }
  SL_RETURN_IF_ERROR(CheckIntegers(train));
  SL_RETURN_IF_ERROR(CheckIntegers(test));
  SL_ASSIGN_OR_RETURN(const Classes classes, Classes::Create(train, rule));
  SL_ASSIGN_OR_RETURN(labels.train, classes.Of(train));
  SL_ASSIGN_OR_RETURN(labels.test, classes.Of(test));
  labels.classes = classes.count();
  return labels;
}

std::string InputsText(const RawData& data) {
  return absl::StrCat(
      InputText({.features = data.features, .image = data.image}),
      std::holds_alternative<CodedRows>(data.inputs) ? " in bytes" : "");
}

}  // namespace

absl::StatusOr<DataSplit> MakeSplit(
    RawData train, RawData test, const LabelRule& rule,
    const config::Normalisation& normalisation) {
  if (train.features != test.features || train.image != test.image ||
      train.inputs.index() != test.inputs.index()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", train.description, " have inputs of ", InputsText(train),
        ", ", test.description, " of ", InputsText(test),
        "; training and test data must be of one kind"));
  }
  SL_ASSIGN_OR_RETURN(const Normalised normalised,
                      NormalisationOf(normalisation, train));
  SL_ASSIGN_OR_RETURN(SplitLabels labels, LabelsOf(train, test, rule));
  const DataShape shape = {.features = train.features,
                           .classes = labels.classes,
                           .image = train.image};
  const auto finish = [&](RawData& raw, Labels& of_raw) {
    Scaling rest = ApplyToTables(normalised.scaling, &raw.inputs);
    return std::make_shared<const Dataset>(
        Dataset::Options{.shape = shape,
                         .scaling = std::move(rest),
                         .description = std::move(raw.description)},
        std::move(raw.inputs), std::move(of_raw));
  };
  DataSplit split;
  split.train = finish(train, labels.train);
  split.test = finish(test, labels.test);
  split.description = absl::StrCat(
      split.train->examples(), " training and ", split.test->examples(),
      " test examples, ",
      shape.image.is_image()
          ? absl::StrCat("images of ", InputText(shape))
          : absl::StrCat(shape.features,
                         shape.features == 1 ? " feature" : " features"),
      ", ",
      shape.classes > 0 ? absl::StrCat(shape.classes, " classes")
                        : "real numbers as labels",
      "; ", normalised.description);
  const std::array<uint64_t, 2> parts = {split.train->Hash(),
                                         split.test->Hash()};
  split.hash = absl::StrCat(
      absl::Hex(XXH3_64bits(parts.data(), sizeof(parts)), absl::kZeroPad16));
  return split;
}

}  // namespace slackline
