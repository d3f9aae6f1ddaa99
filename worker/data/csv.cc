#include "worker/data/csv.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/data/line_reader.h"

namespace slackline {
namespace {

constexpr size_t kColumnsMax = 1 << 20;

// Takes cells off the front of a line.
class Cells {
 public:
  explicit Cells(absl::string_view line) : rest_(line) {}

  bool done() const { return done_; }
  // The next one, without quotes and the blanks around it; valid until the next
  // call. Not when done().
  absl::StatusOr<absl::string_view> Next() {
    const size_t begin = rest_.find_first_not_of(" \t");
    if (begin != absl::string_view::npos && rest_[begin] == '"')
      return Quoted(begin + 1);
    const size_t comma = rest_.find(',');
    const absl::string_view cell = rest_.substr(0, comma);
    SkipTo(comma);
    return absl::StripAsciiWhitespace(cell);
  }

 private:
  absl::StatusOr<absl::string_view> Quoted(size_t begin) {
    quoted_.clear();
    for (size_t at = begin;; ++at) {
      const size_t quote = rest_.find('"', at);
      if (quote == absl::string_view::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("the quotes of ", Shown(rest_.substr(begin - 1)),
                         " do not end in this line"));
      }
      absl::StrAppend(&quoted_, rest_.substr(at, quote - at));
      at = quote + 1;
      if (at >= rest_.size() || rest_[at] != '"') {
        const size_t comma = rest_.find(',', at);
        const absl::string_view behind = rest_.substr(
            at, comma == absl::string_view::npos ? comma : comma - at);
        if (!absl::StripAsciiWhitespace(behind).empty()) {
          return absl::InvalidArgumentError(absl::StrCat(
              "behind quotes stands ", Shown(behind), ", a comma is required"));
        }
        SkipTo(comma);
        return quoted_;
      }
      quoted_.push_back('"');
    }
  }
  void SkipTo(size_t comma) {
    done_ = comma == absl::string_view::npos;
    rest_ = done_ ? "" : rest_.substr(comma + 1);
  }

  absl::string_view rest_;
  bool done_ = false;
  std::string quoted_;
};

bool IsNumber(absl::string_view cell, float* value) {
  return absl::SimpleAtof(cell, value) && std::isfinite(*value);
}
bool IsNumber(absl::string_view cell, double* value) {
  return absl::SimpleAtod(cell, value) && std::isfinite(*value);
}

absl::StatusOr<std::vector<std::string>> ParseHeader(absl::string_view line) {
  // How some spreadsheets say that the text is UTF-8.
  Cells cells(absl::StripPrefix(line, "\xef\xbb\xbf"));
  std::vector<std::string> columns;
  bool words = false;
  while (!cells.done()) {
    SL_ASSIGN_OR_RETURN(const absl::string_view cell, cells.Next());
    columns.emplace_back(cell);
    if (cell.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column ", columns.size(),
          " has no name in the header; a table written by pandas has its row "
          "numbers there, unless it is written with index=False"));
    }
    double number = 0;
    words |= !cell.empty() && !absl::SimpleAtod(cell, &number);
    if (columns.size() > kColumnsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("there are more than ", kColumnsMax, " columns"));
    }
  }
  if (!words) {
    return absl::InvalidArgumentError(
        absl::StrCat("starts with ", Shown(line),
                     "; the first line has to name the columns"));
  }
  if (columns.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is one column, ", Shown(columns[0]),
        ", at least 2 are required: inputs and labels, separated by commas"));
  }
  return columns;
}

