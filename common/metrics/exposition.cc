#include "common/metrics/exposition.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace slackline {
namespace {

std::string ValueText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // The shortest text that is read back as the same number.
  char text[32];
  const std::to_chars_result end =
      std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

}  // namespace

void Exposition::Begin(const std::string& name, absl::string_view type,
                       absl::string_view help) {
  name_ = name;
  absl::StrAppend(&text_, "# HELP ", name, " ",
                  absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}}),
                  ".\n# TYPE ", name, " ", type, "\n");
}

void Exposition::Line(const std::string& suffix, double value,
                      const Labels& labels) {
  absl::StrAppend(&text_, name_, suffix);
  const char* before = "{";
  for (const auto& [name, of_label] : labels) {
    absl::StrAppend(
        &text_, before, name, "=\"",
        absl::StrReplaceAll(of_label,
                            {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
        "\"");
    before = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? "" : "}", " ", ValueText(value),
                  "\n");
}

void Exposition::Add(double value, const Labels& labels) {
  Line("", value, labels);
}

void Exposition::Add(const run::Histogram& histogram, const Labels& labels) {
  Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  double count = 0;
  double sum = 0;
  // The last bin has all that is larger, too, so no bucket ends there.
  int bin = 0;
  for (int bound = 0; bound < 1024; bound = bound == 0 ? 1 : 2 * bound) {
    for (; bin < histogram.bin_size() && bin <= bound; ++bin) {
      count += static_cast<double>(histogram.bin(bin));
      sum += static_cast<double>(histogram.bin(bin)) * bin;
    }
    with_bound.back().second = absl::StrCat(bound);
    Line("_bucket", count, with_bound);
  }
  for (; bin < histogram.bin_size(); ++bin) {
    count += static_cast<double>(histogram.bin(bin));
    sum += static_cast<double>(histogram.bin(bin)) * bin;
  }
  with_bound.back().second = "+Inf";
  Line("_bucket", count, with_bound);
  Line("_sum", sum, labels);
  Line("_count", count, labels);
}

}  // namespace slackline
