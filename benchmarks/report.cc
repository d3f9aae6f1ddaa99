#include "benchmarks/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "common/status.h"
#include "common/version.h"

namespace slackline::bench {
namespace {

// Takes a copy: reorders the samples.
double Median(std::vector<double> samples) {
  const size_t middle = samples.size() / 2;
  std::nth_element(samples.begin(), samples.begin() + middle, samples.end());
  if (samples.size() % 2 == 1) return samples[middle];
  const double below =
      *std::max_element(samples.begin(), samples.begin() + middle);
  return (below + samples[middle]) / 2;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Spread SpreadOf(std::vector<double> samples) {
  SL_CHECK(!samples.empty(), "a spread needs at least one sample");
  const auto [min, max] = std::minmax_element(samples.begin(), samples.end());
  Spread spread{.median = Median(samples), .min = *min, .max = *max};
  for (double& sample : samples) sample = std::fabs(sample - spread.median);
  spread.mad = Median(std::move(samples));
  return spread;
}

double Percentile(std::vector<double> samples, double percent) {
  SL_CHECK(!samples.empty(), "a percentile needs at least one sample");
  SL_CHECK(percent > 0 && percent <= 100,
           "percent is " + std::to_string(percent));
  const size_t count = static_cast<size_t>(
      std::ceil(percent / 100 * static_cast<double>(samples.size())));
  const size_t index = std::clamp<size_t>(count, 1, samples.size()) - 1;
  std::nth_element(samples.begin(), samples.begin() + index, samples.end());
  return samples[index];
}

nlohmann::ordered_json ToJson(const Spread& spread) {
  return {{"median", spread.median},
          {"mad", spread.mad},
          {"min", spread.min},
          {"max", spread.max}};
}

nlohmann::ordered_json PercentilesOf(const std::vector<double>& samples) {
  if (samples.empty()) return nullptr;
  return {{"p50", Percentile(samples, 50)},
          {"p99", Percentile(samples, 99)},
          {"max", Percentile(samples, 100)},
          {"count", samples.size()}};
}

std::string Checksum(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* byte = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3ULL;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(hash));
  return text;
}

void PrintJsonLine(const std::string& name,
                   const nlohmann::ordered_json& result) {
  nlohmann::ordered_json line = {{"benchmark", name}};
  line.update(result);
  line["commit"] = BuildCommit();
  line["compiler"] = SLACKLINE_COMPILER;
  line["build_type"] = SLACKLINE_BUILD_TYPE;
  line["cpu"] = CpuModel();
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace slackline::bench
