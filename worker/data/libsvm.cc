#include "worker/data/libsvm.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status.h"
#include "worker/data/gzip_reader.h"

namespace slackline {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (true) {
    SL_ASSIGN_OR_RETURN(
        const int64_t got,
        reader.Read(buffer.data(), static_cast<int64_t>(buffer.size())));
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
}

// Text from a file as it goes into a message: short, and nothing unprintable.
std::string Shown(absl::string_view text) {
  std::string shown(text.substr(0, 40));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return absl::StrCat("'", shown, text.size() > 40 ? "..." : "", "'");
}

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
  std::vector<int32_t>& labels() { return labels_; }

 private:
  absl::Status AddLabel(absl::string_view word) {
    double label = 0;
    if (!absl::SimpleAtod(word, &label) ||
        (label != -1 && label != 0 && label != 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("label ", Shown(word),
                       " is none of 0, 1, -1, +1; only problems with two "
                       "classes are supported"));
    }
    if (label != 1) {
      if (labels_of_zero_class_ != 1 && labels_of_zero_class_ != label) {
        return absl::InvalidArgumentError(
            "label 0 and label -1 in one file; use one of them");
      }
      labels_of_zero_class_ = label;
    }
    labels_.push_back(label == 1 ? 1 : 0);
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
  std::vector<int32_t> labels_;
  double labels_of_zero_class_ = 1;  // 0 or -1 once one of them was seen.
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Dataset>> ReadLibsvm(
    const std::string& path, int32_t features) {
  if (features < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.libsvm.features: ", features,
        " is too small, at least 1 is required: the largest feature index"));
  }
  SL_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  Parser parser(features);
  int64_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    SL_RETURN_IF_ERROR(
        Annotate(parser.AddLine(line), absl::StrCat(path, ":", line_number)));
  }
  const size_t examples = parser.labels().size();
  if (examples == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no examples, at least 1 is required"));
  }
  return std::make_shared<const Dataset>(
      Dataset::Options{
          .features = features,
          .classes = 2,
          .description = absl::StrCat(examples, " examples from ", path)},
      std::move(parser.rows()), std::move(parser.labels()));
}

}  // namespace slackline
