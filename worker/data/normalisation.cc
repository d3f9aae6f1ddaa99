#include "worker/data/normalisation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

// Inputs in more parts than channels of an image have no tables of their own:
// they would cost more memory than they save time.
constexpr size_t kTablesMax = 4;

// Mean and deviation of the numbers that it is given, in two passes.
class Moments {
 public:
  // First pass, then Second() for the same numbers. `times`: how often.
  void First(double value, int64_t times = 1) {
    if (times == 0) return;
    sum_ += value * static_cast<double>(times);
    count_ += times;
    least_ = std::min(least_, value);
    largest_ = std::max(largest_, value);
  }
  void Second(double value, int64_t times = 1) {
    const double distance = value - mean();
    squares_ += distance * distance * static_cast<double>(times);
  }
  double mean() const {
    return least_ == largest_ ? least_ : sum_ / static_cast<double>(count_);
  }
  // 1 if all numbers are the same: rounding is no deviation.
  double deviation() const {
    if (least_ == largest_) return 1;
    return std::sqrt(squares_ / static_cast<double>(count_));
  }

 private:
  double sum_ = 0;
  double squares_ = 0;
  int64_t count_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
  double largest_ = -std::numeric_limits<double>::infinity();
};

// Calls visit(part, at) for the places of rows with `parts` of `part_size`.
template <typename Visit>
void VisitInOrder(size_t count, int64_t parts, int64_t part_size,
                  const Visit& visit) {
  for (size_t at = 0; at < count;) {
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t i = 0; i < part_size; ++i) visit(part, at++);
    }
  }
}

// Calls visit(part, value, times) for all numbers, in their order or, of codes,
// once for each code; an input has `parts` equal parts.
template <typename Visit>
void VisitNumbers(const CodedRows& rows, const RawData& data, int64_t parts,
                  const Visit& visit) {
  SL_CHECK(rows.values.size() == 1, "inputs that are normalised already");
  const std::array<float, 256>& value = rows.values[0];
  const int64_t part_size = data.features / parts;
  if (parts > static_cast<int64_t>(kTablesMax)) {
    VisitInOrder(rows.codes.size(), parts, part_size,
                 [&](int64_t part, size_t at) {
                   visit(part, double{value[rows.codes[at]]}, 1);
                 });
    return;
  }
  std::vector<std::array<int64_t, 256>> counts(static_cast<size_t>(parts));
  VisitInOrder(
      rows.codes.size(), parts, part_size,
      [&](int64_t part, size_t at) { ++counts[part][rows.codes[at]]; });
  for (int64_t part = 0; part < parts; ++part) {
    for (size_t code = 0; code < 256; ++code)
      visit(part, double{value[code]}, counts[part][code]);
  }
}

template <typename Visit>
void VisitNumbers(const DenseRows& rows, const RawData& data, int64_t parts,
                  const Visit& visit) {
  VisitInOrder(rows.values.size(), parts, data.features / parts,
               [&](int64_t part, size_t at) {
                 visit(part, double{rows.values[at]}, 1);
               });
}

template <typename Visit>
void VisitNumbers(const SparseRows& rows, const RawData& data, int64_t parts,
                  const Visit& visit) {
  const int64_t part_size = data.features / parts;
  const auto examples = static_cast<int64_t>(data.labels.size());
  std::vector<int64_t> zeros(static_cast<size_t>(parts), examples * part_size);
  for (size_t i = 0; i < rows.value.size(); ++i) {
    const int64_t part = rows.column[i] / part_size;
    --zeros[part];
    visit(part, double{rows.value[i]}, 1);
  }
  for (int64_t part = 0; part < parts; ++part) visit(part, 0.0, zeros[part]);
}

