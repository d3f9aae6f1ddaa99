#include "worker/data/libsvm.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status.h"
#include "worker/data/line_reader.h"

namespace slackline {
namespace {

// Collects the examples line by line. Errors say what is wrong with the line.
class Parser {
 public:
  explicit Parser(int32_t features) : features_(features) {}

  absl::Status AddLine(absl::string_view line) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) return absl::OkStatus();
    SL_RETURN_IF_ERROR(AddLabel(words[0]));
    int32_t previous = 0;
    for (size_t i = 1; i < words.size(); ++i) {
      SL_ASSIGN_OR_RETURN(previous, AddEntry(words[i], previous));
    }
    rows_.row_begin.push_back(static_cast<int64_t>(rows_.column.size()));
    return absl::OkStatus();
  }

  SparseRows& rows() { return rows_; }
  std::vector<double>& labels() { return labels_; }

 private:
  absl::Status AddLabel(absl::string_view word) {
    double label = 0;
    if (!absl::SimpleAtod(word, &label) || !std::isfinite(label)) {
      return absl::InvalidArgumentError(
          absl::StrCat("label ", Shown(word), " is no finite number"));
    }
    labels_.push_back(label);
    return absl::OkStatus();
  }

  // Returns the entry's index in the file.
  absl::StatusOr<int32_t> AddEntry(absl::string_view word, int32_t previous) {
    const size_t colon = word.find(':');
    int32_t index = 0;
    float value = 0;
    if (colon == absl::string_view::npos ||
        !absl::SimpleAtoi(word.substr(0, colon), &index) ||
        !absl::SimpleAtof(word.substr(colon + 1), &value) ||
        !std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          Shown(word), " is not index:value with two finite numbers"));
    }
    if (index < 1 || index > features_) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature index ", index, " is outside [1, ", features_,
                       "]; set `features` to the largest index of both files"));
    }
    if (index <= previous) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature index ", index, " comes after ", previous,
                       "; the indices of a line must increase"));
    }
    rows_.column.push_back(index - 1);
    rows_.value.push_back(value);
    return index;
  }

  const int32_t features_;
  SparseRows rows_;
  std::vector<double> labels_;
};

}  // namespace

absl::StatusOr<RawData> ReadLibsvm(const std::string& path, int32_t features) {
  if (features < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.libsvm.features: ", features,
        " is too small, at least 1 is required: the largest feature index"));
  }
  SL_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path));
  Parser parser(features);
  std::vector<int64_t> lines;  // By example.
  while (true) {
    absl::string_view line;
    SL_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    SL_RETURN_IF_ERROR(Annotate(parser.AddLine(line),
                                absl::StrCat(path, ":", reader.line_number())));
    if (parser.labels().size() > lines.size())
      lines.push_back(reader.line_number());
  }
  const size_t examples = parser.labels().size();
  if (examples == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no examples, at least 1 is required"));
  }
  return RawData{
      .inputs = std::move(parser.rows()),
      .features = features,
      .image = {},
      .labels = std::move(parser.labels()),
      .label_place =
          [path, lines = std::move(lines)](int64_t row) {
            return absl::StrCat(path, ":", lines[static_cast<size_t>(row)]);
          },
      .source = path,
      .description = absl::StrCat(examples, " examples from ", path)};
}

}  // namespace slackline
