// Numbers and tables as people read them. ASCII only, so that a character is a
// column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace slackline {

// "0:07", "12:34", "1:02:03"; "?" if it is not a finite number of at least 0.
std::string DurationText(double seconds);
// "1.50 ms"
std::string MillisecondsText(int64_t micros);
// Three significant digits and a decimal prefix: "950", "45.2 k", "1.30 M".
std::string CountText(double count);
// The same for bytes: "950 B", "12.3 kB", "1.30 GB" (powers of 1000).
std::string BytesText(double bytes);
// A fraction as "97.12 %", with `decimals` digits after the point.
std::string PercentText(double fraction, int decimals);

// `line`, shortened to `width` columns; what is left out shows as "...".
std::string FitToWidth(absl::string_view line, int width);

struct Column {
  std::string title;
  bool left = false;  // Words stand left, numbers right.
};
// Lines ending in "\n": titles, a rule, rows. Each row has one cell for each
// column; another count is fatal.
std::string TableText(const std::vector<Column>& columns,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace slackline
