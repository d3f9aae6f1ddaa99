#include "tools/cli/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"

namespace slackline {
namespace {

// Beyond this no prefix is left and nobody reads it any more.
constexpr double kSecondsMax = 1e9;

std::string WithPrefix(double value, absl::string_view unit) {
  if (!std::isfinite(value)) return "?";
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  // 999.5 already rounds to four digits.
  while (std::fabs(value) >= 999.5 && prefix + 1 < std::size(prefixes)) {
    value /= 1000;
    ++prefix;
  }
  const bool whole = prefix == 0 && value == std::floor(value);
  const int decimals = whole || std::fabs(value) >= 99.95 ? 0
                       : std::fabs(value) >= 9.995        ? 1
                                                          : 2;
  std::string text = absl::StrFormat("%.*f", decimals, value);
  const std::string suffix = absl::StrCat(prefixes[prefix], unit);
  if (!suffix.empty()) absl::StrAppend(&text, " ", suffix);
  return text;
}

}  // namespace

std::string DurationText(double seconds) {
  if (!(seconds >= 0) || seconds > kSecondsMax) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600;
  if (hours > 0) {
    return absl::StrFormat("%d:%02d:%02d", hours, whole / 60 % 60, whole % 60);
  }
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

std::string MillisecondsText(int64_t micros) {
  return absl::StrFormat("%.2f ms", static_cast<double>(micros) / 1000);
}

std::string CountText(double count) { return WithPrefix(count, ""); }

std::string BytesText(double bytes) { return WithPrefix(bytes, "B"); }

std::string PercentText(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return "?";
  return absl::StrFormat("%.*f %%", decimals, fraction * 100);
}

std::string FitToWidth(absl::string_view line, int width) {
  if (width <= 0) return "";
  const size_t columns = static_cast<size_t>(width);
  if (line.size() <= columns) return std::string(line);
  if (columns <= 3) return std::string(line.substr(0, columns));
  return absl::StrCat(line.substr(0, columns - 3), "...");
}

std::string TableText(const std::vector<Column>& columns,
                      const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const Column& column : columns) widths.push_back(column.title.size());
  for (const std::vector<std::string>& row : rows) {
    SL_CHECK(row.size() == columns.size(), "a cell for each column");
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  const auto append = [&](size_t column, absl::string_view cell) {
    const std::string padding(widths[column] - cell.size(), ' ');
    if (columns[column].left) {
      absl::StrAppend(&text, cell, padding);
    } else {
      absl::StrAppend(&text, padding, cell);
    }
    if (column + 1 < columns.size()) {
      text += "  ";
      return;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  for (size_t i = 0; i < columns.size(); ++i) append(i, columns[i].title);
  for (size_t i = 0; i < columns.size(); ++i) {
    append(i, std::string(widths[i], '-'));
  }
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) append(i, row[i]);
  }
  return text;
}

}  // namespace slackline
