// What every benchmark reports in the same way: spread, environment, JSON
// lines.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace slackline::bench {

// Of a set of repeats, in the unit of the samples.
struct Spread {
  double median = 0;
  double mad = 0;  // Median absolute deviation from the median, not scaled.
  double min = 0;
  double max = 0;
};
// At least one sample: otherwise fatal.
Spread SpreadOf(std::vector<double> samples);

// The smallest sample that at least `percent` of 100 samples do not exceed
// (nearest rank). At least one sample, percent in (0, 100]: otherwise fatal.
double Percentile(std::vector<double> samples, double percent);

// {"median": ..., "mad": ..., "min": ..., "max": ...}
nlohmann::ordered_json ToJson(const Spread& spread);
// {"p50": ..., "p99": ..., "max": ..., "count": ...}; null without samples.
nlohmann::ordered_json PercentilesOf(const std::vector<double>& samples);

// FNV-1a over the bytes, as 16 hexadecimal digits.
std::string Checksum(const void* data, size_t bytes);

// Writes one line to stdout: {"benchmark": name, then the fields of `result`,
// then "commit", "compiler", "build_type" and "cpu"}. The commit is the one at
// which CMake last configured the build; "unknown" outside a git checkout.
void PrintJsonLine(const std::string& name,
                   const nlohmann::ordered_json& result);

}  // namespace slackline::bench