Scaling Computed(const RawData& data, int64_t parts) {
  std::vector<Moments> moments(static_cast<size_t>(parts));
  std::visit(
      [&](const auto& rows) {
        VisitNumbers(rows, data, parts,
                     [&](int64_t part, double value, int64_t times) {
                       moments[part].First(value, times);
                     });
        VisitNumbers(rows, data, parts,
                     [&](int64_t part, double value, int64_t times) {
                       moments[part].Second(value, times);
                     });
      },
      data.inputs);
  Scaling scaling;
  for (const Moments& of_part : moments) {
    const auto deviation = static_cast<float>(of_part.deviation());
    scaling.mean.push_back(static_cast<float>(of_part.mean()));
    // So small that it is 0 as a float.
    scaling.deviation.push_back(std::isnormal(deviation) ? deviation : 1);
  }
  return scaling;
}

std::string FormulaText(float mean, float deviation) {
  return absl::StrCat("(x ", mean < 0 ? "+ " : "- ", std::abs(mean), ") / ",
                      deviation);
}

std::string FormulasText(const Scaling& scaling) {
  if (scaling.mean.size() == 1)
    return FormulaText(scaling.mean[0], scaling.deviation[0]);
  std::string text;
  for (size_t i = 0; i < scaling.mean.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "channel " : ", channel ", i, ": ",
                    FormulaText(scaling.mean[i], scaling.deviation[i]));
  }
  return text;
}

absl::Status NoChannels(absl::string_view field, const RawData& train) {
  return absl::InvalidArgumentError(
      absl::StrCat("data.normalisation.", field, ": ", train.source,
                   " holds no images and has no channels; use over_all {} or "
                   "per_feature {}"));
}

absl::StatusOr<Scaling> Given(const config::Normalisation::Given& given,
                              const RawData& train) {
  const auto count = static_cast<int64_t>(given.mean_size());
  if (count > 1 && !train.image.is_image()) return NoChannels("given", train);
  if (count > 1 && count != train.image.channels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.normalisation.given: there are ", count, " means, and ",
        train.source, " has ", train.image.channels,
        train.image.channels == 1 ? " channel" : " channels",
        "; write one for all inputs or one for each channel"));
  }
  return Scaling{
      .mean = {given.mean().begin(), given.mean().end()},
      .deviation = {given.deviation().begin(), given.deviation().end()}};
}

}  // namespace

absl::StatusOr<Normalised> NormalisationOf(const config::Normalisation& config,
                                           const RawData& train) {
  Normalised normalised;
  Scaling& scaling = normalised.scaling;
  switch (config.kind_case()) {
    case config::Normalisation::kNone:
    case config::Normalisation::KIND_NOT_SET:
      normalised.description = "inputs as they are";
      break;
    case config::Normalisation::kOverAll:
      scaling = Computed(train, 1);
      normalised.description =
          absl::StrCat("inputs normalised: ", FormulasText(scaling),
                       ", computed over all numbers of the training inputs");
      break;
    case config::Normalisation::kPerChannel:
      if (!train.image.is_image()) return NoChannels("per_channel", train);
      scaling = Computed(train, train.image.channels);
      normalised.description =
          absl::StrCat("inputs normalised: ", FormulasText(scaling),
                       ", computed over the training inputs");
      break;
    case config::Normalisation::kPerFeature:
      scaling = Computed(train, train.features);
      normalised.description =
          "inputs normalised: each number by the mean and the deviation of "
          "its place in the training inputs";
      break;
    case config::Normalisation::kGiven:
      SL_ASSIGN_OR_RETURN(scaling, Given(config.given(), train));
      normalised.description = absl::StrCat(
          "inputs normalised: ", FormulasText(scaling), ", as given");
      break;
  }
  return normalised;
}

Scaling ApplyToTables(const Scaling& scaling, Inputs* inputs) {
  auto* const rows = std::get_if<CodedRows>(inputs);
  const size_t parts = scaling.mean.size();
  if (rows == nullptr || parts == 0 || parts > kTablesMax) return scaling;
  SL_CHECK(rows->values.size() == 1, "inputs that are normalised already");
  rows->values.resize(parts, rows->values[0]);
  for (size_t part = 0; part < parts; ++part) {
    for (float& value : rows->values[part])
      value = (value - scaling.mean[part]) / scaling.deviation[part];
  }
  return {};
}

}  // namespace slackline