absl::StatusOr<size_t> LabelColumn(const std::vector<std::string>& columns,
                                   const std::string& label) {
  if (label.empty()) return columns.size() - 1;
  const auto found = std::find(columns.begin(), columns.end(), label);
  if (found == columns.end()) {
    constexpr size_t kShownMax = 20;
    const size_t shown = std::min(kShownMax, columns.size());
    std::vector<std::string> names;
    for (size_t i = 0; i < shown; ++i) names.push_back(Shown(columns[i]));
    return absl::InvalidArgumentError(absl::StrCat(
        "data.csv.label: there is no column ", Shown(label), " among ",
        absl::StrJoin(names, ", "),
        shown < columns.size()
            ? absl::StrCat(" and ", columns.size() - shown, " more")
            : ""));
  }
  if (std::find(found + 1, columns.end(), label) != columns.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.csv.label: two columns are named ", Shown(label),
                     "; rename one of them"));
  }
  return static_cast<size_t>(found - columns.begin());
}

// Appends a line's numbers.
absl::Status AddRow(absl::string_view line,
                    const std::vector<std::string>& columns,
                    size_t label_column, std::vector<float>* inputs,
                    std::vector<double>* labels) {
  Cells cells(line);
  size_t column = 0;
  for (; !cells.done(); ++column) {
    SL_ASSIGN_OR_RETURN(const absl::string_view cell, cells.Next());
    if (column >= columns.size()) continue;  // Only counted.
    float input = 0;
    double label = 0;
    if (column == label_column ? !IsNumber(cell, &label)
                               : !IsNumber(cell, &input)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column ", Shown(columns[column]), ": ",
          cell.empty() ? "is empty; every cell has to be a number"
                       : absl::StrCat(Shown(cell), " is no finite number")));
    }
    if (column == label_column) {
      labels->push_back(label);
    } else {
      inputs->push_back(input);
    }
  }
  if (column == columns.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there are ", column, " cells, and the header names ",
                   columns.size(), " columns"));
}

}  // namespace

absl::StatusOr<CsvTable> ReadCsv(const std::string& path,
                                 const std::string& label) {
  SL_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path));
  CsvTable table;
  size_t label_column = 0;
  DenseRows rows;
  std::vector<double> labels;
  std::vector<int64_t> lines;  // By example.
  while (true) {
    absl::string_view line;
    SL_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const auto here = [&](const absl::Status& status) {
      return Annotate(status, absl::StrCat(path, ":", reader.line_number()));
    };
    if (table.columns.empty()) {
      absl::StatusOr<std::vector<std::string>> columns = ParseHeader(line);
      if (!columns.ok()) return here(columns.status());
      table.columns = *std::move(columns);
      const absl::StatusOr<size_t> found = LabelColumn(table.columns, label);
      if (!found.ok()) return here(found.status());
      label_column = *found;
      continue;
    }
    const absl::Status added =
        AddRow(line, table.columns, label_column, &rows.values, &labels);
    if (!added.ok()) return here(added);
    lines.push_back(reader.line_number());
  }
  if (labels.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": holds no examples below a header, at least 1 is required"));
  }
  rows.values.shrink_to_fit();  // Half of it may be spare by now.
  const size_t examples = labels.size();
  table.data = RawData{
      .inputs = std::move(rows),
      .features = static_cast<int64_t>(table.columns.size()) - 1,
      .image = {},
      .labels = std::move(labels),
      .label_place =
          [path, lines = std::move(lines)](int64_t row) {
            return absl::StrCat(path, ":", lines[static_cast<size_t>(row)]);
          },
      .source = path,
      .description = absl::StrCat(examples, " examples from ", path)};
  return table;
}

absl::Status CheckSameColumns(const CsvTable& train, const CsvTable& test) {
  const auto [differs, other] =
      std::mismatch(train.columns.begin(), train.columns.end(),
                    test.columns.begin(), test.columns.end());
  if (differs == train.columns.end() && other == test.columns.end())
    return absl::OkStatus();
  const auto place = static_cast<size_t>(differs - train.columns.begin());
  const auto name = [place](const CsvTable& table) {
    return place < table.columns.size() ? Shown(table.columns[place])
                                        : std::string("missing");
  };
  return absl::InvalidArgumentError(
      absl::StrCat("data.csv: column ", place + 1, " is ", name(train), " in ",
                   train.data.source, " and ", name(test), " in ",
                   test.data.source, "; both headers have to be the same"));
}

}  // namespace slackline
